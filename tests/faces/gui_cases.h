// Runs for the tests of the dashboard, small enough to know.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gui/model/run.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"

namespace tencache::gui {

// Twelve parameters of 1 MB, read forward and backward; the GPU has room for five.
inline Trace gui_trace() {
  Trace trace;
  std::vector<TensorId> parameters;
  for (int i = 0; i < 12; ++i) {
    parameters.push_back(trace.add_tensor("weight" + std::to_string(i), 1'000'000, Role::parameter, true));
  }
  const TensorId gradient = trace.add_tensor("gradient", 500'000, Role::gradient, false);
  for (int i = 0; i < 12; ++i) {
    const Op op = make_op(trace, "forward" + std::to_string(i), "layer" + std::to_string(i), Phase::forward, 600'000);
    trace.add_op(op, std::vector<TensorId>{parameters[static_cast<std::size_t>(i)]}, {});
  }
  trace.add_op(make_op(trace, "loss", "", Phase::loss, 300'000), {}, std::vector<TensorId>{gradient});
  for (int i = 11; i >= 0; --i) {
    const Op op = make_op(trace, "backward" + std::to_string(i), "layer" + std::to_string(i), Phase::backward, 900'000);
    trace.add_op(op, std::vector<TensorId>{parameters[static_cast<std::size_t>(i)], gradient}, {});
  }
  return trace;
}

inline MachineSpec gui_machine(Bytes gpu_bytes = 5'600'000) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.tiers[1].capacity = 20'000'000;
  return machine;
}

inline Recording simulate_recording(const std::string& title, const MachineSpec& machine = gui_machine(),
                                    const std::string& policy = "on-demand") {
  Recording recording;
  recording.title = title;
  recording.source = "a test";
  recording.origin = title.starts_with("measured") ? Origin::measured : Origin::predicted;
  recording.machine = machine;
  recording.trace = gui_trace();
  const MadePolicy made = make_policy(policy);
  EngineOptions options;
  options.timeline = &recording.timeline;
  simulate({recording.trace, {}}, machine, *made.policy, {.max_iterations = 3, .until_steady = false},
           std::move(options));
  return recording;
}

inline RunPointer simulate_run(const std::string& title, const MachineSpec& machine = gui_machine(),
                               const std::string& policy = "on-demand") {
  return std::make_shared<const gui::Run>(simulate_recording(title, machine, policy));
}

// Of layer 11 the forward pass runs again, in place of its backward pass (op 13).
inline Recording simulate_recomputation() {
  Recording recording = simulate_recording("predicted: on-demand");
  const Trace before = std::move(recording.trace);
  Trace& trace = recording.trace = before;
  trace.ops.clear();
  trace.accesses.clear();
  const TensorId result = trace.add_tensor("result", 1000, Role::activation, false),
                 again = trace.add_tensor("result", 1000, Role::activation, false);
  for (OpIndex i = 0; i < before.ops.size(); ++i) {
    const std::span<const TensorId> reads = before.reads(before.ops[i]), writes = before.writes(before.ops[i]);
    std::vector<TensorId> also(writes.begin(), writes.end());
    if (i == 11 || i == 13) also.push_back(i == 11 ? result : again);
    trace.ops[trace.add_op(before.ops[i], reads, also)].name = before.ops[i == 13 ? 11 : i].name;
  }
  return recording;
}

// Slower links: what was "measured".
inline MachineSpec slower_machine() {
  MachineSpec machine = gui_machine();
  for (Link& link : machine.links) link.bandwidth = link.bandwidth * 4 / 5;
  return machine;
}

}  // namespace tencache::gui
