// The rule of predictions: written and hashed before the measured run starts.
#pragma once

#include <optional>
#include <string>

#include "answers/result.h"

namespace tencache {

// Simulates the scenario's policy, writes the result without `timing` to `file` and says its SHA-256 on stderr.
// `timeline`, if given, receives the spans; `in_place`, if given, is asked in place of a new policy of that name.
struct Prediction {
  Outcome outcome;
  References references;
  Json result;  // as written
  std::string file;
  std::string sha256;
};
Prediction predict(const Workload& workload, const std::string& file, Timeline* timeline, Policy* in_place = nullptr);

// The figures of two results of `result_json` side by side, each as {predicted, measured, error}, where error is
// predicted / measured - 1, null where nothing was measured: `iteration_seconds`, and by name `time_seconds` (compute,
// gaps), `stall_seconds`, `busy_seconds`, `traffic_bytes`, `peak_bytes`. `measured_seconds` replaces the measured
// iteration: training compares its median step. Null where one of the two did not fit.
Json comparison_json(const Json& predicted, const Json& measured, std::optional<double> measured_seconds = {});
// As a table; what is zero on both sides is left out. Empty for null.
std::string comparison_text(const Json& comparison);

}  // namespace tencache
