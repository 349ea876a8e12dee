// What a training run says of itself, as JSON and for people: steps, the paged run, and how far a prediction that was
// made before was off.
#pragma once

#include <string>

#include "answers/prediction.h"
#include "executor/training_result.h"

namespace tencache {

// A run under a policy. The `outcome` is its measured result; `prediction` may be null.
Json paged_training_json(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                         const Prediction* prediction);
std::string paged_training_text(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                                const Prediction* prediction);

}  // namespace tencache
