// --faults: a run that is disturbed on purpose, and is labelled so.
#pragma once

#include <optional>
#include <string>

#include "core/fault_plan.h"
#include "studies/workload.h"

namespace tencache {

// Reads the scenario's plan, says it on stderr, seed first, before anything runs, and writes it out in full there;
// none without --faults. Throws Error for a plan that is none, or that does not suit the machine.
std::optional<FaultPlan> announce_faults(Scenario& scenario, const MachineSpec& machine);

}  // namespace tencache
