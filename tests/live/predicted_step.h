// What the simulator says of a step that the model GPU plays. They share nothing but the machine's figures.
#pragma once

#include <array>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

struct PredictedStep {
  bool fits = false;
  Nanoseconds step_ns = 0;
  std::array<Bytes, max_tiers> peak_bytes{};
};

// As in a live program, ops run where the program runs them: what the policy would do on the CPU it does not.
PredictedStep predict_step(const Trace& trace, const MachineSpec& machine, Policy& policy);

}  // namespace tencache
