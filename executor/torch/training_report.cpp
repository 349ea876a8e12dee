#include "executor/torch/training_report.h"

#include <fmt/format.h>

#include <utility>

#include "cli/prediction.h"
#include "cli/report.h"
#include "core/error.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

// What a prediction is compared with: the median step from the third on. The steps before run without the schedule.
std::optional<double> comparable_seconds(const TrainingResult& training) {
  if (training.step_ns.size() <= 2) return std::nullopt;
  return to_seconds(training.median_step_ns());
}

// `measured`: the run's result, null where there is none.
Json prediction_json(const GivenPrediction& prediction, const TrainingResult& training, const Json& measured) {
  Json json = {{"file", prediction.file},
               {"sha256", prediction.sha256},
               {"iteration_seconds", nullptr},
               {"measured_seconds", nullptr},
               {"error", nullptr},
               {"comparison", nullptr}};
  const std::optional<double> seconds = comparable_seconds(training);
  if (seconds) json["measured_seconds"] = *seconds;
  if (prediction.iteration_seconds) {
    json["iteration_seconds"] = *prediction.iteration_seconds;
    if (seconds) json["error"] = *prediction.iteration_seconds / *seconds - 1;
    if (seconds && measured.is_object()) {
      json["comparison"] = comparison_json(prediction.result, measured, seconds);
    }
  }
  json["result"] = prediction.result;
  return json;
}

std::string prediction_text(const GivenPrediction& prediction, const TrainingResult& training, const Json& measured) {
  if (!prediction.iteration_seconds) return "predicted: does not fit\n";
  const std::optional<double> seconds = comparable_seconds(training);
  if (!seconds) {
    return fmt::format("predicted {}; steps are comparable from the third on, so none was\n",
                       format_seconds(*prediction.iteration_seconds));
  }
  return comparison_text(comparison_json(prediction.result, measured, seconds)) +
         "  the iteration measured is the median step from the third on, all else means over the second half\n";
}

double evictions_per_step(const RunResult& result) {
  return static_cast<double>(result.window.evictions) / static_cast<double>(result.period);
}

// Of the recording that the prediction was made from, the median of many steps; else of this run's own recorded step,
// of which a run of less than two steps has none.
References references_of_run(const Workload& workload, const std::optional<GivenPrediction>& prediction) {
  const auto predicted = [&](const char* key) {
    return prediction && prediction->result.contains(key) && prediction->result[key].is_number();
  };
  if (predicted("ideal_seconds") && predicted("bound_seconds")) {
    return {.ideal_seconds = prediction->result["ideal_seconds"].get<double>(),
            .bound_seconds = prediction->result["bound_seconds"].get<double>(),
            .bound_term = prediction->result.value("bound_term", "compute")};
  }
  return workload.trace.ops.empty() ? References{} : references_of(workload);
}

}  // namespace

GivenPrediction read_prediction(const std::string& file, const std::string& policy) {
  GivenPrediction prediction;
  prediction.file = file;
  const std::string text = read_file(file);
  prediction.sha256 = sha256_hex(text);
  prediction.result = Json::parse(text, nullptr, false);
  const Json& result = prediction.result;
  if (!result.is_object() || !result.contains("policy") || !result.contains("iteration_seconds")) {
    throw Error(file + ": no result of a simulation; write one with `tencache replay --json`");
  }
  if (result["policy"] != policy) {
    throw Error(file + ": is of policy " + result["policy"].dump() + ", not of " + policy);
  }
  if (result["iteration_seconds"].is_number()) prediction.iteration_seconds = result["iteration_seconds"].get<double>();
  return prediction;
}

Json training_json(const TrainingResult& training) {
  Json seconds = Json::array();
  for (const Nanoseconds step_ns : training.step_ns) seconds.push_back(to_seconds(step_ns));
  return {{"parameters", training.parameter_count},
          {"resumed_steps", training.resumed_steps},
          {"losses", training.losses},
          {"step_seconds", std::move(seconds)},
          {"median_step_seconds", to_seconds(training.median_step_ns())},
          {"mean_step_seconds", to_seconds(training.mean_step_ns())}};
}

std::string steps_text(const TrainingResult& training) {
  const std::size_t steps = training.step_ns.size();
  return fmt::format("\nstep time: median {}, mean {}{}\n", format_seconds(to_seconds(training.median_step_ns())),
                     format_seconds(to_seconds(training.mean_step_ns())),
                     steps > 2 ? fmt::format(" (steps 3 to {})", steps) : std::string());
}

Json paged_training_json(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                         const std::optional<GivenPrediction>& prediction, std::uint64_t seed) {
  Json json = result_json(workload, outcome, references_of_run(workload, prediction));
  json["manifest"]["seed"] = seed;
  json["training"] = training_json(paged.training);
  json["memory"] = {{"peak_live_bytes", paged.peak_live_bytes},
                    {"largest_op", paged.largest_op},
                    {"largest_op_bytes", paged.largest_op_bytes},
                    {"evictions_per_step", evictions_per_step(outcome.result)},
                    {"schedule_deviations", paged.deviations}};
  if (prediction) json["prediction"] = prediction_json(*prediction, paged.training, json);
  return json;
}

std::string paged_training_text(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                                const std::optional<GivenPrediction>& prediction) {
  const References references = references_of_run(workload, prediction);
  std::string text = steps_text(paged.training) + "\n" + result_text(workload, outcome, references);
  text += fmt::format("  evictions      {:.1f} a step\n", evictions_per_step(outcome.result));
  text += fmt::format("  needs          {} at once; the largest op, {}, {}\n", format_bytes(paged.peak_live_bytes),
                      paged.largest_op, format_bytes(paged.largest_op_bytes));
  if (paged.deviations != 0) {
    text +=
        fmt::format("  left the recorded schedule {} times, first in {}\n", paged.deviations, paged.first_deviation);
  }
  if (prediction) {
    text += "\n" + prediction_text(*prediction, paged.training, result_json(workload, outcome, references));
  }
  return text;
}

Json misfit_json(const Workload& workload, const Outcome& outcome, const TrainingResult& training,
                 const std::optional<GivenPrediction>& prediction, std::uint64_t seed) {
  const References references = references_of_run(workload, prediction);
  Json json = result_json(workload, outcome, references);
  if (references.bound_seconds <= 0) {
    for (const char* key : {"ideal_seconds", "bound_seconds", "bound_term"}) json[key] = nullptr;
  }
  if (workload.trace_sha256.empty()) json["manifest"]["hashes"]["trace"] = nullptr;
  json["manifest"]["seed"] = seed;
  json["training"] = training_json(training);
  json["simulated_events"] = nullptr;
  json["timing"]["load_seconds"] = nullptr;
  json["training"]["parameters"] = nullptr;
  if (training.step_ns.empty()) {
    for (const char* key : {"median_step_seconds", "mean_step_seconds"}) json["training"][key] = nullptr;
  }
  json["memory"] = {{"peak_live_bytes", nullptr},
                    {"largest_op", nullptr},
                    {"largest_op_bytes", nullptr},
                    {"evictions_per_step", nullptr},
                    {"schedule_deviations", nullptr}};
  if (prediction) json["prediction"] = prediction_json(*prediction, training, nullptr);
  return json;
}

}  // namespace tencache
