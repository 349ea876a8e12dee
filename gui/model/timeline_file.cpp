#include "gui/model/timeline_file.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "core/error.h"
#include "traces/file/byte_source.h"

namespace tencache::gui {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::size_t read_bytes = 1 << 20;
// Threads of the file: ops on 1 and 2, their stalls on 3 and 4, links from here on.
constexpr std::uint64_t communication_thread = 5, first_link_thread = 10;

// Cuts the text at the objects of `traceEvents`, which lie two brackets deep, or of an array, which lie one deep.
class EventCutter {
 public:
  template <typename OnEvent>
  void feed(std::string_view text, OnEvent on_event) {
    const std::size_t size = text.size();
    std::size_t begin = event_.empty() && depth_ < event_depth_ ? size : 0;  // of the part of an event in this block
    for (std::size_t i = 0; i < size; ++i) {
      if (in_string_) {
        i = after_string(text, i);
        if (i >= size) break;
      }
      const char c = text[i];
      line_ += c == '\n';
      if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        if (++depth_ == 1) event_depth_ = c == '[' ? 2 : 3;
        if (depth_ == event_depth_ && c == '{') begin = i;
      } else if (c == '}' || c == ']') {
        if (depth_-- == event_depth_ && c == '}' && begin < size) {
          event_.append(text.substr(begin, i + 1 - begin));
          on_event(event_, line_);
          event_.clear();
          begin = size;
        }
      }
    }
    if (begin < size) event_.append(text.substr(begin));
  }
  bool complete() const { return depth_ == 0 && !in_string_; }
  std::uint64_t line() const { return line_; }

 private:
  // The first character after the string that `i` lies in; the text's size if it does not end here. Strings are most
  // of a file, so whole stretches are searched at once.
  std::size_t after_string(std::string_view text, std::size_t i) {
    while (i < text.size()) {
      if (escaped_) {
        escaped_ = false;
        ++i;
        continue;
      }
      const std::size_t quote = std::min(text.find('"', i), text.size());
      const std::size_t escape = text.substr(i, quote - i).find('\\');
      if (escape == std::string_view::npos) {
        if (quote == text.size()) return quote;
        in_string_ = false;
        return quote + 1;
      }
      escaped_ = true;
      i += escape + 1;
    }
    return i;
  }

  std::string event_;
  int depth_ = 0, event_depth_ = 3;
  bool in_string_ = false, escaped_ = false;
  std::uint64_t line_ = 1;
};

// A time or a duration, none of them longer than a month of nanoseconds. NaN is neither.
std::optional<Nanoseconds> nanoseconds(double microseconds) {
  constexpr double month_us = 2.7e12;
  if (!(microseconds >= 0 && microseconds < month_us)) return std::nullopt;
  return std::llround(microseconds * 1000);
}

struct Process {
  Recording recording;
  bool described = false;
  std::array<Bytes, max_tiers> used{};
};

}  // namespace

class TimelineParser::Reader {
 public:
  Reader(const std::string& path, std::size_t most_spans) : path_(path), most_spans_(most_spans) {}

  void feed(std::string_view text) {
    cutter_.feed(text, [this](std::string& event, std::uint64_t line) { read_event(event, line); });
  }
  bool complete() const { return !processes_.empty() && cutter_.complete(); }
  std::string cut_off() const {
    return path_ + ": ends in the middle (was its run killed, or was it not copied whole?); this is what is there";
  }

  std::vector<Recording> snapshot(std::size_t most_spans) const {
    std::vector<Recording> recordings;
    for (const auto& [id, process] : processes_) {
      if (!process.described || process.recording.timeline.spans.empty()) continue;
      const std::vector<Span>& spans = process.recording.timeline.spans;
      Recording& copy = recordings.emplace_back();
      if (spans.size() <= most_spans) {
        copy = process.recording;
      } else {
        const Recording& whole = process.recording;
        copy = {whole.title, whole.source, whole.origin, whole.machine, whole.trace, {}};
        copy.timeline = from_iteration(whole.timeline, spans[spans.size() - most_spans].iteration + 1);
        if (copy.timeline.spans.empty()) copy.timeline = whole.timeline;  // one iteration that long
      }
      describe(copy);
    }
    return recordings;
  }

  std::uint64_t spans_ever_seen() const { return spans_ever_seen_; }

  std::vector<Recording> take() {
    std::vector<Recording> recordings;
    for (auto& [id, process] : processes_) {
      if (!process.described) continue;
      describe(process.recording);
      process.recording.timeline.spans.shrink_to_fit();
      recordings.push_back(std::move(process.recording));
    }
    if (recordings.empty() && !cutter_.complete()) {
      throw Error(path_, cutter_.line(), "ends in the middle; was it copied whole?");
    }
    if (recordings.empty()) {
      throw Error(path_, 0, "no timeline that this tencache wrote; write one with `tencache replay … --timeline`");
    }
    return recordings;
  }

 private:
  void describe(Recording& recording) const {
    recording.source = path_;
    recording.origin = recording.title.starts_with("measured") ? Origin::measured : Origin::predicted;
  }

  void read_event(std::string& event, std::uint64_t line) {
    event.reserve(event.size() + simdjson::SIMDJSON_PADDING);
    try {
      const object fields = parser_.parse(event.data(), event.size(), false).get_object();
      const std::string_view phase = fields["ph"];
      Process& process = processes_[fields["pid"].get_uint64().value()];
      if (phase == "X") {
        read_span(process, fields);
      } else if (phase == "M") {
        read_metadata(process, fields);
      }
    } catch (const simdjson::simdjson_error& error) {
      throw Error(path_, line, std::string("not an event of a timeline: ") + error.what());
    }
  }

  void read_metadata(Process& process, const object& fields) {
    const std::string_view name = fields["name"];
    if (name == "process_name") process.recording.title = fields["args"]["name"].get_string().value();
    if (name == "tencache") read_description(process, fields["args"].get_object());
    if (name == "tencache_changes") read_changes(process, fields["args"].get_object());
  }

  void read_description(Process& process, const object& fields) {
    MachineSpec& machine = process.recording.machine;
    Trace& trace = process.recording.trace;
    machine.name = fields["machine"].get_string().value();
    for (const element tier : fields["tiers"].get_array()) {
      const std::string_view kind = tier["kind"];
      Tier& added = machine.tiers.emplace_back();
      added.name = tier["name"].get_string().value();
      added.kind = kind == "gpu" ? TierKind::gpu : kind == "cpu" ? TierKind::cpu : TierKind::nvme;
      added.capacity = tier["capacity"].get_uint64();
    }
    for (const element link : fields["links"].get_array()) {
      Link& added = machine.links.emplace_back();
      added.name = link["name"].get_string().value();
      added.from = static_cast<TierId>(link["from"].get_uint64().value());
      added.to = static_cast<TierId>(link["to"].get_uint64().value());
      added.bandwidth = link["bandwidth"].get_uint64();
      require(added.from < machine.tiers.size() && added.to < machine.tiers.size());
    }
    require(!machine.tiers.empty() && machine.tiers.size() <= max_tiers && machine.links.size() <= max_links);
    for (const element tensor : fields["tensors"].get_array()) {
      const auto role = parse_enum<Role>(tensor.at(1).get_string().value());
      require(role.has_value());
      trace.add_tensor(tensor.at(0).get_string().value(), tensor.at(2).get_uint64(), *role, false);
    }
    std::vector<TensorId> reads, writes;
    for (const element op : fields["ops"].get_array()) {
      Op added;
      added.name = trace.names.intern(op.at(0).get_string().value());
      const auto phase = parse_enum<Phase>(op.at(1).get_string().value());
      require(phase.has_value());
      added.phase = *phase;
      added.module = trace.names.intern(op.at(2).get_string().value());
      read_ids(op.at(3), trace.tensors.size(), reads);
      read_ids(op.at(4), trace.tensors.size(), writes);
      if (std::uint64_t step = 0; op.at(5).get(step) == simdjson::SUCCESS) {
        require(step < none);
        added.detail = trace.add_detail({.step = static_cast<std::uint32_t>(step)});
      }
      trace.add_op(added, reads, writes);
    }
    process.described = true;
  }

  static void read_ids(const element& list, std::size_t count, std::vector<TensorId>& ids) {
    ids.clear();
    for (const element id : list.get_array()) {
      require(id.get_uint64().value() < count);
      ids.push_back(static_cast<TensorId>(id.get_uint64().value()));
    }
  }

  void read_changes(Process& process, const object& fields) {
    std::vector<OccupancySample>& samples = process.recording.timeline.occupancy;
    const std::size_t before = samples.size();
    Nanoseconds time = 0;
    for (const element passed : fields["time"].get_array()) {
      time += passed.get_int64();
      samples.push_back({.time_ns = time});
    }
    const auto column = [&](const char* name, auto set) {
      std::size_t i = before;
      for (const element value : fields[name].get_array()) {
        require(i < samples.size());
        set(samples[i++], value.get_int64().value());
      }
      require(i == samples.size());
    };
    const std::size_t tiers = process.recording.machine.tiers.size();
    column("tier", [&](OccupancySample& sample, std::int64_t value) {
      require(value >= 0 && static_cast<std::size_t>(value) < tiers);
      sample.tier = static_cast<TierId>(value);
    });
    column("role", [](OccupancySample& sample, std::int64_t value) {
      require(value >= 0 && value < role_count);
      sample.role = static_cast<Role>(value);
    });
    column("tensor", [](OccupancySample& sample, std::int64_t value) {
      sample.tensor = value < 0 ? none : static_cast<TensorId>(value);
    });
    std::array<Bytes, max_tiers>& used = process.used;
    column("bytes", [&](OccupancySample& sample, std::int64_t value) {
      used[sample.tier] += static_cast<Bytes>(value);
      sample.change = value;
      sample.used = used[sample.tier];
    });
  }

  void read_span(Process& process, const object& fields) {
    require(process.described);
    Span span;
    const auto start = nanoseconds(fields["ts"].get_double()), duration = nanoseconds(fields["dur"].get_double());
    require(start.has_value() && duration.has_value());
    span.start_ns = *start;
    span.end_ns = *start + *duration;
    const std::uint64_t thread = fields["tid"].get_uint64();
    require(thread >= 1 && (thread <= communication_thread || thread >= first_link_thread));
    const MachineSpec& machine = process.recording.machine;
    if (thread >= first_link_thread) {
      require(thread - first_link_thread < machine.links.size());
      span.lane = static_cast<std::uint8_t>(thread - first_link_thread + first_link_lane);
    } else if (thread == communication_thread) {
      span.lane = communication_lane;
    } else {
      span.lane = static_cast<std::uint8_t>((thread - 1) % 2);
    }
    const std::string_view category = fields["cat"];
    const object arguments = fields["args"].get_object();
    span.iteration = arguments["iteration"].get_uint64();
    std::uint64_t op = 0;
    if (arguments["op"].get(op) == simdjson::SUCCESS && op < process.recording.trace.ops.size()) {
      span.op = static_cast<OpIndex>(op);
    }
    if (category == "op") {
      span.kind = SpanKind::op;
    } else if (category == "gap") {
      span.kind = SpanKind::gap;
    } else if (category == "stall") {
      span.kind = SpanKind::stall;
      const auto cause = parse_enum<StallCause>(fields["name"].get_string().value());
      require(cause.has_value());
      span.cause = *cause;
    } else {
      require(category == "move" || (category == "transfer" && span.lane >= first_link_lane));
      span.kind = category == "move" ? SpanKind::move : SpanKind::transfer;
      if (span.kind == SpanKind::transfer) {
        span.cause = cause_of(machine, static_cast<LinkId>(span.lane - first_link_lane));
      }
      span.bytes = arguments["bytes"].get_uint64();
      span.urgent = arguments["urgent"].get_bool();
      span.tensor = static_cast<TensorId>(arguments["tensor"].get_uint64().value());
      span.chunk = static_cast<ChunkId>(arguments["chunk"].get_uint64().value());
      span.from = tier_named(process, arguments["from"]);
      span.to = tier_named(process, arguments["to"]);
    }
    std::vector<Span>& spans = process.recording.timeline.spans;
    if (most_spans_ > 0 && spans.size() >= 2 * most_spans_ && span.iteration != spans.back().iteration) {
      forget_old_iterations(process.recording.timeline);
    }
    spans.push_back(span);
    ++spans_ever_seen_;
  }
  void forget_old_iterations(Timeline& timeline) const {
    const std::vector<Span>& spans = timeline.spans;
    Timeline last = from_iteration(timeline, spans[spans.size() - most_spans_].iteration + 1);
    if (!last.spans.empty()) timeline = std::move(last);  // or it is one iteration that long
  }

  static TierId tier_named(const Process& process, std::string_view name) {
    for (TierId tier = 0; tier < process.recording.machine.tiers.size(); ++tier) {
      if (process.recording.machine.tiers[tier].name == name) return tier;
    }
    return no_tier;
  }
  static void require(bool condition) {
    if (!condition) throw simdjson::simdjson_error(simdjson::INCORRECT_TYPE);
  }

  std::string path_;
  std::size_t most_spans_;
  std::uint64_t spans_ever_seen_ = 0;
  EventCutter cutter_;
  simdjson::dom::parser parser_;
  std::map<std::uint64_t, Process> processes_;
};

TimelineParser::TimelineParser(const std::string& name, std::size_t most_spans)
    : reader_(std::make_unique<Reader>(name, most_spans)) {}
TimelineParser::~TimelineParser() = default;
void TimelineParser::feed(std::string_view text) { reader_->feed(text); }
bool TimelineParser::complete() const { return reader_->complete(); }
std::string TimelineParser::cut_off() const { return reader_->cut_off(); }
std::vector<Recording> TimelineParser::snapshot(std::size_t most_spans) const { return reader_->snapshot(most_spans); }
std::uint64_t TimelineParser::spans_ever_seen() const { return reader_->spans_ever_seen(); }
std::vector<Recording> TimelineParser::take() { return reader_->take(); }

std::vector<Recording> read_timeline(const std::string& path, std::string* note) {
  std::unique_ptr<ByteSource> source = std::make_unique<FileSource>(path);
  decompress(source, path);
  TimelineParser parser(path);
  std::string block(read_bytes, '\0');
  while (const std::size_t size = source->read(block.data(), block.size())) {
    parser.feed(std::string_view(block).substr(0, size));
  }
  if (note != nullptr && !parser.complete()) *note = parser.cut_off();
  return parser.take();
}

}  // namespace tencache::gui
