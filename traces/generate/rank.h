// Inside the generator: the whole iteration of one rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "traces/generate/step.h"

namespace tencache::generator {

// Appends the rank's tensors and ops. The options are complete and consistent: sequence_lengths has one entry or one a
// micro-batch, lora_targets are labels of linear layers.
void emit_rank(Trace& trace, const GenerateOptions& options, const std::vector<ParameterShape>& shapes,
               const KernelModel& kernels, Count rank, const std::function<void(double)>& progress);

// The names by which --lora-targets knows the linear layers of the model's blocks.
std::vector<std::string> linear_labels(const GenerateOptions& options, const std::vector<ParameterShape>& shapes);

}  // namespace tencache::generator
