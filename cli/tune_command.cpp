// `tencache tune`: the best knobs of a policy.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>

#include "answers/tune.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/deepspeed_config.h"
#include "configs/fsdp_config.h"
#include "configs/load_policy_library.h"
#include "policies/registry.h"
#include "studies/deepspeed_memory.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"
#include "traces/transform/fold_updates.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

struct TuneArguments {
  TuneRequest request;
  std::string jitter, tie = "0.5%";
  std::string csv;
  std::string deepspeed, fsdp, accelerate;
  std::string pinned_limit;
  bool json = false;
  Json command;  // for the manifest
};

// "5%" or "0.05".
double parse_share(const std::string& option, const std::string& text) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const bool percent = end != last && *end == '%' && end + 1 == last;
  if (error != std::errc() || (end != last && !percent) || !(value >= 0) || !((percent ? value / 100 : value) < 1)) {
    throw Error(option + " " + text + ": write a share below 1, such as 5% or 0.05");
  }
  return percent ? value / 100 : value;
}

TrainingShape shape_of(const Workload& workload) {
  TrainingShape shape;
  const TraceHeader& header = workload.trace->header;
  // These files say what is stored; fp8 is switched on in the program.
  shape.precision = header.precision == "fp8" ? "bf16" : header.precision;
  shape.ranks = rank_count(*workload.trace);
  shape.shards = shards_of(*workload.trace);
  shape.data_parallel = data_parallel_ranks(*workload.trace);
  for (const Tier& tier : workload.machine.tiers) shape.pageable = shape.pageable || tier.name == "pageable";
  const std::string micro_batches = " --micro-batches ";
  if (const std::size_t at = header.recorded_by.find(micro_batches); at != std::string::npos) {
    const std::string& made = header.recorded_by;
    std::from_chars(made.data() + at + micro_batches.size(), made.data() + made.size(), shape.accumulation);
  }
  const std::uint64_t parts = std::max<std::uint64_t>(1, shape.accumulation) * shape.data_parallel;
  shape.micro_batch = header.batch % parts == 0 ? header.batch / parts : 0;
  return shape;
}

// How Accelerate's YAML names DeepSpeed's file. Accelerate takes the name relative to where it is started, others
// relative to the YAML: only a YAML that is started at may say it relatively.
std::string deepspeed_file_of(const TuneArguments& arguments) {
  const std::filesystem::path yaml = arguments.accelerate, file = arguments.deepspeed;
  if (file.empty() || !yaml.has_parent_path()) return file.string();
  return std::filesystem::absolute(file).lexically_normal().string();
}

// Of the first workload for which it would not do; empty: none.
std::string obstacle_to_pinning(const TuneArguments& arguments, const Tuned& tuned, const Settings& resolved) {
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
    const auto memory = deepspeed_memory(tuned.request.policy, resolved, tuned.models[w]);
    const std::size_t ranks = rank_count(*tuned.workloads[w].trace);
    const auto limit = parse_pinned_limit(arguments.pinned_limit, tuned.machine(), ranks);
    std::string why =
        memory ? why_not_pinned(*memory, tuned.machine(), limit ? std::optional(*limit / ranks) : std::nullopt) : "";
    if (!why.empty()) return why;
  }
  return "";
}

// Writes what was asked for; what its format cannot say goes to stderr.
void write_configurations(const TuneArguments& arguments, const Tuned& tuned, const DeepSpeedConfig* start) {
  const std::string& policy = tuned.request.policy;
  const Settings resolved = tuned.resolved(tuned.best());
  const Workload& workload = tuned.workloads.front();
  TrainingShape shape = shape_of(workload);
  shape.why_not_pinned = obstacle_to_pinning(arguments, tuned, resolved);
  const auto write = [](const std::string& file, const WrittenConfig& written) {
    write_file(file, written.text);
    for (const std::string& text : written.remarks) remark(fmt::format("{}: {}", file, text));
  };
  if (!arguments.deepspeed.empty()) {
    write(arguments.deepspeed,
          write_deepspeed_config(policy, resolved, shape, start == nullptr ? nullptr : start->document));
  }
  if (!arguments.fsdp.empty()) {
    write(arguments.fsdp, write_fsdp_config(policy, resolved, shape, layer_shape(*workload.trace)));
  }
  if (!arguments.accelerate.empty()) {
    write(arguments.accelerate,
          write_accelerate_config(policy, resolved, shape, layer_shape(*workload.trace), deepspeed_file_of(arguments)));
  }
}

// What cannot be written is an error before anything runs.
void check_configurations(const TuneArguments& arguments, const std::string& policy) {
  Settings defaults;
  for (const PolicyInfo& info : list_policies()) {
    if (info.name != policy) continue;
    for (const Options::Info& option : info.options) defaults[option.name] = option.default_value;
  }
  if (!arguments.deepspeed.empty()) write_deepspeed_config(policy, defaults, {});
  if (!arguments.fsdp.empty()) write_fsdp_config(policy, defaults, {}, {});
  if (!arguments.accelerate.empty()) write_accelerate_config(policy, defaults, {}, {}, "");
}

void check_outputs(const TuneArguments& arguments) {
  std::vector<std::string> others = input_files(arguments.request.scenario);
  for (const TraceChoice& trace : arguments.request.traces) others.push_back(trace.file);
  check_output("--deepspeed", arguments.deepspeed, others);
  others.insert(others.end(), {arguments.deepspeed, arguments.request.from_deepspeed});  // may be the same
  for (const auto& [option, path] :
       {std::pair{"--csv", arguments.csv}, {"--fsdp", arguments.fsdp}, {"--accelerate", arguments.accelerate}}) {
    check_output(option, path, others);
    others.push_back(path);
  }
}

std::optional<DeepSpeedConfig> start_of(TuneRequest& request) {
  if (request.from_deepspeed.empty()) return std::nullopt;
  request.from_deepspeed_sha256 = sha256_of_file(request.from_deepspeed);  // --deepspeed may write the same file
  const Scenario first = workloads_of(request).front();
  const std::string& file = first.trace.found_at.empty() ? first.trace.file : first.trace.found_at;
  const bool is_file = first.trace.generate.empty() && first.trace.loaded == nullptr;
  const Trace trace = is_file ? read_trace_to_simulate(file) : *load_workload(first).trace;
  DeepSpeedConfig start = read_deepspeed_config(request.from_deepspeed, shards_of(trace));
  for (const std::string& warning : start.warnings) remark(request.from_deepspeed + ": " + warning);
  const std::string precision = trace.header.precision == "fp8" ? "bf16" : trace.header.precision;
  if (!start.precision.empty() && !precision.empty() && start.precision != precision) {
    remark(fmt::format("{}: trains in {}, the trace is of {}", request.from_deepspeed, start.precision, precision));
  }
  if (request.policy.empty()) request.policy = start.policy;
  if (request.policy != start.policy) {
    throw Error(request.from_deepspeed, 0,
                fmt::format("is of policy {}, not of {}; leave --policy out", start.policy, request.policy));
  }
  return start;
}

ExitCode tune_policy(const TuneArguments& arguments) {
  TuneRequest request = arguments.request;
  if (!arguments.jitter.empty()) request.jitter = parse_share("--jitter", arguments.jitter);
  request.tie = parse_share("--tie", arguments.tie);
  const std::optional<DeepSpeedConfig> start = start_of(request);
  if (request.policy.empty()) throw Error("--policy is missing; see tencache tune --help");
  check_configurations(arguments, request.policy);
  check_outputs(arguments);
  parse_pinned_limit(arguments.pinned_limit, load_machine(request.scenario.machine),
                     1);  // a mistake is said before the search
  const Tuned tuned = run_tune(request, start ? std::optional(start->settings) : std::nullopt);
  if (!arguments.csv.empty()) write_file(arguments.csv, table_csv(candidates_table(tuned)));
  if (tuned.best().fits) write_configurations(arguments, tuned, start ? &*start : nullptr);
  print_answer(tune_answer(tuned), arguments.json, arguments.command);
  if (!arguments.csv.empty()) {
    remark(fmt::format("{} candidates in {}", tuned.result.candidates.size(), arguments.csv));
  }
  return tuned.best().fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_tune_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("tune", "The best knobs of a policy, by simulations");
  auto arguments = std::make_shared<TuneArguments>();
  TuneRequest& request = arguments->request;
  command->add_option_function<std::vector<std::string>>(
      "TRACES",
      [&traces = request.traces](const std::vector<std::string>& words) {
        for (const std::string& word : words) choose_trace(traces.emplace_back(), word, given_traces());
      },
      "Trace files, or else or besides --model; of several workloads, the geometric mean of their times counts");
  add_machine_choice_options(*command, request.scenario);
  add_model_options(*command, request.scenario.trace.generate);
  add_iterations_option(*command, request.scenario);
  add_policy_library_option(*command);
  command->add_option("--policy,-p", request.policy,
                      "A name of `tencache policies` (default: what --from-deepspeed configures)");
  command
      ->add_option("--budget", request.budget,
                   "Simulations at most, but the defaults and the start of --from-deepspeed always run")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{10'000'000}));
  whole_number(command->add_option("--seed", request.seed, "Of the search and of --jitter"))->capture_default_str();
  command->add_option("--threads", request.threads, "Simulations at once (default: one a core)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1024}));
  refuse_empty(command->add_option("--jitter", arguments->jitter,
                                   "Judge each candidate on copies of the traces whose durations vary by this, such "
                                   "as 5%"));
  command->add_option("--copies", request.copies, "Such copies of each trace (default: 5)")
      ->check(CLI::Range(std::uint64_t{2}, std::uint64_t{1000}));
  refuse_empty(command->add_option("--tie", arguments->tie, "Times that are closer are a tie"))->capture_default_str();
  command->add_option("--set", request.settings, settings_help)->allow_extra_args(false)->take_all();
  command
      ->add_option(
          "--over", request.over,
          "A knob's values, KEY=a,b,c or KEY=lo..hi, any number of times (default: `tencache policies --json`)")
      ->allow_extra_args(false)
      ->take_all();
  refuse_empty(command->add_option("--csv", arguments->csv, "Write all candidates to this file"));
  refuse_empty(command->add_option("--from-deepspeed", request.from_deepspeed,
                                   "Start at this DeepSpeed configuration (JSON, or Accelerate's YAML)"));
  refuse_empty(command->add_option("--deepspeed", arguments->deepspeed,
                                   "Write the best settings as a DeepSpeed configuration, with the other keys of "
                                   "--from-deepspeed"));
  refuse_empty(command->add_option("--pinned-limit", arguments->pinned_limit,
                                   "--deepspeed writes pin_memory: false where all ranks would page-lock more than "
                                   "this: 64GiB, or 50% of CPU memory"));
  refuse_empty(command->add_option("--fsdp", arguments->fsdp, "The same for PyTorch's FSDP, as JSON"));
  refuse_empty(command->add_option("--accelerate", arguments->accelerate,
                                   "The same for Hugging Face Accelerate, as YAML; refers to the file of --deepspeed"));
  command->add_flag("--json", arguments->json, "The result as JSON");
  command->footer(
      "Tried are the values that `tencache policies --json` lists for each option with \"tuned\": true (tune_values); "
      "--set fixes one, --over\nlists others. The text says the best, the gain over the defaults, what each knob alone "
      "would change, and a `replay` command with the best\nsettings. Nothing is written but the files that are named: "
      "docs/tune.md. Exit code 1: nothing fits.\n\nExamples:\n"
      "  tencache tune step.trace.jsonl.zst --machine g5.xlarge --policy zero-infinity\n"
      "  tencache tune short.trace.jsonl.zst long.trace.jsonl.zst -m g5.xlarge -p 10cache --jitter 5%\n"
      "  tencache tune step.trace.jsonl.zst -m g5.xlarge -p layer-streaming --over buffers=2..6 --csv all.csv\n"
      "  tencache tune step.trace.jsonl.zst -m g5.xlarge --from-deepspeed ds.json --deepspeed tuned.json");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] { return tune_policy(*arguments); };
  });
}

}  // namespace tencache
