// What a training run says of itself, as JSON and for people: steps, the paged run, and how far a prediction that was
// made before was off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/workload.h"
#include "executor/torch/record.h"
#include "executor/torch/train.h"

namespace tencache {

// A result that `tencache replay --json` or a `--predict` wrote before.
struct GivenPrediction {
  std::string file, sha256;
  Json result;
  std::optional<double> iteration_seconds;  // absent: predicted not to fit
};
// Throws Error where the file is no such result, or one of another policy.
GivenPrediction read_prediction(const std::string& file, const std::string& policy);

Json training_json(const TrainingResult& training);
std::string steps_text(const TrainingResult& training);

// A run under a policy. The `outcome` is its measured result; `seed`: the configuration's.
Json paged_training_json(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                         const std::optional<GivenPrediction>& prediction, std::uint64_t seed);
std::string paged_training_text(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                                const std::optional<GivenPrediction>& prediction);
// One that ended for want of memory: of what was under way until then, what is known; the rest is null.
Json misfit_json(const Workload& workload, const Outcome& outcome, const TrainingResult& training,
                 const std::optional<GivenPrediction>& prediction, std::uint64_t seed);

}  // namespace tencache
