// How far a simulated time may be believed. Judged here, once, for all reports.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "studies/workload.h"

namespace tencache {

// From the published experiments that ship (configs/validated.h): "validated within 43.7 % (MLP-Offload (SC'25))", or
// "extrapolated", with what was checked on such a machine. A workload that is changed, and not as anybody measured it,
// is "extrapolated". `settings`: the policy's, or all of its options. Throws Error where the list cannot be read.
std::string published_validity(const Workload& workload, const std::string& policy,
                               const std::map<std::string, std::string>& settings);

// Of an iteration that takes `seconds`: its time with each link at either end of its bounds, where the machine's file
// has no more of its rate than `low` and `high`. Estimated from how long the run keeps such links busy.
struct TimeAtBounds {
  double fast = 0, slow = 0;
  std::vector<std::string> links;  // "nvme_read (0.17 to 0.40 GB/s)"; empty: it uses none, and the times are `seconds`
};
TimeAtBounds time_at_bounds(const MachineSpec& machine, const RunResult& result, double seconds);

// A measured run whose time was predicted before.
struct PredictedRun {
  std::string machine;
  MadeBy trace = MadeBy::unknown;
  std::string changes;  // of the machine and the trace, in any form; empty: none
  double error = 0;     // predicted ÷ measured - 1
};
// What these say of simulations on the same machine, of the same kind of trace, with the same changes: "validated within
// 4.0 % (2 measured)", of the largest error; empty: nothing.
std::string measured_validity(const std::vector<PredictedRun>& runs, const std::string& machine, MadeBy trace,
                              const std::string& changes);

}  // namespace tencache
