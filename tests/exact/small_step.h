// Random training steps that are small enough for small_optimum.h: tensors of 100 bytes, ops of whole units of 100 ns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "tests/property/random_case.h"
#include "tests/small_cases.h"

namespace tencache {

inline constexpr Bytes small_tensor_bytes = 100;
inline constexpr Nanoseconds small_unit_ns = 100;

struct SmallStep {
  Trace trace;
  int gpu_tensors = 0;
};

// Weights, activations that the backward pass reads, and updates of states that write the weights, in place or anew.
inline SmallStep small_step(std::uint64_t seed) {
  Random random(seed);
  SmallStep step;
  Trace& trace = step.trace;
  const std::size_t layers = random.between(2, 3);
  const bool masters = layers == 2 && random.one_in(2);
  std::vector<TensorId> weights, activations, states;
  const auto tensor = [&](const char* name, Role role, bool persistent) {
    return trace.add_tensor(std::string(name).append(std::to_string(trace.tensors.size())), small_tensor_bytes, role,
                            persistent);
  };
  for (std::size_t i = 0; i < layers; ++i) {
    weights.push_back(tensor("w", Role::parameter, true));
    activations.push_back(tensor("a", Role::activation, false));
    if (masters || i == 0) states.push_back(tensor("m", Role::master_parameter, true));
  }
  const auto add = [&](Phase phase, const std::vector<TensorId>& reads, const std::vector<TensorId>& writes) {
    const auto units = static_cast<Nanoseconds>(random.between(1, 3));
    Op op =
        make_op(trace, std::string("op").append(std::to_string(trace.ops.size())), "m", phase, units * small_unit_ns);
    op.placeable = false;
    trace.add_op(op, reads, writes);
  };
  for (std::size_t i = 0; i < layers; ++i) {
    std::vector<TensorId> reads = {weights[i]};
    if (i > 0) reads.push_back(activations[i - 1]);
    add(Phase::forward, reads, {activations[i]});
  }
  for (std::size_t i = layers; i-- > 0;) add(Phase::backward, {weights[i], activations[i]}, {});
  for (std::size_t i = 0; i < layers; ++i) {
    if (i >= states.size()) {
      add(Phase::optimizer, {weights[i]}, {weights[i]});
    } else if (random.one_in(2)) {
      add(Phase::optimizer, {states[i]}, {states[i], weights[i]});
    } else {
      add(Phase::optimizer, {weights[i], states[i]}, {states[i], weights[i]});
    }
  }
  step.gpu_tensors = static_cast<int>(random.between(3, trace.tensors.size() - 2));
  return step;
}

inline MachineSpec small_step_machine(const SmallStep& step) {
  return small_machine(static_cast<Bytes>(step.gpu_tensors) * small_tensor_bytes);
}

}  // namespace tencache
