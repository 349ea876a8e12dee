// A machine around a machine that checks the engine by what it asks for, knowing nothing of the engine's own books:
// capacity, addresses, which version of which tensor lies where, what runs and what is being copied. And a machine
// around a machine that makes trouble: copies fail, completions come late, cancelling comes too late.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/machine.h"
#include "core/policy.h"
#include "core/schedule.h"
#include "tests/property/random_case.h"

namespace tencache {

// How far each lane is in the program, which it runs again and again.
class ProgramProgress {
 public:
  // `overlaps`: ops of the communication stream have a lane of their own.
  ProgramProgress(const Trace& trace, bool overlaps);
  // Whether this is the lane's next op; it is then taken as submitted.
  bool submit(std::uint8_t lane, OpIndex op);
  void finish(std::uint8_t lane) { ++done_[lane]; }
  std::uint64_t done(std::uint8_t lane) const { return done_[lane]; }
  // Whether the value that the tensor has now will be read: by the next op in program order that is not over.
  bool needs(TensorId tensor) const;

 private:
  Schedule schedule_;
  std::uint64_t op_count_;
  std::array<std::vector<OpIndex>, lane_count> lane_ops_;
  std::array<std::uint64_t, lane_count> submitted_{}, done_{};
};

class AuditorMachine final : public Machine {
 public:
  // All but `layout`, which is as the engine has it, outlive the auditor.
  AuditorMachine(Machine& inner, const MachineSpec& spec, const Trace& trace, const Layout& layout);

  Fence submit(const CopyCommand& copy, Tag tag) override;
  Fence execute(const OpCommand& op, Tag tag) override;
  void cancel(Fence fence) override { inner_.cancel(fence); }
  bool wait(Completion& completion) override;
  Nanoseconds now() const override { return inner_.now(); }
  bool pretends() const override { return inner_.pretends(); }
  Completes completes() const override { return inner_.completes(); }
  std::string last_error() const override { return inner_.last_error(); }
  void map(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place, MappedFor what) override;
  void unmap(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;
  Nanoseconds move(const MoveCommand& move) override;
  bool moves() const override { return inner_.moves(); }
  void tensor_created(TensorId tensor, Bytes bytes) override { inner_.tensor_created(tensor, bytes); }
  void tensor_destroyed(TensorId tensor) override { inner_.tensor_destroyed(tensor); }
  void initialise(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;

  // The first broken rule; empty if none is. Throws std::runtime_error itself when a run does not end.
  const std::string& violation() const { return violation_; }
  const std::array<Bytes, max_links>& copied_bytes() const { return copied_bytes_; }
  Bytes moved_bytes() const { return moved_bytes_; }
  std::uint64_t ops_done(std::uint8_t lane) const { return progress_.done(lane); }

 private:
  static constexpr std::int64_t garbage = -1;
  struct Copy {
    Place place;
    Bytes footprint = 0;
    std::int64_t version = garbage;
    Bytes bytes = 0;  // in the form that the tier keeps it in
    std::int64_t arriving = garbage;
    Bytes arrived = 0;  // of that, by pieces
  };
  struct Chunk {
    TensorId tensor = none;
    Bytes begin = 0;  // in the tensor
    std::int64_t latest = 0;
    std::map<TierId, Copy> copies;

    // The copy that lies exactly there, or null.
    Copy* at(const Place& place) {
      const auto found = copies.find(place.tier);
      return found == copies.end() || found->second.place.offset != place.offset ? nullptr : &found->second;
    }
  };
  struct Staged {
    ChunkId chunk = none;
    std::int64_t version = garbage;
  };
  struct RunningCopy {
    CopyCommand command;
    std::int64_t version = garbage;

    bool touches(TierId tier) const {
      return (!command.from_staging && command.from.tier == tier) || (!command.to_staging && command.to.tier == tier);
    }
  };
  struct RunningOp {
    Fence fence = 0;
    OpCommand command;
    std::vector<Use> uses;

    bool uses_tensor(TensorId tensor, bool to_write) const {
      return std::ranges::any_of(uses,
                                 [&](const Use& use) { return use.tensor == tensor && (use.write || !to_write); });
    }
  };

  void complain(const std::string& what);
  // The range is the tier's, and no other chunk lies in it.
  void check_place(const std::string& what, ChunkId id, const Place& place, Bytes footprint);
  // No op runs with the chunk, and it is not being copied.
  void check_at_rest(const std::string& what, ChunkId id, const Place& place);
  TierId tier_of(std::uint8_t lane) const { return spec_.tier_of(lane == cpu_lane ? Device::cpu : Device::gpu); }
  void start_op(std::uint8_t lane);
  void finish_op(std::uint8_t lane);
  void finish_copy(const RunningCopy& copy, bool done);
  bool lost(ChunkId id) const;
  bool has_size(const CopyCommand& copy) const;
  std::uint32_t buffers_of(const CopyCommand& copy) const;
  template <typename Function>
  void for_chunks(TensorId tensor, Function function) {
    for (auto& [id, chunk] : chunks_) {
      if (chunk.tensor == tensor) function(id, chunk);
    }
  }

  Machine& inner_;
  const MachineSpec& spec_;
  const Trace& trace_;
  ProgramProgress progress_;
  std::array<std::deque<RunningOp>, lane_count> lanes_;
  std::map<ChunkId, Chunk> chunks_;
  std::map<Fence, RunningCopy> copies_;
  std::vector<Staged> staging_;
  std::array<Bytes, max_tiers> used_{};
  std::vector<std::unique_ptr<Allocator>> allocators_;  // for footprints and capacities only
  std::array<Bytes, max_links> copied_bytes_{};
  Bytes moved_bytes_ = 0;  // what chunks take that moved
  std::uint64_t completions_ = 0;
  Nanoseconds last_end_ns_ = 0;
  std::string violation_;
};

class TroubleMachine final : public Machine {
 public:
  TroubleMachine(Machine& inner, std::uint64_t seed) : inner_(inner), random_(seed ^ 0x74726f75626c65) {}
  Fence submit(const CopyCommand& copy, Tag tag) override {
    const Fence fence = inner_.submit(copy, tag);
    copies_.push_back(fence);
    return fence;
  }
  Fence execute(const OpCommand& op, Tag tag) override { return inner_.execute(op, tag); }
  void cancel(Fence fence) override {
    if (!random_.one_in(2)) inner_.cancel(fence);
  }
  bool wait(Completion& completion) override;
  std::string last_error() const override { return inner_.last_error(); }
  bool pretends() const override { return inner_.pretends(); }
  Nanoseconds move(const MoveCommand& move) override { return inner_.move(move); }
  bool moves() const override { return inner_.moves(); }
  Nanoseconds now() const override { return now_ > inner_.now() ? now_ : inner_.now(); }

 private:
  Machine& inner_;
  Random random_;
  std::vector<Fence> copies_;
  std::deque<Completion> late_;
  Nanoseconds now_ = 0;
};

}  // namespace tencache
