// Writing; trace_file.cpp reads, and has the keys.
#include <simdjson.h>

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "traces/file/trace_file.h"
#include "traces/file/trace_line.h"

namespace tencache {
namespace {

bool has_stored_bytes(const Tensor& tensor) { return tensor.stored_bytes != 0 && tensor.stored_bytes != tensor.bytes; }

// Writes lines into a string that `flush` empties from time to time.
template <typename Flush>
class Writer {
 public:
  Writer(const Trace& trace, Flush flush) : trace_(trace), flush_(flush) {}

  void write() {
    write_header();
    for (TensorId id = 0; id < trace_.tensors.size(); ++id) write_tensor(id);
    for (OpIndex id = 0; id < trace_.ops.size(); ++id) write_op(id);
    for (const RecomputeChoice& choice : trace_.choices) write_choice(choice);
    flush_(out_);
  }

 private:
  void write_header() {
    const TraceHeader& header = trace_.header;
    out_ += "{\"kind\":\"header\"";
    number("format_version", format_version(trace_));
    text("model", header.model);
    number("batch", header.batch);
    number("sequence_length", header.sequence_length);
    text("precision", header.precision);
    text("hardware", header.hardware);
    if (header.provenance.made_by != MadeBy::unknown) text("made_by", to_string(header.provenance.made_by));
    if (!header.provenance.made_with.empty()) texts("made_with", header.provenance.made_with);
    text("recorded_by", header.recorded_by);
    if (!header.stack.empty()) text("stack", header.stack);
    number("tensor_count", trace_.tensors.size());
    number("op_count", trace_.ops.size());
    if (!trace_.choices.empty()) number("choice_count", trace_.choices.size());
    end_line();
  }

  void write_tensor(TensorId id) {
    const Tensor& tensor = trace_.tensors[id];
    out_ += "{\"kind\":\"tensor\"";
    number("id", id);
    text("name", trace_.name(tensor));
    number("bytes", tensor.bytes);
    text("role", to_string(tensor.role));
    truth("persistent", tensor.persistent);
    if (has_stored_bytes(tensor)) number("stored_bytes", tensor.stored_bytes);
    if (tensor.profiled_uses != 0) number("profiled_uses", tensor.profiled_uses);
    end_line();
  }

  void write_op(OpIndex id) {
    const Op& op = trace_.ops[id];
    out_ += "{\"kind\":\"op\"";
    number("id", id);
    text("name", trace_.name(op));
    text("phase", to_string(op.phase));
    text("device", to_string(op.device));
    text("module", trace_.module(op));
    number("duration_ns", op.duration_ns);
    text("duration_source", to_string(op.duration_source));
    number("gap_before_ns", op.gap_before_ns);
    if (op.issue_ns != 0) number("issue_ns", op.issue_ns);
    number("flops", op.flops);
    number("bytes", op.bytes);
    if (op.group >= 0) number("group", op.group);
    if (op.placeable) truth("placeable", true);
    if (op.reorderable) truth("reorderable", true);
    if (op.stream != OpStream::compute) text("stream", to_string(op.stream));
    if (op.rank != 0) number("rank", op.rank);
    if (op.rendezvous != 0) text("rendezvous", trace_.names[op.rendezvous]);
    if (op.kernel != 0) write_kernel(trace_.kernel(op));
    if (op.detail != 0) write_detail(trace_.detail(op));
    list("reads", trace_.reads(op));
    list("writes", trace_.writes(op));
    if (op.accesses.frees != 0) list("frees", trace_.frees(op));
    end_line();
  }

  void write_choice(const RecomputeChoice& choice) {
    out_ += "{\"kind\":\"choice\"";
    text("module", trace_.names[choice.module]);
    number("micro_batch", choice.micro_batch);
    number("before", choice.before);
    for (std::size_t level = 1; level < recompute_level_count; ++level) {
      if (!choice.again[level].empty()) list(enum_texts<RecomputeLevel>[level], std::span(choice.again[level]));
    }
    end_line();
  }

  void write_kernel(const Kernel& kernel) {
    if (kernel.kind != KernelKind::unknown) text("kernel", to_string(kernel.kind));
    if (const std::size_t numbers = shape_size(kernel.kind)) list("shape", std::span(kernel.shape).first(numbers));
    if (kernel.causal) truth("causal", true);
    if (kernel.attention != AttentionKernel::unspecified) text("attention_kernel", to_string(kernel.attention));
    if (kernel.unaligned) truth("unaligned", true);
    if (kernel.fp8) truth("fp8", true);
    if (kernel.launches != 1) number("launches", kernel.launches);
  }

  void write_detail(const OpDetail& detail) {
    if (detail.step != 0) number("step", detail.step);
    if (detail.revealed_by != none) number("revealed_by", detail.revealed_by);
    if (detail.cpu_duration_ns != 0) number("cpu_duration_ns", detail.cpu_duration_ns);
  }

  void key(std::string_view name) {
    out_ += ",\"";
    out_ += name;
    out_ += "\":";
  }

  template <typename Integer>
  void digits(Integer value) {
    char buffer[24];
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
    TENCACHE_CHECK(error == std::errc());
    out_.append(buffer, end);
  }

  template <typename Integer>
  void number(std::string_view name, Integer value) {
    key(name);
    digits(value);
  }

  void truth(std::string_view name, bool value) {
    key(name);
    out_ += value ? "true" : "false";
  }

  template <typename Integer, std::size_t size>
  void list(std::string_view name, std::span<const Integer, size> values) {
    key(name);
    out_ += '[';
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i != 0) out_ += ',';
      digits(values[i]);
    }
    out_ += ']';
  }

  void texts(std::string_view name, const std::vector<std::pair<std::string, std::string>>& values) {
    key(name);
    out_ += '{';
    for (const auto& [option, value] : values) {
      if (out_.back() != '{') out_ += ',';
      quoted(option);
      out_ += ':';
      quoted(value);
    }
    out_ += '}';
  }

  void text(std::string_view name, std::string_view value) {
    key(name);
    quoted(value);
  }

  void quoted(std::string_view value) {
    out_ += '"';
    const bool plain = std::all_of(value.begin(), value.end(), [](char c) {
      const auto byte = static_cast<unsigned char>(c);  // a char has no sign on ARM
      return byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\';
    });
    if (plain) {
      out_ += value;
    } else {
      escape(value);
    }
    out_ += '"';
  }

  void escape(std::string_view value) {
    const bool is_utf8 = simdjson::validate_utf8(value.data(), value.size());
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (byte < 0x20 || byte == 0x7f) {
        out_ += "\\u00";
        out_ += "0123456789abcdef"[byte >> 4];
        out_ += "0123456789abcdef"[byte & 15];
      } else if (byte >= 0x80 && !is_utf8) {
        out_ += "\\ufffd";
      } else {
        out_ += c;
      }
    }
  }

  void end_line() {
    out_ += "}\n";
    if (out_.size() >= flush_bytes) {
      flush_(out_);
      out_.clear();
    }
  }

  static constexpr std::size_t flush_bytes = std::size_t{1} << 19;
  const Trace& trace_;
  Flush flush_;
  std::string out_;
};

}  // namespace

int format_version(const Trace& trace) {
  const auto newer_tensor = [](const Tensor& tensor) {
    return !is_of_version_1(tensor.role) || has_stored_bytes(tensor);
  };
  const auto newer_op = [&](const Op& op) {
    return !is_of_version_1(op.phase) || trace.kernel(op) != Kernel{} || trace.detail(op) != OpDetail{} ||
           op.stream != OpStream::compute;
  };
  if (std::ranges::any_of(trace.tensors, [](const Tensor& tensor) { return tensor.profiled_uses != 0; })) return 7;
  if (!trace.choices.empty()) return 6;
  if (std::ranges::any_of(trace.ops, [](const Op& op) { return op.accesses.frees != 0; })) return 5;
  if (std::ranges::any_of(trace.ops, [](const Op& op) { return op.issue_ns != 0; })) return 4;
  const Provenance& provenance = trace.header.provenance;
  // Where it is not known, but a reader of an older version would take the sentence for something, the version says it.
  if (provenance != Provenance{} || provenance_of_sentence(trace.header.recorded_by) != Provenance{}) return 3;
  const bool newer = !trace.header.stack.empty() || std::ranges::any_of(trace.tensors, newer_tensor) ||
                     std::ranges::any_of(trace.ops, newer_op);
  return newer ? 2 : 1;
}

void write_trace(const Trace& trace, const std::string& path) {
  AtomicFile file(path);
  Writer(trace, [&](std::string_view bytes) { file.write(bytes); }).write();
  file.commit();
}

std::string format_trace(const Trace& trace) {
  std::string text;
  Writer(trace, [&](std::string_view bytes) { text += bytes; }).write();
  return text;
}

}  // namespace tencache
