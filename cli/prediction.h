// The rule of predictions: written and hashed before the measured run starts.
#pragma once

#include <string>

#include "cli/report.h"

namespace tencache {

// Simulates, writes the result without `timing` to `file` and says its SHA-256 on stderr. `timeline`, if given,
// receives the spans.
struct Prediction {
  Outcome outcome;
  References references;
  Json result;  // as written
  std::string file;
  std::string sha256;
};
Prediction predict(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const std::string& file, Timeline* timeline);

// (predicted - measured) / measured of the seconds an iteration; null where one of them did not fit. What was measured
// is the mean of the window for a replay, and for training the median step from the third on.
Json prediction_error(const RunResult& predicted, const RunResult& measured);

}  // namespace tencache
