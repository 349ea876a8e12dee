#include "executor/torch/record.h"

#include <memory>

#include "executor/torch/interception.h"
#include "executor/torch/train.h"
#include "policies/registry.h"
#include "traces/transform/median_trace.h"

namespace tencache {

Recording record_steps(const TraceHeader& header, const std::function<Step(LiveRuntime&)>& make,
                       const RecordingOptions& options, const TrainingDevice& device) {
  const MadePolicy made = make_policy("on-demand");
  const MachineSpec machine = uncapped_machine(device.accelerator.get());
  LiveRuntime runtime(machine, *made.policy, on_device({}, device));
  runtime.describe_recording(header);
  const ThreadGuard guard(runtime, device.torch);
  const Step run_step = make(runtime);
  std::vector<Trace> traces;
  // Two steps warm up; a recorded step is handed out at the boundary that ends it.
  for (std::uint64_t step = 0; step < options.steps + 2; ++step) {
    if (step >= 2) runtime.record_next();
    runtime.iteration_boundary();
    if (step > 2) traces.push_back(runtime.recorded());
    const Nanoseconds start_ns = runtime.machine().now();
    const float loss = run_step(step);
    if (options.on_step) options.on_step(step + 1, loss, runtime.machine().now() - start_ns);
  }
  runtime.iteration_boundary();
  traces.push_back(runtime.recorded());
  Recording recording{.trace = median_trace(traces),
                      .peak_live_bytes = runtime.peak_live_bytes(),
                      .largest_op_bytes = runtime.largest_op_bytes(),
                      .largest_op = runtime.largest_op()};
  recording.trace.validate("recording");
  return recording;
}

Recording record_training(const TrainingConfig& config, const TextData& data, const RecordingOptions& options,
                          const TrainingDevice& device) {
  const auto make = [&](LiveRuntime& runtime) -> Step {
    const auto program = std::make_shared<TrainingProgram>(config, data, &runtime, device);
    return [program](std::uint64_t number) { return program->step(number); };
  };
  return record_steps(recording_header(config, device), make, options, device);
}

}  // namespace tencache
