// Of a program whose gates choose experts that the CPU can compute: which experts the GPU keeps, and where each runs.
//
// Where ops run is decided before the run, gate after gate, by what the GPU would have then. So it has to have it: the
// run tells an ExpertHomes of its own of the same choices, which so goes through the same states, and drops what is in
// none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/policy.h"
#include "policies/planning/resident_experts.h"

namespace tencache {

// As many experts of each layer as fit. At first the first ones; of those that it has after a gate's ops, because it
// had them or they were copied for these, it keeps the ones that most has been computed for. A prompt's gates choose
// most experts, so what is kept of them costs no copies of its own.
class ExpertHomes {
 public:
  // Whether the CPU can compute any op that a gate decides, and its memory holds all that is not at home on the GPU:
  // where experts come from storage, the fewer are needed anew the better.
  static bool apply(const Trace& trace, const MachineSpec& machine);

  ExpertHomes(const Trace& trace, const MachineSpec& machine, const Experts& experts);

  bool has(Experts::Place place) const { return on_gpu_[place.layer][place.expert] != 0; }

  // What the gate decided. The first gate of an iteration finds all as it was at first.
  struct Run {
    TensorId weight = none;
    std::uint64_t flops = 0;  // of the op that reads it
    bool on_gpu = true;
  };
  void chosen(OpIndex gate, std::span<const Run> runs, const Experts& experts);

 private:
  OnGpu at_start_, on_gpu_;
  std::vector<std::vector<std::uint64_t>> computed_;  // by layer and expert: in this iteration, flops
  OpIndex last_gate_ = none;
};

// For layout.start: the experts that it has at first are on the GPU, too; the others are not.
void start_in_homes(const Trace& trace, const MachineSpec& machine, Layout& layout);

// An expert that the GPU lacks is copied there or computed by the CPU, so that the later of the two devices is done
// with the gate's experts as early as it can be: those are copied that the CPU would take longest for. If that makes it
// earlier still, the CPU also computes some that the GPU has, those that take it least.
std::unique_ptr<DecidedPlaces> place_by_homes(const Trace& trace, const MachineSpec& machine);

// The same for a trace with experts drawn for the gates of `sealed`: there its ops run.
void place_drawn(const Trace& sealed, const MachineSpec& machine, Trace& drawn);

}  // namespace tencache
