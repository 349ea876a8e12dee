// The simulated machine of one rank: its port into a world (sim/sim_world.h has the model), or a world of its own.
// The twin of executor/host_machine.h.
#pragma once

#include <memory>

#include "core/check.h"
#include "core/machine.h"
#include "sim/sim_world.h"

namespace tencache {

class SimMachine final : public Machine {
 public:
  // Alone. The spec must outlive it.
  explicit SimMachine(const MachineSpec& spec)
      : own_(std::make_unique<SimWorld>(std::vector<const MachineSpec*>{&spec})), world_(*own_) {}
  // One of several; the world must outlive it. Completions come from SimWorld::wait, which says whose they are.
  SimMachine(SimWorld& world, std::size_t rank) : world_(world), rank_(rank) {}

  Fence submit(const CopyCommand& copy, Fence after, Tag tag) override {
    return world_.submit(rank_, copy, after, tag);
  }
  Fence execute(const OpCommand& op, Fence after, Tag tag) override { return world_.execute(rank_, op, after, tag); }
  Fence last_of_lane(std::uint8_t lane) const override { return world_.last_of_lane(rank_, lane); }
  void cancel(Fence fence) override { world_.cancel(fence); }
  bool wait(Completion& completion) override {
    TENCACHE_CHECK(world_.rank_count() == 1);
    std::size_t rank = 0;
    return world_.wait(rank, completion);
  }
  bool pretends() const override { return true; }
  Nanoseconds now() const override { return world_.now(); }
  std::uint64_t state() const override { return world_.state(rank_); }

 private:
  std::unique_ptr<SimWorld> own_;
  SimWorld& world_;
  std::size_t rank_ = 0;
};

}  // namespace tencache
