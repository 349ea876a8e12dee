// One simulation: a lowered program on a simulated machine under a policy.
#pragma once

#include "core/engine.h"

namespace tencache {

// A program that does not fit is a result (`fits` false). Deterministic; nothing is kept between calls.
RunResult simulate(const Program& program, const MachineSpec& machine, Policy& policy, const RunLimits& limits = {},
                   EngineOptions options = {});

}  // namespace tencache
