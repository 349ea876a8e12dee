#include "cli/training_report.h"

#include <fmt/format.h>

#include <utility>

namespace tencache {
namespace {

// What a prediction is compared with: the median step from the third on. The steps before run without the schedule.
std::optional<double> comparable_seconds(const TrainingResult& training) {
  if (training.step_ns.size() <= 2) return std::nullopt;
  return to_seconds(training.median_step_ns());
}

// Absent: predicted not to fit.
std::optional<double> predicted_seconds(const Prediction& prediction) {
  const Json& seconds = prediction.result["iteration_seconds"];
  return seconds.is_number() ? std::optional(seconds.get<double>()) : std::nullopt;
}

// `measured`: the run's result, null where there is none.
Json prediction_json(const Prediction& prediction, const TrainingResult& training, const Json& measured) {
  Json json = {{"file", prediction.file},
               {"sha256", prediction.sha256},
               {"iteration_seconds", nullptr},
               {"measured_seconds", nullptr},
               {"error", nullptr},
               {"comparison", nullptr}};
  const std::optional<double> seconds = comparable_seconds(training), predicted = predicted_seconds(prediction);
  if (seconds) json["measured_seconds"] = *seconds;
  if (predicted) {
    json["iteration_seconds"] = *predicted;
    if (seconds) json["error"] = *predicted / *seconds - 1;
    if (seconds && measured.is_object()) {
      json["comparison"] = comparison_json(prediction.result, measured, seconds);
    }
  }
  json["result"] = prediction.result;
  return json;
}

std::string prediction_text(const Prediction& prediction, const TrainingResult& training, const Json& measured) {
  const std::optional<double> predicted = predicted_seconds(prediction);
  if (!predicted) return "predicted: does not fit\n";
  const std::optional<double> seconds = comparable_seconds(training);
  if (!seconds) {
    return fmt::format("predicted {}; steps are comparable from the third on, so none was\n",
                       format_seconds(*predicted));
  }
  return comparison_text(comparison_json(prediction.result, measured, seconds)) +
         "  the iteration measured is the median step from the third on, all else means over the second half\n";
}

double evictions_per_step(const RunResult& result) {
  return static_cast<double>(result.window.evictions) / static_cast<double>(result.period);
}

// Of the recording that the prediction was made from, the median of many steps; else of this run's own recorded step,
// of which a run of less than two steps has none.
References references_of_run(const Workload& workload, const Prediction* prediction) {
  const auto predicted = [&](const char* key) {
    return prediction != nullptr && prediction->result.contains(key) && prediction->result[key].is_number();
  };
  if (predicted("ideal_seconds") && predicted("bound_seconds")) {
    return {.ideal_seconds = prediction->result["ideal_seconds"].get<double>(),
            .bound_seconds = prediction->result["bound_seconds"].get<double>(),
            .bound_term = prediction->result.value("bound_term", "compute")};
  }
  return workload.trace->ops.empty() ? References{} : references_of(workload);
}

Json training_json(const TrainingResult& training) {
  Json seconds = Json::array();
  for (const Nanoseconds step_ns : training.step_ns) seconds.push_back(to_seconds(step_ns));
  return {{"step_seconds", std::move(seconds)},
          {"median_step_seconds", to_seconds(training.median_step_ns())},
          {"mean_step_seconds", to_seconds(training.mean_step_ns())}};
}

std::string steps_text(const TrainingResult& training) {
  const std::size_t steps = training.step_ns.size();
  return fmt::format("\nstep time: median {}, mean {}{}\n", format_seconds(to_seconds(training.median_step_ns())),
                     format_seconds(to_seconds(training.mean_step_ns())),
                     steps > 2 ? fmt::format(" (steps 3 to {})", steps) : std::string());
}

}  // namespace

Json paged_training_json(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                         const Prediction* prediction) {
  Json json = result_json(workload, outcome, references_of_run(workload, prediction));
  json["training"] = training_json(paged.training);
  json["memory"] = {{"peak_live_bytes", paged.peak_live_bytes},
                    {"largest_op", paged.largest_op},
                    {"largest_op_bytes", paged.largest_op_bytes},
                    {"evictions_per_step", evictions_per_step(outcome.result)},
                    {"schedule_deviations", paged.deviations}};
  if (prediction != nullptr) json["prediction"] = prediction_json(*prediction, paged.training, json);
  return json;
}

std::string paged_training_text(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                                const Prediction* prediction) {
  const References references = references_of_run(workload, prediction);
  std::string text = steps_text(paged.training) + "\n" + result_text(workload, outcome, references);
  text += fmt::format("  evictions      {:.1f} a step\n", evictions_per_step(outcome.result));
  text += fmt::format("  needs          {} at once; the largest op, {}, {}\n", format_bytes(paged.peak_live_bytes),
                      paged.largest_op, format_bytes(paged.largest_op_bytes));
  if (paged.deviations != 0) {
    text +=
        fmt::format("  left the recorded schedule {} times, first in {}\n", paged.deviations, paged.first_deviation);
  }
  if (prediction != nullptr) {
    text += "\n" + prediction_text(*prediction, paged.training, result_json(workload, outcome, references));
  }
  return text;
}

}  // namespace tencache
