#include "cli/prediction.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "traces/file_io.h"

namespace tencache {

std::string default_prediction_file(const std::string& timeline) {
  if (!timeline.empty()) return timeline + ".prediction.json";
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return (error ? std::filesystem::path("/tmp") : folder) / fmt::format("tencache-prediction-{}.json", getpid());
}

Prediction predict(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const std::string& file, Timeline* timeline) {
  Prediction prediction;
  prediction.outcome = simulate_policy(workload, policy, settings, timeline);
  prediction.references = references_of(workload);
  prediction.file = file;
  const Json json = result_json(workload, prediction.outcome, prediction.references);
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
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
