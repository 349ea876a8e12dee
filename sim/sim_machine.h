// The simulated machine of one rank: its port into a world (sim/sim_world.h has the model), or a world of its own.
// The twin of executor/host_machine.h.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/fault_plan.h"
#include "core/machine.h"
#include "sim/sim_world.h"

namespace tencache {

class SimMachine final : public Machine {
 public:
  // Alone. The spec must outlive it. With a plan copies fail and come late, and room is refused, as it says.
  explicit SimMachine(const MachineSpec& spec, const FaultPlan* plan = nullptr)
      : own_(std::make_unique<SimWorld>(std::vector<const MachineSpec*>{&spec})), world_(*own_) {
    if (plan != nullptr) faults_.emplace(*plan, spec);
  }
  // One of several; the world must outlive it. Completions come from SimWorld::wait, which says whose they are.
  SimMachine(SimWorld& world, std::size_t rank, const FaultPlan* plan = nullptr) : world_(world), rank_(rank) {
    if (plan != nullptr) faults_.emplace(plan->of_rank(rank), world.spec(rank));
  }

  Fence submit(const CopyCommand& copy, Tag tag) override {
    return faults_ ? submit_disturbed(copy, tag) : world_.submit(rank_, copy, tag);
  }
  Fence execute(const OpCommand& op, Tag tag) override { return world_.execute(rank_, op, tag); }
  void cancel(Fence fence) override { world_.cancel(fence); }
  Nanoseconds move(const MoveCommand& move) override {
    world_.move(rank_, move, {});
    return time_of(move);
  }
  // The same, with a completion.
  Fence move(const MoveCommand& move, Tag tag) { return world_.move(rank_, move, tag); }
  Nanoseconds time_of(const MoveCommand& move) const { return world_.time_of(rank_, move); }
  bool moves() const override { return true; }
  bool wait(Completion& completion) override {
    TENCACHE_CHECK(world_.rank_count() == 1);
    std::size_t rank = 0;
    return world_.wait(rank, completion);
  }
  bool pretends() const override { return true; }
  Nanoseconds now() const override { return world_.now(); }
  std::uint64_t state() const override;
  std::string last_error() const override;
  void map(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place, MappedFor what) override;
  void unmap(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;
  bool maps() const override { return faults_.has_value(); }

  // What was injected; zeros without a plan.
  FaultCounts fault_counts() const { return faults_ ? faults_->counts() : FaultCounts{}; }

 private:
  Fence submit_disturbed(const CopyCommand& copy, Tag tag);

  std::unique_ptr<SimWorld> own_;
  SimWorld& world_;
  std::size_t rank_ = 0;
  std::optional<FaultInjector> faults_;
  // With a plan only.
  std::map<Fence, std::string> reasons_;       // of copies that fail
  std::set<std::pair<TierId, ChunkId>> torn_;  // in files
  std::array<Bytes, max_tiers> used_{};        // of tiers of files
};

}  // namespace tencache
