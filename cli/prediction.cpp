#include "cli/prediction.h"

#include <fmt/format.h>

#include "traces/file_io.h"

namespace tencache {

Prediction predict(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const std::string& file, Timeline* timeline) {
  Prediction prediction;
  prediction.outcome = simulate_policy(workload, policy, settings, {.timeline = timeline});
  prediction.references = references_of(workload);
  prediction.file = file;
  prediction.result = result_json(workload, prediction.outcome, prediction.references);
  prediction.result.erase("timing");  // of the tool: the same input gives the same bytes
  const std::string text = prediction.result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  write_file(file, text);
  prediction.sha256 = sha256_hex(text);
  remark(fmt::format("prediction: {}, sha256 {}", file, prediction.sha256));
  return prediction;
}

Json prediction_error(const RunResult& predicted, const RunResult& measured) {
  if (!predicted.fits || !measured.fits || measured.iteration_seconds() <= 0) return nullptr;
  return predicted.iteration_seconds() / measured.iteration_seconds() - 1;
}

}  // namespace tencache
