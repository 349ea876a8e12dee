// The rule of predictions: written and hashed before the measured run starts.
#pragma once

#include <string>

#include "cli/report.h"

namespace tencache {

// A place for a prediction that the user did not name: beside the timeline if there is one, else in the folder for
// temporary files.
std::string default_prediction_file(const std::string& timeline);

// Simulates, writes the result to `file` and says its SHA-256 on stderr. `timeline`, if given, receives the spans.
struct Prediction {
  Outcome outcome;
  References references;
  std::string file;
  std::string sha256;
};
Prediction predict(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const std::string& file, Timeline* timeline);

// (predicted - measured) / measured; null where one of them did not fit.
Json prediction_error(const RunResult& predicted, const RunResult& measured);

}  // namespace tencache
