#include "executor/torch/record.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "executor/torch/interception.h"
#include "executor/torch/train.h"
#include "policies/registry.h"

namespace tencache {
namespace {

bool same_op(const Trace& one, const Trace& other, OpIndex index) {
  const Op& a = one.ops[index];
  const Op& b = other.ops[index];
  return one.name(a) == other.name(b) && std::ranges::equal(one.reads(a), other.reads(b)) &&
         std::ranges::equal(one.writes(a), other.writes(b));
}

void require_same_program(const Trace& first, const Trace& other, std::size_t step) {
  std::string difference;
  if (first.ops.size() != other.ops.size() || first.tensors.size() != other.tensors.size()) {
    difference = std::to_string(other.ops.size()) + " ops and " + std::to_string(other.tensors.size()) +
                 " tensors instead of " + std::to_string(first.ops.size()) + " and " +
                 std::to_string(first.tensors.size());
  }
  for (OpIndex op = 0; op < first.ops.size() && difference.empty(); ++op) {
    if (!same_op(first, other, op)) {
      difference = "op " + std::to_string(op) + " is '" + other.name(other.ops[op]) + "', was '" +
                   first.name(first.ops[op]) + "' or uses other tensors";
    }
  }
  if (!difference.empty()) {
    throw Error("recorded step " + std::to_string(step + 1) + " differs from the first: " + difference +
                "; only programs whose steps are alike can be recorded as one trace");
  }
}

Nanoseconds median(std::vector<Nanoseconds>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Trace median_trace(const std::vector<Trace>& traces) {
  Trace result = traces.front();
  for (std::size_t i = 1; i < traces.size(); ++i) require_same_program(result, traces[i], i);
  for (const auto figure : {&Op::duration_ns, &Op::gap_before_ns}) {
    std::vector<Nanoseconds> steps;
    for (const Trace& trace : traces) {
      Nanoseconds sum = 0;
      for (const Op& op : trace.ops) sum += op.*figure;
      steps.push_back(sum);
    }
    Nanoseconds sum_of_medians = 0;
    for (OpIndex op = 0; op < result.ops.size(); ++op) {
      std::vector<Nanoseconds> values;
      for (const Trace& trace : traces) values.push_back(trace.ops[op].*figure);
      sum_of_medians += result.ops[op].*figure = median(values);
    }
    const Nanoseconds step = median(steps);
    if (sum_of_medians == 0) continue;
    for (Op& op : result.ops) {
      op.*figure = static_cast<Nanoseconds>(static_cast<double>(op.*figure) * static_cast<double>(step) /
                                            static_cast<double>(sum_of_medians));
    }
  }
  return result;
}

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
