// `tencache generate`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/command_line.h"
#include "cli/console.h"
#include "configs/generate_settings.h"
#include "configs/kernel_yaml.h"
#include "traces/file/output_files.h"
#include "traces/file/trace_file.h"
#include "traces/generate/generate.h"
#include "traces/summary.h"

namespace tencache {
namespace {

std::string summary_text(const std::string& output, const GenerateOptions& options, const Trace& trace,
                         const TraceSummary& summary, std::uint64_t parameters) {
  const std::uint64_t ranks = summary.rank_count;
  std::string text = fmt::format("{}: {}, {:.3f} billion parameters\n", output, options.model.name,
                                 static_cast<double>(parameters) * 1e-9);
  text += fmt::format("  ops        {} of {} rank{}\n", trace.ops.size(), ranks, ranks == 1 ? "" : "s");
  text += fmt::format("  tensors    {}, {}\n", trace.tensors.size(), format_bytes(summary.all_tensors.bytes));
  for (int role = 0; role < role_count; ++role) {
    const TensorTotal& tensors = summary.tensors[static_cast<std::size_t>(role)];
    if (tensors.count == 0) continue;
    text += fmt::format("    {:<16} {}, {}\n", to_string(static_cast<Role>(role)), tensors.count,
                        format_bytes(tensors.bytes));
  }
  const char* const unit = options.generation ? "block" : options.forward_only ? "forward pass" : "step";
  const auto mean = [ranks](Nanoseconds sum) { return format_duration(sum / static_cast<Nanoseconds>(ranks)); };
  text += fmt::format("  modelled   {} a {} on {}{}, with unlimited memory\n",
                      mean(summary.all_ops.duration_ns - summary.beside_ns + summary.gap_ns), unit, options.gpu.name,
                      ranks == 1 ? "" : " (mean over ranks, without waiting)");
  if (summary.beside_ns > 0) text += fmt::format("  beside     {} of communication\n", mean(summary.beside_ns));
  if (const std::string note = calibration_note(options.gpu.kernels); !note.empty()) text += "  " + note + "\n";
  return text;
}

struct GenerateArguments {
  GenerateSettings settings;
  std::string output;
  bool json = false;
};

ExitCode run_generate(const GenerateArguments& arguments) {
  const auto model = std::ranges::find(arguments.settings, "model", &GenerateSettings::value_type::first);
  check_output("--output", arguments.output, {model->second});
  GenerateOptions options = parse_generate_settings(arguments.settings);
  Trace trace;
  {
    ProgressLine progress;
    auto shown = std::chrono::steady_clock::now();
    options.progress = [&](double share) {
      const auto now = std::chrono::steady_clock::now();
      if (now - shown < std::chrono::milliseconds(100)) return;
      shown = now;
      progress.show(fmt::format("generating {:3.0f} %", 100 * share));
    };
    trace = generate(options);
    progress.show(fmt::format("writing {} ops to {}", trace.ops.size(), arguments.output));
    write_trace(trace, arguments.output);
  }
  const TraceSummary summary = summarize(trace);
  const std::uint64_t parameters = parameter_count(options.model, options.head);
  if (arguments.json) {
    Json by_role = Json::object();
    for (int role = 0; role < role_count; ++role) {
      const TensorTotal& tensors = summary.tensors[static_cast<std::size_t>(role)];
      if (tensors.count == 0 && static_cast<Role>(role) > Role::workspace) continue;  // roles of inference only
      by_role[std::string(to_string(static_cast<Role>(role)))] = {{"count", tensors.count}, {"bytes", tensors.bytes}};
    }
    print_json({{"trace", arguments.output},
                {"sha256", sha256_of_file(arguments.output)},
                {"model", options.model.name},
                {"parameters", parameters},
                {"ops", trace.ops.size()},
                {"ranks", summary.rank_count},
                {"tensors", {{"count", trace.tensors.size()}, {"by_role", std::move(by_role)}}},
                {"flops", summary.flops},
                {"compute_seconds", to_seconds(summary.all_ops.duration_ns)},
                {"beside_seconds", to_seconds(summary.beside_ns)},
                {"gap_seconds", to_seconds(summary.gap_ns)}});
  } else {
    print(summary_text(arguments.output, options, trace, summary, parameters));
  }
  return ExitCode::done;
}

// All but where the trace goes and how that is reported.
void add_options(CLI::App& command, GenerateSettings& settings) {
  for (const GenerateOption& described : generate_options()) {
    const std::string name = described.name;
    CLI::Option* option = nullptr;
    if (described.type == GenerateOption::Type::flag) {
      option = command.add_flag_callback(
          "--" + name, [name, &settings] { settings.emplace_back(name, "true"); }, described.help);
    } else {
      option = command.add_option_function<std::string>(
          "--" + name, [name, &settings](const std::string& value) { settings.emplace_back(name, value); },
          described.help);
    }
    option->required(described.required)->check([&described](const std::string& text) {
      return refused_text(described, text);
    });
    if (described.type == GenerateOption::Type::whole) option->type_name("INT");
    if (described.type == GenerateOption::Type::real) option->type_name("FLOAT");
    if (*described.standard != '\0') option->default_str(described.standard);
  }
}

}  // namespace

void add_generate_command(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("generate", "Make a trace from a model's description and modelled kernel times");
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateArguments& a = *arguments;
  add_options(*command, a.settings);
  refuse_empty(command->add_option("--output,-o", a.output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)"))
      ->required();
  command->add_flag("--json", a.json, "What was generated as JSON");
  command->footer(
      "What is emitted and where the figures come from: docs/workloads.md.\n\nExamples:\n"
      "  tencache generate --model opt-6.7b --batch 16 --seq 75 --head classification --precision fp16 --gpu l40s \\\n"
      "      -o opt.trace.jsonl.zst\n"
      "  tencache generate --model llama-3-8b --batch 32 --micro-batches 8 --seq 2048 --recompute block --gpu a100-80g "
      "\\\n"
      "      -o llama.trace.jsonl.zst\n"
      "  tencache generate --model llama-3-8b --batch 8 --seq 1024 --lora-rank 16 --quantise 4 --gpu l4 \\\n"
      "      -o qlora.trace.jsonl.zst");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run_generate(*arguments); }; });
}

}  // namespace tencache
