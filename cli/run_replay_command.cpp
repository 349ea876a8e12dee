#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "answers/prediction.h"
#include "answers/timeline/chrome_trace.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/questions.h"
#include "cli/workload_options.h"
#include "configs/tool_clock.h"
#include "executor/choose_device.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"
#include "executor/room.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "studies/faults.h"
#include "traces/file/output_files.h"
#include "traces/transform/lower.h"
#include "traces/transform/scale.h"

namespace tencache {
namespace {

constexpr std::uint64_t default_iterations = 6;

struct RunReplayArguments {
  Scenario scenario{.trace = {.scale_bytes = "1", .scale_time = "1"},
                    .hardware = {.device = "auto", .verify = "pages"}};
  std::vector<std::string> directories;
  std::string timeline;
  std::string prediction;
  bool predict = false;
  bool json = false;
};

// What a tier can come to hold: every tensor, in whole pages.
Bytes most_demand(const Trace& trace) {
  Bytes demand = 0;
  for (const Tensor& tensor : trace.tensors) demand += tensor.bytes + 4 * KiB;
  return demand;
}

ReplayOptions replay_options(const std::string& verify) {
  ReplayOptions options;
  options.check_everything = verify == "words";
  options.write_everything = verify != "stamps";
  return options;
}

struct Measurement {
  Outcome outcome;
  ReplayCounts counts;
  std::string summary;
  std::string machine;                                                 // how files are accessed, a line a tier
  std::vector<std::pair<std::string, ChunkMemoryStatistics>> mapping;  // of each tier of memory, by its name
};

// `lowered`: the program that was predicted; null: none was. `file`: the timeline's, which has the prediction; or null.
Measurement measure(const Workload& workload, const std::shared_ptr<Accelerator>& accelerator,
                    const std::optional<FaultPlan>& faults, const Program* lowered, GrowingTimeline* file) {
  const std::int64_t start = tool_clock_ns();
  Measurement measurement;
  MadePolicy made = make_policy(workload.scenario.policy.name, workload.scenario.policy.settings);
  Outcome& outcome = measurement.outcome;
  outcome.policy = workload.scenario.policy.name;
  outcome.options = std::move(made.options);
  prepare(*workload.trace, *made.policy, workload.machine, rehearse);  // as the prediction did
  outcome.program = lowered != nullptr ? *lowered : lower(*workload.trace, *made.policy, workload.machine);

  HostMachineOptions machine_options;
  const Layout layout = made.policy->layout(workload.machine, &outcome.program);
  machine_options.unlimited_gpu = layout.unlimited_gpu;
  for (const AllocatorSpec& allocator : layout.allocators) {
    machine_options.addressed.push_back(allocator.kind != AllocatorKind::exact);
  }
  machine_options.accelerator = accelerator;
  machine_options.faults = faults;
  const std::unique_ptr<ReplayKernels> kernels = accelerator != nullptr ? accelerator->replay_kernels() : nullptr;
  ReplayBodies bodies(outcome.program.trace, replay_options(workload.scenario.hardware.verify), kernels.get());
  HostMachine machine(workload.machine, bodies, machine_options);
  ProgressLine progress;
  EngineOptions options;
  options.rehearse = rehearse;
  Timeline timeline;
  if (file != nullptr) {
    options.timeline = &timeline;
    file->follow({"measured: " + outcome.policy, &timeline, &workload.machine, &outcome.program.trace});
  }
  options.on_iteration = [&](std::uint64_t iteration) {
    progress.show(fmt::format("iteration {} of {}", iteration, workload.scenario.iterations));
    if (file != nullptr) file->append();
  };
  Engine engine(workload.machine, machine, *made.policy, &outcome.program, std::move(options));
  naming_policy(outcome.policy, [&] { outcome.result = engine.run(limits_of(workload.scenario.iterations)); });
  if (file != nullptr) file->end();
  outcome.seconds = seconds_since(start);
  outcome.faults = machine.fault_counts();
  measurement.counts = bodies.counts();
  measurement.summary = bodies.summary();
  measurement.machine = machine.describe();
  for (TierId tier = 0; tier < workload.machine.tiers.size(); ++tier) {
    if (workload.machine.tiers[tier].kind == TierKind::nvme) continue;
    measurement.mapping.emplace_back(workload.machine.tiers[tier].name, machine.memory_statistics(tier));
  }
  return measurement;
}

// What giving chunks their memory cost over the whole run.
Json mapping_json(const Measurement& measurement) {
  Json json = Json::object();
  for (const auto& [tier, mapping] : measurement.mapping) {
    json[tier] = {{"maps", mapping.maps},
                  {"unmaps", mapping.unmaps},
                  {"bytes", mapping.mapped_bytes},
                  {"pieces", mapping.extents},
                  {"map_seconds", to_seconds(mapping.map_ns)},
                  {"unmap_seconds", to_seconds(mapping.unmap_ns)}};
  }
  return json;
}

Json measurement_json(const Workload& workload, const RunReplayArguments& arguments, const Measurement& measurement,
                      const References& references, const Prediction* prediction) {
  Json json = result_json(workload, measurement.outcome, references);
  json["measured"] = true;
  json["scale_bytes"] = workload.scenario.trace.scale_bytes;
  json["scale_time"] = workload.scenario.trace.scale_time;
  json["verification"] = {{"tensors", measurement.counts.verified_tensors},
                          {"corrupted", measurement.counts.corrupted_tensors},
                          {"first_corruption", measurement.counts.first_corruption}};
  json["late_ops"] = {{"count", measurement.counts.late_ops}, {"seconds", to_seconds(measurement.counts.late_ns)}};
  json["mapping"] = mapping_json(measurement);
  json["host"] = measurement.machine;
  if (prediction == nullptr) return json;
  const Json comparison = comparison_json(prediction->result, json);
  json["prediction"] = {{"file", arguments.prediction.empty() ? Json(nullptr) : Json(arguments.prediction)},
                        {"sha256", prediction->sha256},
                        {"iteration_seconds", prediction->result["iteration_seconds"]},
                        {"error", comparison.is_null() ? Json() : comparison["iteration_seconds"]["error"]},
                        {"comparison", comparison},
                        {"result", prediction->result}};
  return json;
}

std::string measurement_text(const Workload& workload, const Measurement& measurement, const References& references,
                             const Prediction* prediction) {
  std::string text = "measured: " + result_text(workload, measurement.outcome, references);
  text += fmt::format("  content        {}\n", measurement.summary);
  if (!measurement.counts.first_corruption.empty())
    text += fmt::format("                 {}\n", measurement.counts.first_corruption);
  if (measurement.counts.late_ops != 0) {
    text += fmt::format("  late           {} ops took longer than recorded, by {} in all\n",
                        measurement.counts.late_ops, format_duration(measurement.counts.late_ns));
  }
  for (const auto& [tier, mapping] : measurement.mapping) {
    if (mapping.maps == 0) continue;
    text += fmt::format(
        "  mapping {:<6} {} chunks in {:.2f} pieces each, {} a chunk; unmapping {}\n", tier, mapping.maps,
        static_cast<double>(mapping.extents) / static_cast<double>(mapping.maps),
        format_duration(mapping.map_ns / static_cast<Nanoseconds>(mapping.maps)),
        format_duration(mapping.unmap_ns / static_cast<Nanoseconds>(std::max<std::uint64_t>(1, mapping.unmaps))));
  }
  if (prediction == nullptr) return text;
  text += "\npredicted: " + result_text(workload, prediction->outcome, references) + "\n";
  return text +
         comparison_text(comparison_json(prediction->result, result_json(workload, measurement.outcome, references)));
}

// Colons between them.
std::string folders_of(const MachineSpec& machine) {
  std::string all;
  for (const Tier& tier : machine.tiers) {
    for (const std::string& directory : tier.directories) all += (all.empty() ? "" : ":") + directory;
  }
  return all;
}

// Before files are worn: what the run will write, after the prediction or, without one, a simulation made for this.
void announce_writes(const Workload& workload, const Prediction* prediction) {
  const auto of_files = [](const Tier& tier) { return tier.kind == TierKind::nvme; };
  if (std::ranges::none_of(workload.machine.tiers, of_files)) return;
  const PolicyChoice& policy = workload.scenario.policy;
  const RunResult expected = prediction != nullptr ? prediction->outcome.result
                                                   : simulate_policy(workload, policy.name, policy.settings).result;
  state_expected_writes(workload.machine, expected, workload.scenario.iterations);
}

ExitCode run_replay(RunReplayArguments arguments) {
  const TraceChoice& trace = arguments.scenario.trace;
  const PolicyChoice& policy = arguments.scenario.policy;
  make_policy(policy.name, policy.settings);  // complains about names before anything is read or run
  const double scale_bytes = parse_scale("--scale-bytes", trace.scale_bytes);
  const double scale_time = parse_scale("--scale-time", trace.scale_time);
  const bool predicting = arguments.predict || !arguments.prediction.empty();
  if (predicting && arguments.prediction.empty() && !arguments.timeline.empty()) {
    arguments.prediction = arguments.timeline + ".prediction.json";
  }
  std::vector<std::string> others = input_files(arguments.scenario);
  check_output("--timeline", arguments.timeline, others);
  others.push_back(arguments.timeline);
  check_output("--prediction", arguments.prediction, others);
  if (arguments.scenario.iterations == 0) arguments.scenario.iterations = default_iterations;
  Workload workload = load_workload(arguments.scenario);
  if (scale_bytes != 1 || scale_time != 1) {
    remark(fmt::format("the trace's bytes are scaled by {}, its times by {}", trace.scale_bytes, trace.scale_time));
  }
  const auto [device, accelerator] = choose_device(workload.scenario.hardware.device, workload.machine);
  workload.scenario.hardware.device = device;
  workload.machine = with_real_pages(workload.machine, accelerator.get());
  const std::optional<FaultPlan> faults = announce_faults(workload.scenario, workload.machine);
  choose_directories(workload.machine, arguments.directories);
  fit_to_disks(workload.machine);
  state_room(workload.machine, most_demand(*workload.trace), "--scale-bytes, --gpu-memory or --cpu-memory",
             accelerator.get());
  workload.scenario.hardware.directory = folders_of(workload.machine);

  std::optional<GrowingTimeline> timeline;
  if (!arguments.timeline.empty()) timeline.emplace(arguments.timeline);
  Timeline predicted;
  std::optional<Prediction> prediction;
  if (predicting) {
    TemporaryFile unnamed(".prediction.json");
    const std::string file = arguments.prediction.empty() ? unnamed.path() : arguments.prediction;
    prediction = predict(workload, file, timeline ? &predicted : nullptr);
  }
  const Prediction* given = prediction ? &*prediction : nullptr;
  announce_writes(workload, given);
  const References references = prediction ? prediction->references : references_of(workload);
  if (!predicted.spans.empty()) {
    timeline->put({"predicted: " + policy.name, &predicted, &workload.machine, &prediction->outcome.program.trace});
  }
  const Measurement measurement =
      measure(workload, accelerator, faults, prediction ? &prediction->outcome.program : nullptr,
              timeline ? &*timeline : nullptr);
  if (arguments.json) {
    print_json(measurement_json(workload, arguments, measurement, references, given));
  } else {
    print(measurement_text(workload, measurement, references, given));
  }
  const bool good = measurement.outcome.result.fits && measurement.counts.corrupted_tensors == 0;
  return good ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_run_replay_command(CLI::App& run, Command& chosen) {
  CLI::App* command =
      run.add_subcommand("replay", "Replay a trace on this computer's GPU, memory and files, and verify every tensor");
  auto arguments = std::make_shared<RunReplayArguments>();
  add_group(*command, [&](QuestionOptions& options) {
    add_workload_options(options, arguments->scenario);
    add_price_options(options, arguments->scenario.prices);
    add_policy_options(options, arguments->scenario.policy);
  });
  command->get_option("--iterations")
      ->description(fmt::format("Iterations, the second half of which is the result (default {})", default_iterations));
  command
      ->add_option("--directory", arguments->directories,
                   "Folder for the files of NVMe tiers, any number of times "
                   "(default: the machine's, else /var/tmp)")
      ->allow_extra_args(false)
      ->take_all();
  refuse_empty(command->add_option("--scale-bytes", arguments->scenario.trace.scale_bytes,
                                   "Multiply the trace's bytes by this, such as 1/1024, so that a large one fits"))
      ->capture_default_str();
  refuse_empty(command->add_option("--scale-time", arguments->scenario.trace.scale_time,
                                   "Multiply the trace's durations by this, such as 1/128 or 0 (no computing)"))
      ->capture_default_str();
  command
      ->add_option("--verify", arguments->scenario.hardware.verify,
                   "What ops write and check of their tensors: stamps (cheapest), pages (all written, a word a page "
                   "checked), words (everything)")
      ->check(CLI::IsMember({"stamps", "pages", "words"}))
      ->capture_default_str();
  add_device_option(*command, arguments->scenario.hardware.device, device_names());
  command->add_flag("--predict", arguments->predict,
                    "Simulate the same first, and report how far the prediction was off");
  refuse_empty(command->add_option("--prediction", arguments->prediction,
                                   "Write the prediction to this file; implies --predict"));
  add_faults_option(*command, arguments->scenario.faults)->excludes("--predict")->excludes("--prediction");
  refuse_empty(command->add_option("--timeline", arguments->timeline,
                                   "Write predicted and measured timelines as they happen, for `tencache gui F` and "
                                   "https://ui.perfetto.dev"));
  command->add_flag("--json", arguments->json, "The measured result as JSON");
  command->footer(
      "Without a GPU ordinary memory stands in for its memory; links are slowed down to the machine's bandwidths.\n"
      "Starting an op costs this computer tens of microseconds, which --scale-time does not scale: where it leaves\n"
      "ops not much longer than that, the measured time is mostly this cost.\n"
      "Exit code 1: it does not fit, or a tensor came back corrupted.\n\nExamples:\n"
      "  tencache run replay step.trace.jsonl.zst -m small-host -p on-demand --predict\n"
      "  tencache run replay gpt.trace.jsonl.zst -m small-host -p on-demand --scale-bytes 1/2 "
      "--scale-time 1/2 --gpu-memory 200MiB --timeline "
      "t.json");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run_replay(*arguments); }; });
}

}  // namespace tencache
