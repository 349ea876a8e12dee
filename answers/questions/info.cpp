#include <fmt/format.h>

#include "answers/questions.h"
#include "answers/text_table.h"
#include "core/text.h"
#include "studies/scenario_options.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"
#include "traces/summary.h"

namespace tencache {
namespace {

// What training has is listed always, what only inference has where it is there.
bool listed(Phase phase, const TraceSummary& summary) {
  const auto& ops = summary.ops[static_cast<std::size_t>(phase)];
  return phase <= Phase::optimizer || ops[0].count + ops[1].count > 0;
}
bool listed(Role role, const TraceSummary& summary) {
  return role <= Role::workspace || summary.tensors[static_cast<std::size_t>(role)].count > 0;
}

Json header_json(const Trace& trace) {
  const TraceHeader& header = trace.header;
  const auto text = [](const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); };
  const auto number = [](std::uint64_t value) { return value == 0 ? Json(nullptr) : Json(value); };
  Json json = {{"format_version", format_version(trace)}, {"model", text(header.model)},
               {"batch", number(header.batch)},           {"sequence_length", number(header.sequence_length)},
               {"precision", text(header.precision)},     {"hardware", text(header.hardware)},
               {"recorded_by", text(header.recorded_by)}};
  if (header.provenance.made_by != MadeBy::unknown) json["made_by"] = to_string(header.provenance.made_by);
  if (!header.provenance.made_with.empty()) json["made_with"] = to_json_of(header.provenance.made_with);
  if (!header.stack.empty()) json["stack"] = header.stack;
  return json;
}

Json ops_json(const OpTotal& ops) { return {{"count", ops.count}, {"seconds", to_seconds(ops.duration_ns)}}; }

Json tensors_json(const TensorTotal& tensors) { return {{"count", tensors.count}, {"bytes", tensors.bytes}}; }

Json op_bytes_json(const Trace& trace, Bytes bytes, OpIndex op) {
  Json json = {{"bytes", bytes}, {"op", nullptr}, {"name", nullptr}};
  if (op == none) return json;
  json["op"] = op;
  json["name"] = trace.name(trace.ops[op]);
  return json;
}

Json info_json(const std::string& file, const std::string& sha256, const Trace& trace, const TraceSummary& summary) {
  Json json;
  json["trace"] = file;
  json["sha256"] = sha256;
  json["header"] = header_json(trace);
  Json by_phase = Json::object();
  for (std::size_t i = 0; i < phase_count; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (!listed(phase, summary)) continue;
    Json by_device = Json::object();
    for (const Device device : {Device::gpu, Device::cpu}) {
      by_device[std::string(to_string(device))] = ops_json(summary.ops[i][static_cast<std::size_t>(device)]);
    }
    by_phase[std::string(to_string(phase))] = std::move(by_device);
  }
  json["ops"] = {{"count", summary.all_ops.count}, {"by_phase", std::move(by_phase)}};
  if (summary.kernels_known()) {
    Json by_kernel = Json::object();
    for (std::size_t i = 0; i < kernel_kind_count; ++i) {
      if (summary.kernels[i].count == 0) continue;
      by_kernel[std::string(to_string(static_cast<KernelKind>(i)))] = ops_json(summary.kernels[i]);
    }
    json["ops"]["by_kernel"] = std::move(by_kernel);
  }
  if (summary.step_count > 0) json["steps"] = summary.step_count;
  json["modules"] = summary.module_count;
  json["ranks"] = summary.rank_count;
  Json by_role = Json::object();
  for (int role = 0; role < role_count; ++role) {
    if (!listed(static_cast<Role>(role), summary)) continue;
    by_role[std::string(to_string(static_cast<Role>(role)))] =
        tensors_json(summary.tensors[static_cast<std::size_t>(role)]);
  }
  json["tensors"] = {{"count", summary.all_tensors.count},
                     {"bytes", summary.all_tensors.bytes},
                     {"by_role", std::move(by_role)},
                     {"gradients_of_step", tensors_json(summary.gradients_of_step)},
                     {"persistent", tensors_json(summary.persistent)},
                     {"unused", tensors_json(summary.unused)}};
  json["peak_demand"] = op_bytes_json(trace, summary.peak_demand.bytes, summary.peak_demand.op);
  json["largest_working_set"] = op_bytes_json(trace, summary.working_set.bytes, summary.working_set.op);
  json["largest_gpu_working_set"] = op_bytes_json(trace, summary.gpu_working_set.bytes, summary.gpu_working_set.op);
  json["compute_seconds"] = to_seconds(summary.all_ops.duration_ns);
  json["beside_seconds"] = to_seconds(summary.beside_ns);
  json["gap_seconds"] = to_seconds(summary.gap_ns);
  json["measured_share"] = summary.measured_share();
  json["flops"] = summary.flops == 0 ? Json(nullptr) : Json(summary.flops);
  json["kernel_traffic_bytes"] = summary.traffic_bytes == 0 ? Json(nullptr) : Json(summary.traffic_bytes);
  return json;
}

std::string or_unknown(const std::string& text) { return text.empty() ? "unknown" : printable(text); }

std::string op_bytes_text(const Trace& trace, Bytes bytes, OpIndex op) {
  return op == none ? format_bytes(bytes)
                    : fmt::format("{}, at op {} ({})", format_bytes(bytes), op, printable(trace.name(trace.ops[op])));
}

std::string info_text(const std::string& file, const Trace& trace, const TraceSummary& summary) {
  const TraceHeader& header = summary.header;
  const auto number = [](std::uint64_t value) { return value == 0 ? std::string("unknown") : std::to_string(value); };
  std::string text = fmt::format("{}\n", printable(file));
  text += fmt::format("  model          {}, batch {}, sequence length {}, {}\n", or_unknown(header.model),
                      number(header.batch), number(header.sequence_length),
                      header.precision.empty() ? "unknown precision" : printable(header.precision));
  text += fmt::format("  recorded       on {}, by {}\n", or_unknown(header.hardware), or_unknown(header.recorded_by));
  if (!header.stack.empty()) text += fmt::format("  stack          {}\n", printable(header.stack));
  text += fmt::format("  ops            {} in {} modules\n", summary.all_ops.count, summary.module_count);
  for (std::size_t phase = 0; phase < phase_count; ++phase) {
    for (const Device device : {Device::gpu, Device::cpu}) {
      const OpTotal& ops = summary.ops[phase][static_cast<std::size_t>(device)];
      if (ops.count == 0) continue;
      text += fmt::format("    {:<12} {} ops on the {}, {}\n", to_string(static_cast<Phase>(phase)), ops.count,
                          to_string(device), format_duration(ops.duration_ns));
    }
  }
  if (summary.kernels_known()) {
    text += "  kernels\n";
    for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
      const OpTotal& ops = summary.kernels[kind];
      if (ops.count == 0) continue;
      text += fmt::format("    {:<18} {} ops, {}\n", to_string(static_cast<KernelKind>(kind)), ops.count,
                          format_duration(ops.duration_ns));
    }
  }
  if (summary.step_count > 0) text += fmt::format("  steps          {}\n", summary.step_count);
  text += fmt::format("  compute        {}, gaps {}; {:.0f} % measured\n", format_duration(summary.all_ops.duration_ns),
                      format_duration(summary.gap_ns), 100 * summary.measured_share());
  if (summary.beside_ns > 0) {
    text += fmt::format("  beside it      {} of communication\n", format_duration(summary.beside_ns));
  }
  text += fmt::format("  tensors        {}, {}\n", summary.all_tensors.count, format_bytes(summary.all_tensors.bytes));
  for (int role = 0; role < role_count; ++role) {
    const TensorTotal& tensors = summary.tensors[static_cast<std::size_t>(role)];
    if (tensors.count == 0) continue;
    text += fmt::format("    {:<16} {}, {}\n", to_string(static_cast<Role>(role)), tensors.count,
                        format_bytes(tensors.bytes));
    const TensorTotal& of_step = summary.gradients_of_step;
    if (static_cast<Role>(role) == Role::gradient && of_step.count > 0 && of_step.count < tensors.count) {
      text += fmt::format("      of the step    {}, {}; the others are of activations\n", of_step.count,
                          format_bytes(of_step.bytes));
    }
  }
  text += fmt::format("  persistent     {}, {}\n", summary.persistent.count, format_bytes(summary.persistent.bytes));
  text += fmt::format("  peak demand    {}\n", op_bytes_text(trace, summary.peak_demand.bytes, summary.peak_demand.op));
  text += fmt::format("  needs at least {}\n",
                      op_bytes_text(trace, summary.gpu_working_set.bytes, summary.gpu_working_set.op));
  return text;
}

}  // namespace

std::unique_ptr<Question> info_question() {
  auto question = std::make_unique<Question>("info");
  question->help = {
      .summary = "What is in a trace",
      .json = "The same as JSON",
      .footer =
          "Ops by phase and (if the trace has kernels) by kernel, tensors by role, the bytes alive at once, and the "
          "least GPU memory with which it can run.\n\n"
          "Examples:\n"
          "  tencache info step.trace.jsonl.zst\n"
          "  tencache info step.trace.jsonl.zst --json"};
  auto word = std::make_shared<std::string>();
  question->options.word("TRACE", *word, "Trace file").needed();
  question->ask = [word, given = question->options.traces()]() -> Answered {
    const auto found = given->find(*word);
    const bool is_file = found == given->end();
    const auto trace = is_file ? std::make_shared<const Trace>(read_trace(*word)) : found->second.trace;
    const auto summary = std::make_shared<const TraceSummary>(summarize(*trace));
    return {.json =
                [word, trace, summary, sha256 = is_file ? std::string() : found->second.sha256] {
                  return info_json(*word, sha256.empty() ? sha256_of_file(*word) : sha256, *trace, *summary);
                },
            .text = [word, trace, summary] { return info_text(*word, *trace, *summary); }};
  };
  return question;
}

}  // namespace tencache
