// What a training run says of itself, as JSON and for people: steps, the paged run, and how far a prediction that was
// made before was off.
#pragma once

#include <string>

#include "answers/prediction.h"
#include "executor/training_result.h"

namespace tencache {

Json training_json(const TrainingResult& training);
std::string steps_text(const TrainingResult& training);

// A run under a policy. The `outcome` is its measured result; `prediction` may be null.
Json paged_training_json(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                         const Prediction* prediction);
std::string paged_training_text(const Workload& workload, const Outcome& outcome, const PagedTraining& paged,
                                const Prediction* prediction);
// One that ended for want of memory: of what was under way until then, what is known; the rest is null.
Json misfit_json(const Workload& workload, const Outcome& outcome, const TrainingResult& training,
                 const Prediction* prediction);

}  // namespace tencache
