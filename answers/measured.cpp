#include "answers/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "answers/timeline/training_timeline.h"
#include "core/remark.h"
#include "core/reveal.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

ComparedFigure side_by_side(std::optional<double> predicted, std::optional<double> measured) {
  ComparedFigure figure{predicted, measured, {}};
  if (predicted && measured && *measured != 0) figure.error = *predicted / *measured - 1;
  return figure;
}

// What was predicted for several steps together, for one of them.
void take_a_step(ResultComparison& comparison, std::uint32_t steps) {
  const auto divide = [steps](ComparedFigure& figure) {
    if (figure.predicted) figure = side_by_side(*figure.predicted / steps, figure.measured);
  };
  for (ComparedFigure* const figure :
       {&comparison.iteration_seconds, &comparison.time_seconds.compute, &comparison.time_seconds.gaps}) {
    divide(*figure);
  }
  for (Named<ComparedFigure>* const figures :
       {&comparison.stall_seconds, &comparison.busy_seconds, &comparison.traffic_bytes}) {
    for (auto& [name, figure] : *figures) divide(figure);
  }
}

std::optional<double> as_number(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}
std::optional<double> as_number(double value) { return value; }
std::optional<double> as_number(Bytes value) { return static_cast<double>(value); }

// By the names that were predicted.
template <typename Value>
Named<ComparedFigure> side_by_side(const std::optional<Named<Value>>& predicted,
                                   const std::optional<Named<Value>>& measured) {
  Named<ComparedFigure> figures;
  const Named<Value> others = measured.value_or(Named<Value>());
  for (const auto& [name, value] : predicted.value_or(Named<Value>())) {
    const auto other = std::ranges::find(others, name, &Named<Value>::value_type::first);
    figures.emplace_back(
        name, side_by_side(as_number(value), other != others.end() ? as_number(other->second) : std::nullopt));
  }
  return figures;
}

// Of the recording that the prediction was made from, the median of many steps; else of this run's own recorded step,
// of which a run of less than two steps has none.
References references_of_run(const Workload& workload, const Prediction* prediction) {
  if (prediction != nullptr) {
    const auto& result = prediction->result;
    const std::uint32_t steps = repeated_steps(prediction->outcome.program.trace);
    References references{.ideal_seconds = result.ideal_seconds / steps,
                          .bound_seconds = result.bound_choice_seconds.value_or(result.bound_seconds) / steps,
                          .bound_term = result.bound_term};
    if (result.bound_choice_seconds) references.recorded_bound_seconds = result.bound_seconds / steps;
    return references;
  }
  return workload.trace->ops.empty() ? References{} : references_of(workload);
}

Document measured_document(const char* command, const ResultAnswer& answer) {
  return {.kind = command,
          .title = fmt::format("Measured: {} on {}, {}", answer.policy, answer.machine, answer.trace),
          .blocks = {}};
}

DocumentTable mapping_table(const Named<MappingCost>& mapping) {
  DocumentTable table{
      "mapping", "What giving chunks their memory cost", {"  mapping", "chunks", "pieces", "a chunk", "unmapping"}};
  for (const auto& [tier, cost] : mapping) {
    if (cost.maps == 0) continue;
    table.add({text_cell("  " + tier, tier), count_cell(cost.maps), count_cell(cost.pieces),
               seconds_cell(cost.map_seconds / static_cast<double>(cost.maps)),
               seconds_cell(cost.unmap_seconds / static_cast<double>(std::max<std::uint64_t>(1, cost.unmaps)))});
  }
  return table;
}

std::string prediction_text(const PredictedResult& prediction) {
  if (!prediction.iteration_seconds) return "predicted: does not fit\n";
  if (prediction.steps)
    return fmt::format(
        "  predicted is a mean of {} recorded steps; the iteration measured is the mean step from the "
        "third on, all else means over the second half\n",
        *prediction.steps);
  if (prediction.comparison)
    return "  the iteration measured is the median step from the third on, all else means over the second half\n";
  return fmt::format("predicted {}; steps are comparable from the third on, so none was\n",
                     format_seconds(*prediction.iteration_seconds));
}

}  // namespace

Prediction predict(const Workload& workload, const std::string& file, Timeline* timeline, Policy* in_place) {
  const PolicyChoice& policy = workload.scenario.policy;
  Prediction prediction;
  prediction.outcome =
      simulate_policy(workload, policy.name, policy.settings, {.timeline = timeline, .policy = in_place});
  prediction.references = references_of(workload);
  prediction.file = file;
  prediction.result = result_answer(workload, prediction.outcome, prediction.references);
  const std::string text = to_json_of(prediction.result).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  TemporaryFile unnamed(".prediction.json");
  const std::string& written = file.empty() ? unnamed.path() : file;
  write_file(written, text);
  prediction.sha256 = sha256_hex(text);
  remark(fmt::format("prediction: {}, sha256 {}", written, prediction.sha256));
  return prediction;
}

std::optional<ResultComparison> compare_results(const UntimedResult& predicted, const UntimedResult& measured,
                                                std::optional<double> measured_seconds) {
  if (!predicted.fits || !measured.fits) return std::nullopt;
  ResultComparison comparison;
  comparison.iteration_seconds =
      side_by_side(predicted.iteration_seconds, measured_seconds ? measured_seconds : measured.iteration_seconds);
  comparison.time_seconds = {side_by_side(predicted.compute_seconds, measured.compute_seconds),
                             side_by_side(predicted.gap_seconds, measured.gap_seconds)};
  for (const StallCause cause : all_causes) {
    const auto of = [&](const UntimedResult& result) {
      return result.stall_seconds ? std::optional((*result.stall_seconds)[cause]) : std::nullopt;
    };
    comparison.stall_seconds.emplace_back(to_string(cause), side_by_side(of(predicted), of(measured)));
  }
  comparison.busy_seconds = side_by_side(predicted.busy_seconds, measured.busy_seconds);
  comparison.traffic_bytes = side_by_side(predicted.traffic_bytes, measured.traffic_bytes);
  comparison.peak_bytes = side_by_side(predicted.peak_bytes, measured.peak_bytes);
  return comparison;
}

DocumentTable comparison_table(const ResultComparison& comparison) {
  DocumentTable table{
      "prediction.comparison",
      "Predicted against measured",
      {{"predicted against measured", Shown::everywhere, "of an iteration"}, "predicted", "measured", "error"}};
  const auto add = [&table](const std::string& label, const ComparedFigure& figure, bool bytes) {
    if (figure.predicted.value_or(0) == 0 && figure.measured.value_or(0) == 0) return;
    const auto cell = [bytes](std::optional<double> value) -> Cell {
      if (!value) return "-";
      return bytes ? bytes_cell(static_cast<Bytes>(*value)) : seconds_cell(*value);
    };
    Cell error = "-";
    if (figure.error) error = {fmt::format("{:+.1f} %", 100 * *figure.error), *figure.error, FigureUnit::share};
    table.add({text_cell("  " + label, label), cell(figure.predicted), cell(figure.measured), error});
  };
  add("iteration", comparison.iteration_seconds, false);
  add("compute", comparison.time_seconds.compute, false);
  add("gaps", comparison.time_seconds.gaps, false);
  for (const auto& [name, figure] : comparison.stall_seconds) add("waits for " + name, figure, false);
  for (const auto& [name, figure] : comparison.busy_seconds) add(name + " busy", figure, false);
  for (const auto& [name, figure] : comparison.traffic_bytes) add(name + " traffic", figure, true);
  for (const auto& [name, figure] : comparison.peak_bytes) add(name + " peak", figure, true);
  return table;
}

PredictedResult predicted_result(const Prediction& prediction, std::optional<ResultComparison> comparison) {
  PredictedResult predicted;
  if (!prediction.file.empty()) predicted.file = prediction.file;
  predicted.sha256 = prediction.sha256;
  predicted.iteration_seconds = prediction.result.iteration_seconds;
  if (comparison) predicted.error = comparison->iteration_seconds.error;
  predicted.comparison = std::move(comparison);
  predicted.result = prediction.result;
  return predicted;
}

Document document_of(const ReplayedAnswer& answer) {
  Document document = measured_document("run replay", answer);
  const Verification& verified = answer.verification;
  std::string facts =
      fmt::format("  content        {} tensors verified, {} corrupted{}\n", verified.tensors, verified.corrupted,
                  verified.first_corruption.empty() ? "" : "; first: " + verified.first_corruption);
  if (answer.late_ops.count != 0) {
    facts += fmt::format("  late           {} ops took longer than recorded, by {} in all\n", answer.late_ops.count,
                         format_seconds(answer.late_ops.seconds));
  }
  document.add_text(answer.text + facts);
  document.add_paragraph(facts);
  document.add_table(mapping_table(answer.mapping));
  if (!answer.prediction) return document;
  document.add_text("\n" + answer.predicted_text + "\n");
  if (answer.prediction->comparison) document.add_table(comparison_table(*answer.prediction->comparison));
  return document;
}

StepFigures step_figures(std::vector<double> step_seconds, double evictions_per_step) {
  StepFigures figures{.step_seconds = std::move(step_seconds), .evictions_per_step = evictions_per_step};
  const std::vector<double>& steps = figures.step_seconds;
  if (steps.empty()) return figures;
  std::vector<double> sorted(steps.begin() + (steps.size() > first_named_step ? first_named_step : 0), steps.end());
  figures.mean_step_seconds = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  std::ranges::sort(sorted);
  const std::size_t middle = sorted.size() / 2;
  figures.median_step_seconds = sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return figures;
}

LiveAnswer live_answer(const Workload& workload, const Outcome& outcome, ProgramFigures figures,
                       const Prediction* prediction) {
  const References references = references_of_run(workload, prediction);
  LiveAnswer answer;
  static_cast<ResultAnswer&>(answer) = result_answer(workload, outcome, references);
  answer.measured = true;
  answer.page_locking_seconds = {};  // the machine file's
  const RunResult& result = outcome.result;
  answer.training = step_figures(figures.step_seconds,
                                 static_cast<double>(result.window.evictions) / static_cast<double>(result.period));
  if (prediction != nullptr) {
    const std::uint32_t steps = repeated_steps(prediction->outcome.program.trace);
    std::optional<double> seconds;
    std::optional<ResultComparison> comparison;
    if (figures.step_seconds.size() > first_named_step) {
      seconds = steps == 1 ? answer.training.median_step_seconds : answer.training.mean_step_seconds;
      comparison = compare_results(prediction->result, answer, seconds);
    }
    if (comparison && steps > 1) take_a_step(*comparison, steps);
    PredictedResult predicted = predicted_result(*prediction, std::move(comparison));
    if (steps > 1) {
      predicted.steps.emplace(steps);
      if (predicted.iteration_seconds) *predicted.iteration_seconds /= steps;
    }
    predicted.measured_seconds.emplace(seconds);
    answer.prediction.emplace(std::move(predicted));
  }
  answer.live = std::move(figures);
  answer.text = result_text(workload, outcome, references, Ran::measured);
  return answer;
}

Document document_of(const LiveAnswer& answer) {
  Document document = measured_document("run python", answer);
  const StepFigures& steps = answer.training;
  const ProgramFigures& live = answer.live;
  const std::size_t count = steps.step_seconds.size();
  const std::string times =
      fmt::format("step time: median {}, mean {}{}\n", format_seconds(steps.median_step_seconds),
                  format_seconds(steps.mean_step_seconds), count > 2 ? fmt::format(" (steps 3 to {})", count) : "");
  const char* const of_those = live.steps_asleep != 0 ? " that was watched" : "";
  std::string facts =
      fmt::format("  evictions      {:.1f} a step\n  needs          {} at once; the largest op{}, {}, {}\n",
                  steps.evictions_per_step, format_bytes(live.peak_bytes), of_those, live.largest_op,
                  format_bytes(live.largest_op_bytes));
  if (live.steps_asleep != 0) {
    facts += fmt::format("  asleep         {} of {} steps: all fits, so nothing is moved, and no op is seen\n",
                         live.steps_asleep, count);
  }
  if (live.deviations != 0) {
    facts += fmt::format("  left the recorded schedule {} times, first in {}\n", live.deviations, live.first_deviation);
  }
  document.add_text("\n" + times + "\n" + answer.text + facts);
  document.add_paragraph(times);
  document.add_paragraph(facts);
  if (!answer.prediction) return document;
  document.add_text("\n");
  if (answer.prediction->comparison) document.add_table(comparison_table(*answer.prediction->comparison));
  document.blocks.emplace_back(DocumentText{prediction_text(*answer.prediction), Shown::everywhere});
  return document;
}

}  // namespace tencache
