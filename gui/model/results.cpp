#include "gui/model/results.h"

#include <algorithm>

#include "answers/compare.h"
#include "core/error.h"
#include "studies/validity.h"

namespace tencache::gui {
namespace {

MadeBy trace_of(const ResultAnswer& result) { return result.manifest.run.made_by.value_or(MadeBy::unknown); }

std::vector<ResultAnswer> results_in(const std::vector<DocumentPointer>& documents) {
  std::vector<ResultAnswer> results;
  for (const DocumentPointer& document : documents) {
    for (const Json& result : document->results) {
      read_answer(result, results.emplace_back());
      results.back().file = document->path;
    }
  }
  return results;
}

std::vector<PredictedRun> predicted_runs(const std::vector<ResultAnswer>& results) {
  std::vector<PredictedRun> runs;
  for (const ResultAnswer& result : results) {
    if (!result.measured.value_or(false) || !result.prediction || !result.prediction->error) continue;
    runs.push_back({result.machine, trace_of(result), changes_of(result), *result.prediction->error});
  }
  return runs;
}

}  // namespace

std::vector<ResultAnswer> open_results(const std::vector<DocumentPointer>& documents) {
  std::vector<ResultAnswer> results = results_in(documents);
  const std::vector<PredictedRun> runs = predicted_runs(results);
  for (ResultAnswer& result : results) {
    if (!result.validity || result.rescaled) continue;
    const std::string measured = measured_validity(runs, result.machine, trace_of(result), changes_of(result));
    if (!measured.empty()) result.validity = measured;
  }
  return results;
}

std::string validity_of(const std::vector<DocumentPointer>& documents, const Workload& workload) {
  if (!is_like_measured(workload)) return "extrapolated";
  const std::string measured = measured_validity(predicted_runs(results_in(documents)), workload.machine.name,
                                                 workload.trace->header.provenance.made_by, "");
  if (!measured.empty()) return measured;
  try {
    return published_validity(workload, workload.scenario.policy.name, workload.scenario.policy.settings);
  } catch (const Error&) {  // an incomplete installation validates nothing
    return "extrapolated";
  }
}

}  // namespace tencache::gui
