// --faults: a run that is disturbed on purpose, and is labelled so.
#pragma once

#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/workload.h"
#include "core/fault_plan.h"

namespace tencache {

// --faults PLAN
CLI::Option* add_faults_option(CLI::App& command, std::string& plan);

// Reads the plan of `options`, says it on stderr, seed first, before anything runs, and writes it out in full there;
// none without --faults. Throws Error for a plan that is none, or that does not suit the machine.
std::optional<FaultPlan> announce_faults(WorkloadOptions& options, const MachineSpec& machine);

// What was injected, by kind.
Json faults_json(const WorkloadOptions& options, const FaultCounts& injected);

}  // namespace tencache
