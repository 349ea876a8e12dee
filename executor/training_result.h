// What a live training run found, for whoever ran it: free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "core/metrics.h"
#include "core/trace.h"

namespace tencache {

struct TrainingResult {
  std::vector<Nanoseconds> step_ns;

  // Of the steps from the third on (of all, if there are no more than two): those that ran under the policy with the
  // schedule known. 0 without steps.
  Nanoseconds median_step_ns() const;
  Nanoseconds mean_step_ns() const;
  std::size_t counted_steps() const { return step_ns.size() - (step_ns.size() > 2 ? 2 : 0); }
};

struct PagedTraining {
  TrainingResult training;
  MachineSpec machine;         // that it ran on: without a limit on GPU memory if the policy asks for that
  RunResult run;               // its window: the steps from the third on
  Trace recorded;              // the recorded step
  Program program;             // the same, its updates placed and ordered as the policy says
  Bytes peak_live_bytes = 0;   // of all storages at once: what 100 % of the memory is
  Bytes largest_op_bytes = 0;  // the least GPU memory
  std::string largest_op;
  std::uint64_t deviations = 0;
  std::string first_deviation;
};

}  // namespace tencache
