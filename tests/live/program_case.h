// A random program of a live runtime on an arena: steps that repeat, ops on streams of its own, allocations inside and
// outside ops, workspaces, some of which stay, frees at any time, kernels that no op announces, pinned, exposed and
// lent tensors. Kernels check what they read and write patterns when the device runs them.
#pragma once

#include <memory>
#include <string>

#include "executor/cuda/cuda_device.h"
#include "tests/live/rules/rules_driver.h"
#include "tests/property/random_case.h"

namespace tencache::rules {

struct ProgramRun {
  std::string wrong;  // empty, or what a kernel found
  bool fits = true;   // else it ran out of memory
  std::uint64_t ops = 0, checks = 0, evictions = 0, moved = 0;
};

// `ahead`: the host runs ahead. `folder`: for files. Throws Error as the runtime does.
ProgramRun play_random_program(RulesDriver& driver, const std::shared_ptr<CudaDevice>& device, Random& random,
                               const std::string& policy, bool ahead, const std::string& folder);

}  // namespace tencache::rules
