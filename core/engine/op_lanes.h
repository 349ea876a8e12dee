// The lanes of ops (core/timeline.h): the ops issued on each, and what the one that waits still lacks. It answers those
// who move data: is this chunk wanted, by which op, and how much memory does that op still need? Ops are issued on the
// GPU's and the CPU's lane; the communication lane takes over ops that have started on the GPU's.
//
// A lane's ops start and end in the order of their issue, and only the last of them may be waiting. The state is open
// to those who run the ops (op_runner.h); sums over it are kept here.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/engine/ledger.h"
#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// The op does not start while the tensor is on its way to the tier.
struct Hold {
  TensorId tensor = none;
  TierId tier = 0;
  auto operator<=>(const Hold&) const = default;
};

// What an op lacks from its issue until it starts.
struct OpDemand {
  std::uint32_t missing = 0;     // chunks without which it cannot start; those of the lists below are among them
  std::uint32_t overlapped = 0;  // <= missing: arrivals beside which it computes (Layout::overlap_faults)
  Bytes room_needed = 0;         // of the missing chunks, not reserved yet
  std::vector<ChunkId> outputs;  // need room and no content; from next_output on without it
  std::size_t next_output = 0;
  std::vector<ChunkId> stranded;  // to read, but on their way to another tier: fetched when they arrive there
  StallCause stranded_cause = StallCause::memory;  // over which link the last of them arrived
  std::vector<ChunkId> write_waits;                // to write, but a transfer still reads them
  std::set<Hold> holds;
  std::vector<Hold> doubtful;  // of the holds, those that may have ended since the op last tried to start
  Bytes births = 0;  // it will make them itself, and needs a hole for them all: room, once nothing else is missing

  // What the engine can do something about: the rest comes by itself.
  bool seeks() const { return next_output < outputs.size() || !stranded.empty() || !write_waits.empty(); }
  void add_hold(const Hold& hold) {
    if (holds.insert(hold).second) doubtful.push_back(hold);
  }
  // As new, but for the memory of the lists.
  void renew() {
    missing = overlapped = 0;
    room_needed = 0;
    outputs.clear();
    next_output = 0;
    stranded.clear();
    stranded_cause = StallCause::memory;
    write_waits.clear();
    holds.clear();
    doubtful.clear();
    births = 0;
  }
};

struct ActiveOp {
  OpTiming times;
  OpDemand demand;
  std::span<const Use> uses;
  std::vector<Use> own_uses;  // what `uses` points to
  Tag tag = 0;                // of a task
  bool external = false;      // a live program runs it
  bool started = false;       // then nothing is missing, but for overlapped arrivals and an allocation inside it
  Nanoseconds duration_ns = 0;
  Bytes bytes = 0;               // memory traffic; 0: not known
  NameId rendezvous = 0;         // with ops of other ranks; 0: none
  bool beside = false;           // goes on on the communication lane once it has started
  Nanoseconds computed_ns = -1;  // when its compute was over, if arrivals outlast it; else -1

  void renew() {
    times = {};
    demand.renew();
    uses = {};
    own_uses.clear();
    tag = 0;
    external = started = false;
    duration_ns = 0;
    bytes = 0;
    rendezvous = 0;
    beside = false;
    computed_ns = -1;
  }
};

// The ops of a lane that are issued and not done, the first issued first. An op stays where it is until it is done; its
// place, with the memory of its lists, is used again.
class OpQueue {
 public:
  bool empty() const { return ops_.empty(); }
  std::size_t size() const { return ops_.size(); }
  ActiveOp& front() { return ops_.front(); }
  const ActiveOp& front() const { return ops_.front(); }
  ActiveOp& back() { return ops_.back(); }
  const ActiveOp& back() const { return ops_.back(); }
  auto begin() { return ops_.begin(); }
  auto end() { return ops_.end(); }
  auto begin() const { return ops_.begin(); }
  auto end() const { return ops_.end(); }

  // A new last one.
  ActiveOp& add() {
    if (spare_.empty()) return ops_.emplace_back();
    spare_.front().renew();
    ops_.splice(ops_.end(), spare_, spare_.begin());
    return ops_.back();
  }
  void pop_front() { spare_.splice(spare_.begin(), ops_, ops_.begin()); }
  void pop_back() { spare_.splice(spare_.begin(), ops_, std::prev(ops_.end())); }
  // The last one becomes the other queue's last.
  void hand_last_to(OpQueue& other) { other.ops_.splice(other.ops_.end(), ops_, std::prev(ops_.end())); }

 private:
  std::list<ActiveOp> ops_, spare_;
};

struct OpLane {
  TierId tier = no_tier;
  bool used = true;  // ops may be issued on it
  OpQueue active;
  bool waiting = false;      // the last of `active` lacks something
  bool gap_pending = false;  // the machine idles for the host's time before the next op
  bool gap_done = false;     // that time has passed, or (boundary_crossed) the iteration begun; the op is not issued
  bool boundary_crossed = false;
  Nanoseconds blocked_since_ns = -1;                  // the next op waits for one of another lane; -1: it does not
  StallCause blocked_by = StallCause::cpu_optimizer;  // then: for which
  NameId module = 0;                                  // that its last op is part of

  // Asked at each step: whether it is worth a look. Mostly the op that waits lacks nothing but what is under way.
  bool may_advance(std::size_t issue_ahead) const {
    if (!used) return false;
    if (!waiting) return active.size() < issue_ahead;
    const OpDemand& demand = active.back().demand;
    return demand.missing <= demand.overlapped || demand.seeks();
  }
};

class OpLanes {
 public:
  explicit OpLanes(const MachineSpec& spec) {
    lanes_[0].tier = spec.tier_of(Device::gpu);
    lanes_[1].tier = spec.tier_of(Device::cpu);
    lanes_[communication_lane].tier = 0;
    TENCACHE_CHECK(lanes_[0].tier == 0);
  }

  OpLane& operator[](std::size_t lane) { return lanes_[lane]; }
  const OpLane& operator[](std::size_t lane) const { return lanes_[lane]; }
  auto begin() { return lanes_.begin(); }
  auto end() { return lanes_.end(); }
  auto begin() const { return lanes_.begin(); }
  auto end() const { return lanes_.end(); }
  bool waiting() const { return lanes_[0].waiting || lanes_[1].waiting; }
  bool empty() const {
    return std::ranges::all_of(lanes_, [](const OpLane& lane) { return lane.active.empty(); });
  }

  // ---- The op that a pinned chunk which is not valid in the tier is missing to: the one that waits there.
  ActiveOp& waiting_in(TierId tier) {
    OpLane& lane = lanes_[tier == lanes_[0].tier ? 0 : 1];
    TENCACHE_CHECK(lane.waiting && lane.tier == tier);
    return lane.active.back();
  }
  // What all waiting ops still need there: prefetches may not take it.
  Bytes room_wanted(TierId tier) const { return room_wanted_[tier]; }
  // The op of that tier needs so much more; so much of it became real.
  void want_room(TierId tier, OpDemand& demand, Bytes bytes) {
    demand.room_needed += bytes;
    room_wanted_[tier] += bytes;
  }
  void got_room(TierId tier, OpDemand& demand, Bytes bytes) {
    TENCACHE_CHECK(demand.room_needed >= bytes && room_wanted_[tier] >= bytes);
    demand.room_needed -= bytes;
    room_wanted_[tier] -= bytes;
  }

  // ---- Holds that policies put on ops which are not issued yet.
  void hold(OpIndex op, Hold hold) { holds_.emplace(op, hold); }
  void take_holds(OpIndex op, OpDemand& demand) {
    if (holds_.empty()) return;
    const auto [first, last] = holds_.equal_range(op);
    for (auto hold = first; hold != last; ++hold) demand.add_hold(hold->second);
    holds_.erase(first, last);
  }
  // The tensor, or a part of it, is no longer on its way to the tier.
  void doubt_hold(const Hold& hold) {
    for (OpLane& lane : lanes_) {
      if (lane.active.empty()) continue;
      OpDemand& demand = lane.active.back().demand;
      if (demand.holds.contains(hold)) demand.doubtful.push_back(hold);
    }
  }

  // ---- Progress.
  bool runs_something() const;  // an op runs, or the host's time passes
  void op_given_to_machine() { ++ops_given_; }
  std::uint64_t ops_given() const { return ops_given_; }  // ever
  void op_started() { copies_waited_ = 0; }
  void copy_ended() { copies_waited_ = runs_something() ? 0 : copies_waited_ + 1; }
  // So many copies have ended while no op ran that the policy is not listened to until one starts.
  bool out_of_patience(std::size_t chunks) const { return copies_waited_ > 1000 + 16 * chunks; }

 private:
  std::array<OpLane, lane_count> lanes_;
  std::array<Bytes, max_tiers> room_wanted_{};  // by tier: the sum of room_needed of the ops that wait there
  std::multimap<OpIndex, Hold> holds_;
  std::uint64_t ops_given_ = 0;
  std::uint64_t copies_waited_ = 0;  // ended while no op ran, in a row
};

inline bool OpLanes::runs_something() const {
  for (const OpLane& lane : lanes_) {
    for (const ActiveOp& op : lane.active) {
      if (op.started && !(lane.waiting && &op == &lane.active.back())) return true;
    }
    if (lane.gap_pending) return true;
  }
  return false;
}

}  // namespace tencache
