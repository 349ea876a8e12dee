// The simulated machine of one rank as its description has it: one that runs ahead completes in order.
#pragma once

#include <optional>

#include "core/fault_plan.h"
#include "core/residency.h"
#include "sim/ordered_machine.h"
#include "sim/sim_machine.h"

namespace tencache {

class SimulatedRank {
 public:
  // Alone, or one of several; what is given must outlive it. SimMachine has the contracts.
  explicit SimulatedRank(const MachineSpec& spec, const FaultPlan* plan = nullptr) : machine_(spec, plan) {
    run_ahead(spec);
  }
  SimulatedRank(SimWorld& world, std::size_t rank, const FaultPlan* plan = nullptr) : machine_(world, rank, plan) {
    run_ahead(world.spec(rank));
  }

  // What the engine drives.
  Machine& port() {
    if (ordered_) return *ordered_;
    return machine_;
  }
  // The engine's, before it starts.
  void look_at(const Residency& memory) {
    if (ordered_) ordered_->look_at(memory);
  }
  // What stands between the engine and the world; null: nothing.
  OrderedMachine* ordered() { return ordered_ ? &*ordered_ : nullptr; }
  FaultCounts fault_counts() const { return machine_.fault_counts(); }

 private:
  void run_ahead(const MachineSpec& spec) {
    if (spec.run_ahead.ops > 0) ordered_.emplace(machine_, spec);
  }

  SimMachine machine_;
  std::optional<OrderedMachine> ordered_;
};

}  // namespace tencache
