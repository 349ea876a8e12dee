// Runs on this computer, measured: where they take place, and a recorded trace that is replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fault_plan.h"
#include "core/timeline.h"
#include "executor/accelerator.h"
#include "executor/replay_bodies.h"
#include "executor/tier_memory.h"
#include "policies/registry.h"
#include "studies/policy_run.h"
#include "studies/workload.h"

namespace tencache {

// Places the machine's tiers on this computer: settles the scenario's device (`auto`) and, on a GPU, its allocator and
// how far it is run ahead of; gives tiers real pages and folders, and no more than their disks have free (for each of
// `ranks`). Says on stderr what was chosen or made smaller. `trace`: null if it is not known yet. Returns the GPU's
// accelerator; null: ordinary memory stands in for the GPU's. Throws Error for a device that is not there, for a tier
// below a page, and for a folder that is none.
//
// A GPU's memory is movable and run ahead of (executor/choose_device.h) unless the scenario or the machine says
// otherwise, or it cannot be: under a policy that lays the memory out itself or has no limit, or where the memory's
// bandwidth is not known, without which nothing can be predicted. Then it is mapped chunk by chunk, and each op waited
// for. Each op is also waited for where links are limited or faults planned, which copies on streams do not heed.
std::shared_ptr<Accelerator> place_on_this_computer(Scenario& scenario, MachineSpec& machine,
                                                    const std::vector<std::string>& directories,
                                                    const Trace* trace = nullptr, std::uint64_t ranks = 1);

// Of a program's processes, which share the computers that they run on.
struct LiveRanks {
  std::uint64_t rank = 0, world = 1;            // this process, of all
  std::uint64_t rank_here = 0, count_here = 1;  // of those on this computer
  std::string share;                            // their run, for HostShare; empty: each keeps to its part
};

// What a program that runs live and its prediction have in common. The trace is known only once it is recorded.
struct LiveSetting {
  // `asked`: its trace's file is the program's name. Ranks of this computer share what its machine file says, or, if
  // that is of one rank, disks and, unless the scenario gives its size, CPU memory. Throws Error.
  LiveSetting(Scenario asked, const std::vector<std::string>& directories, LiveRanks ranks);
  // The recorded step on the machine.
  Workload workload(const Trace& recorded) const;

  Scenario scenario;
  LiveRanks ranks;
  MachineSpec host;     // all ranks that run on this computer
  MachineSpec machine;  // this one's part of it, were they to copy alike
  std::string machine_sha256;
  std::shared_ptr<Accelerator> accelerator;
  std::optional<FaultPlan> faults;  // of the run; a prediction has none
};

// The policy, which has planned as for a prediction, and the program that it runs.
struct ReplayPlan {
  MadePolicy made;
  Program program;
  Bytes locked = 0;  // HostMachineOptions::locked
};
// `predicted`: what the prediction ran; null: none was made. Throws Error.
ReplayPlan plan_replay(const Workload& workload, const Outcome* predicted);
// Of the prediction's CPU memory, what is page-locked before anything runs; null: nothing is known.
Bytes locked_bytes(const MachineSpec& machine, const Outcome* predicted);

struct MeasuredReplay {
  Outcome outcome;  // without its seconds; its program stays with the plan
  ReplayCounts counts;
  std::string host;                                                    // how files are accessed, a line a tier
  std::vector<std::pair<std::string, ChunkMemoryStatistics>> mapping;  // of each tier of memory, by its name
};
// Runs the plan on the workload's machine, as place_on_this_computer() has it, for the scenario's iterations.
// `timeline`, if given, is whole at each `on_iteration`. Throws Error, PolicyFailure.
MeasuredReplay measure_replay(const Workload& workload, ReplayPlan& plan,
                              const std::shared_ptr<Accelerator>& accelerator, const std::optional<FaultPlan>& faults,
                              Timeline* timeline, const std::function<void(std::uint64_t iteration)>& on_iteration);

}  // namespace tencache
