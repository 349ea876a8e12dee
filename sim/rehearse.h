// Simulation as a planner's tool: what EngineOptions::rehearse of simulated and live runs is set to.
#pragma once

#include "core/policy.h"

namespace tencache {

// Runs the program on a simulated machine of one rank until the state recurs or a limit ends it. Its last iteration ends
// where the next would begin; if something has to be in storage, when all of its ops are done. Experts of a sealed
// program (core/reveal.h) are drawn. Nothing is kept between calls.
Rehearsal rehearse(const Program& program, const MachineSpec& machine, Policy& candidate,
                   const RehearsalLimits& limits);

}  // namespace tencache
