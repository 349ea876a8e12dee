// Replays the event log of a live run: the same inputs through a fresh engine and a fresh policy object. If nothing but
// the inputs decides, the decisions are the same, bit for bit.
#pragma once

#include <string>
#include <vector>

#include "core/engine/event_log.h"
#include "core/machine_spec.h"
#include "core/policy.h"

namespace tencache {

struct ReplayedLog {
  std::vector<Decision> decisions;
  std::string diverged;  // where the replay could not follow the log; empty: it did to the end
};

// `log` is of an intercepted program (Engine without a program); `spec` the machine that its engine had, `policy` a new
// object of the same kind and options.
ReplayedLog replay_log(const EventLog& log, const MachineSpec& spec, Policy& policy);

// The first difference in words; empty if there is none.
std::string first_difference(const std::vector<Decision>& logged, const std::vector<Decision>& replayed);

}  // namespace tencache
