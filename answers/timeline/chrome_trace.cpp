#include "answers/timeline/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "answers/timeline/transfer_uses.h"
#include "core/recompute.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr std::size_t flush_bytes = 1 << 20;
// Threads: the op lanes 1 and 2, their stalls 3 and 4, the links from here on.
constexpr std::uint32_t communication_thread = 5, first_link_thread = 10;

// Appends JSON to a buffer, which goes to a file; an ordinary serializer would be most of the run time here.
class Output {
 public:
  Output(const std::string& path, std::string_view head) : file_(path), buffer_(head) {}

  Output& raw(std::string_view text) {
    buffer_ += text;
    return *this;
  }
  Output& number(std::uint64_t value) {
    std::array<char, 24> text{};
    buffer_.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
    return *this;
  }
  // Chrome counts microseconds; three decimals keep the nanoseconds.
  Output& microseconds(Nanoseconds ns) {
    number(static_cast<std::uint64_t>(ns / 1000));
    const auto rest = static_cast<unsigned>(ns % 1000);
    const std::array<char, 4> decimals{'.', static_cast<char>('0' + rest / 100),
                                       static_cast<char>('0' + rest / 10 % 10), static_cast<char>('0' + rest % 10)};
    buffer_.append(decimals.data(), decimals.size());
    return *this;
  }
  Output& string(std::string_view text) {
    buffer_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        buffer_ += '\\';
        buffer_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        std::array<char, 8> escape{};
        std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        buffer_ += escape.data();
      } else {
        buffer_ += c;
      }
    }
    buffer_ += '"';
    return *this;
  }
  // The start of every event; the caller adds its own keys and calls `close`.
  Output& event(std::string_view phase, std::uint32_t process, std::uint32_t thread) {
    raw(first_ ? "\n{\"ph\":\"" : ",\n{\"ph\":\"").raw(phase).raw("\",\"pid\":").number(process).raw(",\"tid\":");
    first_ = false;
    return number(thread);
  }
  void close() {
    raw("}");
    if (buffer_.size() >= flush_bytes) flush();
  }
  void show() {
    flush();
    file_.show();
  }
  void commit(std::string_view tail) {
    raw(tail);
    flush();
    file_.commit();
  }

 private:
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  AtomicFile file_;
  std::string buffer_;
  bool first_ = true;
};

class ProcessWriter {
 public:
  ProcessWriter(Output& output, const TimelineProcess& process, std::uint32_t id, std::uint64_t& next_flow)
      : output_(output),
        timeline_(*process.timeline),
        machine_(*process.machine),
        trace_(*process.trace),
        name_(process.name),
        id_(id),
        next_flow_(next_flow) {}

  void write() {
    append();
    write_flows();
  }
  // What was added to the timeline since the last call, without flows; at first the head.
  bool append() {
    if (timeline_.spans.size() == spans_ && timeline_.occupancy.size() == changes_) return false;
    if (spans_ == 0 && changes_ == 0) {
      find_origin();
      again_ = recomputed_ops(trace_);
      write_names();
      write_description();
    }
    for (; spans_ < timeline_.spans.size(); ++spans_) write_span(timeline_.spans[spans_]);
    const std::span added = std::span(timeline_.occupancy).subspan(changes_);
    write_occupancy(added);
    write_changes(added);
    changes_ += added.size();
    return true;
  }
  void write_flows() {
    for_each_first_use(timeline_, machine_, trace_, [this](std::uint32_t transfer, std::uint32_t op) {
      write_flow(timeline_.spans[transfer], timeline_.spans[op]);
    });
  }

 private:
  void find_origin() {
    if (timeline_.spans.empty()) return;
    origin_ = timeline_.spans.front().start_ns;
    for (const Span& span : timeline_.spans) origin_ = std::min(origin_, span.start_ns);
  }

  static std::uint32_t thread_of(const Span& span) {
    if (span.lane >= first_link_lane) return first_link_thread + span.lane - first_link_lane;
    if (span.lane == communication_lane) return communication_thread;
    return span.kind == SpanKind::stall ? 3u + span.lane : 1u + span.lane;
  }

  void name_thread(std::uint32_t thread, std::string_view text) {
    output_.event("M", id_, thread).raw(",\"name\":\"thread_name\",\"args\":{\"name\":").string(text).raw("}").close();
    output_.event("M", id_, thread).raw(",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":");
    output_.number(thread).raw("}").close();
  }

  void write_names() {
    output_.event("M", id_, 0).raw(",\"name\":\"process_name\",\"args\":{\"name\":").string(name_).raw("}").close();
    output_.event("M", id_, 0).raw(",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":");
    output_.number(id_).raw("}").close();
    name_thread(1, "GPU");
    name_thread(2, "CPU");
    name_thread(3, "GPU stalls");
    name_thread(4, "CPU stalls");
    const bool communicates =
        std::ranges::any_of(trace_.ops, [](const Op& op) { return op.stream == OpStream::communication; });
    if (communicates) name_thread(communication_thread, "GPU, communication");
    for (std::size_t link = 0; link < machine_.links.size(); ++link) {
      const Link& l = machine_.links[link];
      name_thread(first_link_thread + static_cast<std::uint32_t>(link),
                  l.name + ": " + machine_.tiers[l.from].name + " to " + machine_.tiers[l.to].name);
    }
  }

  // What viewers pass over and the dashboard reads: the machine's tiers and links, the program's tensors (name, role,
  // bytes) and ops (name, phase, module, tensors read and written, the step of a text generation if it is not 0).
  void write_description() {
    output_.event("M", id_, 0).raw(",\"name\":\"tencache\",\"args\":{\"machine\":").string(machine_.name);
    output_.raw(",\"tiers\":[");
    const char* separator = "";
    const auto next = [&](std::string_view head) -> Output& {
      output_.raw(separator).raw(head);
      separator = ",";
      return output_;
    };
    for (const Tier& tier : machine_.tiers) {
      next("{\"name\":").string(tier.name).raw(",\"kind\":").string(to_string(tier.kind));
      output_.raw(",\"capacity\":").number(tier.capacity).raw("}");
    }
    output_.raw("],\"links\":[");
    separator = "";
    for (const Link& link : machine_.links) {
      next("{\"name\":").string(link.name).raw(",\"from\":").number(link.from).raw(",\"to\":").number(link.to);
      output_.raw(",\"bandwidth\":").number(link.bandwidth).raw("}");
    }
    output_.raw("],\"tensors\":[");
    separator = "";
    for (const Tensor& tensor : trace_.tensors) {
      next("[").string(trace_.name(tensor)).raw(",").string(to_string(tensor.role)).raw(",").number(tensor.bytes);
      output_.raw("]");
    }
    output_.raw("],\"ops\":[");
    separator = "";
    for (const Op& op : trace_.ops) {
      next("[").string(trace_.name(op)).raw(",").string(to_string(op.phase)).raw(",").string(trace_.module(op));
      for (const std::span<const TensorId> tensors : {trace_.reads(op), trace_.writes(op)}) {
        output_.raw(",[");
        for (std::size_t i = 0; i < tensors.size(); ++i) output_.raw(i == 0 ? "" : ",").number(tensors[i]);
        output_.raw("]");
      }
      if (const std::uint32_t step = trace_.detail(op).step; step != 0) output_.raw(",").number(step);
      output_.raw("]");
    }
    output_.raw("]}").close();
  }

  // Names of live tensors and ops that the program does not know are left out.
  std::string_view op_name(OpIndex op) const {
    return op < trace_.ops.size() ? std::string_view(trace_.name(trace_.ops[op])) : std::string_view();
  }
  std::string_view tensor_name(TensorId tensor) const {
    return tensor < trace_.tensors.size() ? std::string_view(trace_.name(trace_.tensors[tensor])) : std::string_view();
  }

  void write_span(const Span& span) {
    // A copy may have started before all that a growing file began with.
    const Nanoseconds start_ns = std::max(span.start_ns, origin_);
    output_.event("X", id_, thread_of(span)).raw(",\"ts\":").microseconds(start_ns - origin_);
    output_.raw(",\"dur\":").microseconds(span.end_ns - start_ns);
    switch (span.kind) {
      case SpanKind::op:
        write_op(span);
        break;
      case SpanKind::gap:
        output_.raw(",\"name\":\"host time\",\"cat\":\"gap\",\"args\":{\"before\":");
        break;
      case SpanKind::stall:
        output_.raw(",\"name\":\"").raw(to_string(span.cause)).raw("\",\"cat\":\"stall\",\"args\":{\"waiting op\":");
        break;
      case SpanKind::transfer:
        write_transfer(span, "transfer");
        break;
      case SpanKind::move:
        write_transfer(span, "move");
        break;
    }
    if (span.kind != SpanKind::op) {
      output_.string(op_name(span.op));
      if (span.op < trace_.ops.size()) output_.raw(",\"op\":").number(span.op);
    }
    output_.raw(",\"iteration\":").number(span.iteration).raw("}").close();
  }

  void write_op(const Span& span) {
    output_.raw(",\"name\":");
    if (span.op < again_.size() && again_[span.op]) {
      output_.string("recompute " + op_name(span.op));
    } else {
      output_.string(op_name(span.op));
    }
    output_.raw(",\"cat\":\"op\",\"args\":{\"op\":").number(span.op);
    if (span.op >= trace_.ops.size()) return;
    const Op& op = trace_.ops[span.op];
    output_.raw(",\"phase\":\"").raw(to_string(op.phase)).raw("\",\"module\":").string(trace_.module(op));
    write_tensors(",\"reads\":[", trace_.reads(op));
    write_tensors(",\"writes\":[", trace_.writes(op));
  }

  void write_tensors(std::string_view head, std::span<const TensorId> tensors) {
    output_.raw(head);
    bool first = true;
    for (const TensorId tensor : tensors) {
      output_.raw(first ? "" : ",").string(tensor_name(tensor));
      first = false;
    }
    output_.raw("]");
  }

  void write_transfer(const Span& span, std::string_view category) {
    output_.raw(",\"name\":").string(tensor_name(span.tensor)).raw(",\"cat\":\"").raw(category);
    output_.raw("\",\"args\":{\"bytes\":").number(span.bytes);
    output_.raw(",\"tensor\":").number(span.tensor).raw(",\"chunk\":").number(span.chunk);
    const Nanoseconds duration = span.end_ns - span.start_ns;
    if (duration > 0) {
      const double gigabytes = static_cast<double>(span.bytes) / static_cast<double>(duration);
      output_.raw(",\"GB/s\":").raw(fmt::format("{:.3f}", gigabytes));  // a point in every locale
    }
    output_.raw(",\"from\":").string(tier_name(span.from)).raw(",\"to\":").string(tier_name(span.to));
    output_.raw(span.urgent ? ",\"urgent\":true" : ",\"urgent\":false").raw(",\"asked by\":");
  }

  std::string_view tier_name(TierId tier) const {
    return tier < machine_.tiers.size() ? std::string_view(machine_.tiers[tier].name) : std::string_view();
  }

  void write_occupancy(std::span<const OccupancySample> samples) {
    std::array<std::size_t, max_tiers> last_at_its_time{};
    for (std::size_t i = 0; i < samples.size(); ++i) {
      // Of several changes at one time only the last is seen.
      last_at_its_time[samples[i].tier] = i;
      const bool time_ends = i + 1 == samples.size() || samples[i + 1].time_ns != samples[i].time_ns;
      if (!time_ends) continue;
      for (TierId tier = 0; tier < machine_.tiers.size(); ++tier) {
        const OccupancySample& sample = samples[last_at_its_time[tier]];
        if (sample.tier != tier || sample.time_ns != samples[i].time_ns) continue;
        output_.event("C", id_, 0).raw(",\"name\":").string("memory " + machine_.tiers[tier].name);
        output_.raw(",\"ts\":").microseconds(std::max<Nanoseconds>(0, sample.time_ns - origin_));
        output_.raw(",\"args\":{\"bytes\":").number(sample.used).raw("}").close();
      }
    }
  }

  // Whose room was taken or given back, for the dashboard: columns of time (nanoseconds since the one before), tier,
  // role, tensor (-1: not known) and bytes. The first one's time counts from the start.
  void write_changes(std::span<const OccupancySample> samples) {
    if (samples.empty()) return;
    const auto column = [&](std::string_view head, auto value) {
      output_.raw(head);
      for (std::size_t i = 0; i < samples.size(); ++i) {
        const std::int64_t number = value(i);
        output_.raw(i == 0 ? "" : ",").raw(number < 0 ? "-" : "");
        output_.number(static_cast<std::uint64_t>(number < 0 ? -number : number));
      }
      output_.raw("]");
    };
    const auto time = [&](std::size_t i) { return std::max<Nanoseconds>(0, samples[i].time_ns - origin_); };
    output_.event("M", id_, 0).raw(",\"name\":\"tencache_changes\",\"args\":{");
    column("\"time\":[", [&](std::size_t i) { return time(i) - (i == 0 ? 0 : time(i - 1)); });
    column(",\"tier\":[", [&](std::size_t i) { return std::int64_t{samples[i].tier}; });
    column(",\"role\":[", [&](std::size_t i) { return static_cast<std::int64_t>(samples[i].role); });
    column(",\"tensor\":[",
           [&](std::size_t i) { return samples[i].tensor == none ? -1 : std::int64_t{samples[i].tensor}; });
    column(",\"bytes\":[", [&](std::size_t i) { return samples[i].change; });
    output_.raw("}").close();
  }

  void write_flow(const Span& transfer, const Span& op) {
    const std::uint64_t flow = next_flow_++;
    // The viewer binds an arrow to the slice around its time, so it must start inside the transfer.
    const Nanoseconds start = std::max(transfer.start_ns, transfer.end_ns - 1) - origin_;
    output_.event("s", id_, thread_of(transfer)).raw(",\"name\":\"brings\",\"cat\":\"flow\",\"id\":").number(flow);
    output_.raw(",\"ts\":").microseconds(start).close();
    output_.event("f", id_, thread_of(op))
        .raw(",\"bp\":\"e\",\"name\":\"brings\",\"cat\":\"flow\",\"id\":")
        .number(flow);
    output_.raw(",\"ts\":").microseconds(op.start_ns - origin_).close();
  }

  Output& output_;
  const Timeline& timeline_;
  const MachineSpec& machine_;
  const Trace& trace_;
  const std::string& name_;
  std::uint32_t id_;
  std::uint64_t& next_flow_;
  Nanoseconds origin_ = 0;
  std::vector<bool> again_;              // by op: viewers give ops of another name another colour
  std::size_t spans_ = 0, changes_ = 0;  // written
};

}  // namespace

struct GrowingTimeline::State {
  explicit State(const std::string& path) : output(path, "[") {}

  Output output;
  std::uint64_t next_flow = 1;
  std::uint32_t processes = 0;
  TimelineProcess followed;
  std::optional<ProcessWriter> writer;  // of the one followed
  bool shown = false;

  void show() {
    output.show();
    shown = true;
  }
};

GrowingTimeline::GrowingTimeline(const std::string& path) : state_(std::make_unique<State>(path)) {}
GrowingTimeline::~GrowingTimeline() = default;

void GrowingTimeline::put(const TimelineProcess& finished) {
  ProcessWriter(state_->output, finished, ++state_->processes, state_->next_flow).write();
  state_->show();
}

void GrowingTimeline::follow(const TimelineProcess& process) {
  state_->followed = process;
  state_->writer.emplace(state_->output, state_->followed, ++state_->processes, state_->next_flow);
}

void GrowingTimeline::append() {
  if (state_->writer->append()) state_->show();
}

void GrowingTimeline::end() {
  if (state_->writer) {
    append();
    state_->writer->write_flows();
  }
  if (state_->shown) state_->output.commit("\n]\n");
}

void write_chrome_trace(const std::string& path, const std::vector<TimelineProcess>& processes) {
  Output output(path, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  std::uint64_t next_flow = 1;
  std::uint32_t id = 1;
  for (const TimelineProcess& process : processes) ProcessWriter(output, process, id++, next_flow).write();
  output.commit("\n]}\n");
}

}  // namespace tencache
