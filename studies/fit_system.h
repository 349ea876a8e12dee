// Whether a step runs without offloading or under the software that one has, and the least changes that make it fit.
// What no software does, paging and memory without a limit, is no answer here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "studies/workload.h"

namespace tencache {

// With everything on the GPU, of the rank that lacks most. What PyTorch allocates; what it reserves is a little more
// (`fit --allocator`).
struct Resident {
  bool fits = false;
  Bytes peak_bytes = 0, capacity_bytes = 0, missing_bytes = 0;
};
Resident resident(const Trace& trace, const MachineSpec& machine);

// Policies that nothing limits, or that page: that they run says nothing of what fits.
bool says_what_fits(const std::string& policy);

struct TierUse {
  std::string tier;
  Bytes peak_bytes = 0, capacity_bytes = 0;
};
struct SystemVerdict {
  std::string system;
  bool fits = false;
  std::string tier;  // that is short, or else the GPU's
  Bytes peak_bytes = 0, missing_bytes = 0;
  std::optional<std::string> reason;
  std::vector<TierUse> tiers;
  std::vector<std::string> assumed;  // a sentence each
};
// `with`: deepspeed=FILE, accelerate[=FILE], fsdp[=FILE], llama.cpp, vllm, torchtune. The workload must be generated:
// settings that the software decides are set, those that the user gave stay. Throws Error for other software, and where
// the software does not do what is asked.
SystemVerdict judge_system(const std::string& with, const Workload& workload);

// Software that trains on all GPUs of a machine unless told otherwise does so here: sets data-parallel ranks where the
// model is generated and nothing says how it is divided. Returns what is assumed, empty: nothing. Throws Error where
// the batch has not as many sequences.
std::string spread_over_gpus(Scenario& scenario, const std::string& with);

struct FitChange {
  std::string flag;
  bool fits = false;
  std::optional<double> slowdown;  // of a token, against the step as asked on a GPU with memory for it
};
// Of a generated workload: what fits comes first, the least slowed first.
std::vector<FitChange> changes_that_help(const Workload& workload);

}  // namespace tencache
