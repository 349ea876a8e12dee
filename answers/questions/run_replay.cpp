#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "answers/measured.h"
#include "answers/questions.h"
#include "answers/timeline/chrome_trace.h"
#include "configs/tool_clock.h"
#include "core/remark.h"
#include "executor/choose_device.h"
#include "executor/room.h"
#include "studies/faults.h"
#include "studies/measured.h"
#include "studies/scenario_options.h"
#include "traces/file/output_files.h"
#include "traces/transform/edits.h"

namespace tencache {
namespace {

constexpr std::uint64_t default_iterations = 6;

struct RunReplayRequest {
  Scenario scenario{.trace = {.scale_bytes = "1", .scale_time = "1"},
                    .hardware = {.device = "auto", .verify = "pages"}};
  std::vector<std::string> directories;
  std::string timeline, prediction;
  bool predict = false;
};

// What a tier can come to hold: every tensor, in whole pages.
Bytes most_demand(const Trace& trace) {
  Bytes demand = 0;
  for (const Tensor& tensor : trace.tensors) demand += tensor.bytes + 4 * KiB;
  return demand;
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

// `file`: the timeline's, or null.
MeasuredReplay measure(const Workload& workload, const std::shared_ptr<Accelerator>& accelerator,
                       const std::optional<FaultPlan>& faults, const Prediction* prediction, GrowingTimeline* file) {
  const std::int64_t start = tool_clock_ns();
  ReplayPlan plan = plan_replay(workload, prediction != nullptr ? &prediction->outcome : nullptr);
  Timeline timeline;
  if (file != nullptr) {
    file->follow({"measured: " + workload.scenario.policy.name, &timeline, &workload.machine, &plan.program.trace});
  }
  ProgressLine progress;
  MeasuredReplay measured = measure_replay(
      workload, plan, accelerator, faults, file != nullptr ? &timeline : nullptr, [&](std::uint64_t iteration) {
        progress.show(fmt::format("iteration {} of {}", iteration, workload.scenario.iterations));
        if (file != nullptr) file->append();
      });
  if (file != nullptr) file->end();
  measured.outcome.seconds = seconds_since(start);
  return measured;
}

ReplayedAnswer replayed_answer(const Workload& workload, const MeasuredReplay& measured, const Prediction* prediction) {
  const References references = prediction != nullptr ? prediction->references : references_of(workload);
  ReplayedAnswer answer;
  static_cast<ResultAnswer&>(answer) = result_answer(workload, measured.outcome, references);
  answer.measured = true;
  answer.page_locking_seconds = {};  // the machine file's
  answer.scale_bytes = workload.scenario.trace.scale_bytes;
  answer.scale_time = workload.scenario.trace.scale_time;
  const ReplayCounts& counts = measured.counts;
  answer.verification = {counts.verified_tensors, counts.corrupted_tensors, counts.first_corruption};
  answer.late_ops = {counts.late_ops, to_seconds(counts.late_ns)};
  for (const auto& [tier, mapping] : measured.mapping) {
    answer.mapping.emplace_back(tier, MappingCost{mapping.maps, mapping.unmaps, mapping.mapped_bytes, mapping.extents,
                                                  to_seconds(mapping.map_ns), to_seconds(mapping.unmap_ns)});
  }
  answer.host = measured.host;
  answer.text = "measured: " + result_text(workload, measured.outcome, references, Ran::measured);
  if (prediction != nullptr) {
    answer.prediction.emplace(predicted_result(*prediction, compare_results(prediction->result, answer)));
    answer.predicted_text = "predicted: " + result_text(workload, prediction->outcome, references);
  }
  return answer;
}

Answered run_replay(RunReplayRequest request) {
  const TraceChoice& trace = request.scenario.trace;
  const PolicyChoice& policy = request.scenario.policy;
  make_policy(policy.name, policy.settings);  // complains about names before anything is read or run
  const double scale_bytes = parse_scale("--scale-bytes", trace.scale_bytes);
  const double scale_time = parse_scale("--scale-time", trace.scale_time);
  const bool predicting = request.predict || !request.prediction.empty();
  if (predicting && request.prediction.empty() && !request.timeline.empty()) {
    request.prediction = request.timeline + ".prediction.json";
  }
  std::vector<std::string> others = input_files(request.scenario);
  check_output("--timeline", request.timeline, others);
  others.push_back(request.timeline);
  check_output("--prediction", request.prediction, others);
  if (request.scenario.iterations == 0) request.scenario.iterations = default_iterations;
  Workload workload = load_workload(request.scenario);
  if (scale_bytes != 1 || scale_time != 1) {
    remark(fmt::format("the trace's bytes are scaled by {}, its times by {}", trace.scale_bytes, trace.scale_time));
  }
  const std::shared_ptr<Accelerator> accelerator =
      place_on_this_computer(workload.scenario, workload.machine, request.directories, workload.trace.get());
  const std::optional<FaultPlan> faults = announce_faults(workload.scenario, workload.machine);
  state_room(workload.machine, most_demand(*workload.trace), "--scale-bytes, --gpu-memory or --cpu-memory",
             accelerator.get());

  std::optional<GrowingTimeline> timeline;
  if (!request.timeline.empty()) timeline.emplace(request.timeline);
  Timeline predicted;
  std::optional<Prediction> prediction;
  if (predicting) prediction = predict(workload, request.prediction, timeline ? &predicted : nullptr);
  const Prediction* const given = prediction ? &*prediction : nullptr;
  announce_writes(workload, given);
  if (!predicted.spans.empty()) {
    timeline->put({"predicted: " + policy.name, &predicted, &workload.machine, &prediction->outcome.program.trace});
  }
  const MeasuredReplay measured = measure(workload, accelerator, faults, given, timeline ? &*timeline : nullptr);
  if (!measured.outcome.result.fits && accelerator != nullptr &&
      workload.machine.tiers.front().allocator == AllocatorKind::movable) {
    remark("it may fit with --gpu-allocator exact, where parts of tensors may lie apart");
  }
  const bool good = measured.outcome.result.fits && measured.counts.corrupted_tensors == 0;
  return answered(replayed_answer(workload, measured, given), good, nullptr);
}

}  // namespace

std::unique_ptr<Question> run_replay_question() {
  auto question = std::make_unique<Question>("run replay");
  question->help = {
      .summary = "Replay a trace on this computer's GPU, memory and files, and verify every tensor",
      .json = "The measured result as JSON",
      .footer =
          "Without a GPU ordinary memory stands in for its memory; links are slowed down to the machine's bandwidths.\n"
          "On a GPU the defaults are --gpu-allocator movable and --run-ahead 256: memory is mapped once, tensors move\n"
          "in it, and the host is ahead of the GPU. Its links are not slowed down then; with --limit or --faults each\n"
          "op is waited for. --gpu-allocator exact maps memory chunk by chunk and waits for each op.\n"
          "Starting an op costs this computer tens of microseconds, which --scale-time does not scale: where it "
          "leaves\n"
          "ops not much longer than that, the measured time is mostly this cost.\n"
          "Exit code 1: it does not fit, or a tensor came back corrupted.\n\n"
          "Examples:\n"
          "  tencache run replay step.trace.jsonl.zst -m small-host -p on-demand --predict\n"
          "  tencache run replay gpt.trace.jsonl.zst -m small-host -p on-demand --scale-bytes 1/2 --scale-time 1/2 "
          "--gpu-memory 200MiB --timeline t.json"};
  auto request = std::make_shared<RunReplayRequest>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  add_price_options(options, request->scenario.prices);
  add_policy_options(options, request->scenario.policy);
  options.find("--iterations")->help =
      fmt::format("Iterations, the second half of which is the result (default {})", default_iterations);
  options.list("--directory", request->directories,
               "Folder for the files of NVMe tiers, any number of times (default: the machine's, else /var/tmp)");
  options.word("--scale-bytes", request->scenario.trace.scale_bytes,
               "Multiply the trace's bytes by this, such as 1/1024, so that a large one fits");
  options.word("--scale-time", request->scenario.trace.scale_time,
               "Multiply the trace's durations by this, such as 1/128 or 0 (no computing)");
  options
      .text("--verify", request->scenario.hardware.verify,
            "What ops write and check of their tensors: stamps (cheapest), pages (all written, a word a page "
            "checked), words (everything)")
      .one_of({"stamps", "pages", "words"});
  options
      .text("--device", request->scenario.hardware.device,
            "Where the GPU's memory lies: cuda (a GPU), host (ordinary memory stands in), auto (a GPU where there "
            "is one with enough memory)")
      .one_of(device_names());
  options.flag("--predict", request->predict, "Simulate the same first, and report how far the prediction was off");
  options.word("--prediction", request->prediction, "Write the prediction to this file; implies --predict")
      .without("--faults");
  add_faults_option(options, request->scenario.faults).without("--predict");
  options.word("--timeline", request->timeline,
               "Write predicted and measured timelines as they happen, for `tencache gui F` and "
               "https://ui.perfetto.dev");
  question->ask = [request] { return run_replay(*request); };
  return question;
}

}  // namespace tencache
