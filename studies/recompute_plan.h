// Which layers a real program should recompute: chosen by simulations. answers/recompute_plan.h writes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "studies/workload.h"

namespace tencache {

struct PlannedLayer {
  std::string module;
  std::uint32_t micro_batch = 0;
  RecomputeLevel level = RecomputeLevel::keep;  // or block: PyTorch's checkpointing has no other
};

// A step of a program, simulated.
struct PlannedRun {
  bool fits = false;
  std::string reason;  // why not
  double seconds = 0;
  Bytes gpu_peak_bytes = 0;
};

// The plan's program, with nothing and with everything recomputed.
struct PlannedRuns {
  PlannedRun plan, keep, block;
};

struct RecomputePlan {
  std::uint32_t format_version = 1;
  std::string model, model_sha256;
  std::string policy, machine;
  PlannedRuns predicted;
  std::uint32_t micro_batches = 1;
  std::vector<PlannedLayer> layers;  // in the order of their forward passes

  std::size_t recomputed() const;
};

// Of the names and relative sizes of the layers' parameters, so of the same model in any precision.
std::string model_sha256(const Trace& trace);

// Levels under which the policy's step is fastest, of those that were tried (policies/planning/choose_levels.h). Throws
// Error where the trace has no choices.
RecomputePlan choose_plan(const Workload& workload, const std::string& policy,
                          const std::map<std::string, std::string>& settings);

// How other systems say the same, a line each.
std::vector<std::string> settings_of_systems(const RecomputePlan& plan);

}  // namespace tencache
