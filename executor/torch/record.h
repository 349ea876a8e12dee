// Recording training programs as traces.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/trace.h"
#include "executor/live/live_runtime.h"
#include "executor/torch/text_data.h"
#include "executor/torch/train.h"
#include "executor/training_config.h"

namespace tencache {

struct RecordingOptions {
  std::uint64_t steps = 8;  // that are recorded, after two that warm up
  std::function<void(std::uint64_t step, float loss, Nanoseconds duration_ns)> on_step;
};

// A step of a program, counted from 0; returns its loss.
using Step = std::function<float(std::uint64_t number)>;

// Runs the program with more memory than it needs, so that nothing moves. Durations and gaps are those of median_trace
// over the recorded steps. Throws Error when steps differ in their ops: such a program has no one trace.
// `make` makes the program on the runtime that it is given, under a ThreadGuard; what it returns owns the program.
Recording record_steps(const TraceHeader& header, const std::function<Step(LiveRuntime&)>& make,
                       const RecordingOptions& options, const TrainingDevice& device = {});
Recording record_training(const TrainingConfig& config, const TextData& data, const RecordingOptions& options,
                          const TrainingDevice& device = {});

}  // namespace tencache
