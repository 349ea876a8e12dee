// What policies that plan ahead have in common: the recorded iteration as a cycle of kernels on a clock without stalls,
// the periods in which tensors are not used, what the links can still move during each kernel, and the memory that
// each kernel needs.
//
// Kernels are the ops of the GPU, numbered from 0 in program order; ops of the CPU take no time on this clock. The
// iteration is cyclic: with K kernels, number K + k is kernel k of the next iteration. Planners work with whole
// kernels: a range [from, to) of such numbers, at most K long.
//
// All of it is pure: no state but what is in these objects, the same result for the same input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/machine_spec.h"
#include "core/metrics.h"
#include "core/policy.h"
#include "core/schedule.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

using KernelIndex = std::int64_t;
__extension__ using int128 = __int128;

struct Kernels {
  Kernels(const Trace& trace, const Schedule& schedule);
  // Of some ops, ascending, on any clock: when each begins, and at last the iteration's end.
  Kernels(const Schedule& schedule, std::vector<OpIndex> ops, std::vector<Nanoseconds> starts_ns);

  KernelIndex count() const { return static_cast<KernelIndex>(ops.size()); }
  // The kernels that use the tensor, ascending.
  std::span<const KernelIndex> uses_of(TensorId tensor) const {
    return {uses.data() + first_use[tensor], uses.data() + first_use[tensor + 1]};
  }
  // Duration of [from, to).
  Nanoseconds between(KernelIndex from, KernelIndex to) const { return start_of(to) - start_of(from); }
  Nanoseconds start_of(KernelIndex kernel) const {
    return kernel / count() * starts_ns.back() + starts_ns[static_cast<std::size_t>(kernel % count())];
  }

  // The kernel that runs at that time, counted from the iteration's begin.
  KernelIndex at_time(Nanoseconds time_ns) const;
  OpIndex op_of(KernelIndex kernel) const { return ops[static_cast<std::size_t>(kernel % count())]; }

  std::vector<OpIndex> ops;               // of each kernel
  std::vector<Nanoseconds> durations_ns;  // the gap before it and its op
  std::vector<Nanoseconds> starts_ns;     // of each kernel, and at last the whole iteration
  std::vector<KernelIndex> uses;          // by tensor
  std::vector<std::size_t> first_use;     // of each tensor in `uses`, and at last their number
};

// The kernels between two uses of a tensor, of which there is at least one. A persistent tensor's last period runs over
// the iteration's end.
struct InactivePeriod {
  TensorId tensor = none;
  Bytes bytes = 0;
  KernelIndex begin = 0;  // the first kernel that does not use it, less than K
  KernelIndex end = 0;    // the kernel of the next use
  Nanoseconds length_ns = 0;

  // What it takes in a tier that gives out multiples of `granularity`.
  std::int64_t footprint(Bytes granularity) const {
    return static_cast<std::int64_t>((bytes + granularity - 1) / granularity * granularity);
  }
};
// By tensor, then in order of time. Tensors that no kernel uses have none.
std::vector<InactivePeriod> inactive_periods(const Kernels& kernels, const Trace& trace);

// Sums over ranges of kernels of a value each, not negative, that may change: O(log K) (a Fenwick tree). All of an
// iteration must sum to an int64.
class CyclicSums {
 public:
  explicit CyclicSums(std::vector<std::int64_t> values);

  std::int64_t at(KernelIndex kernel) const { return values_[slot(kernel)]; }
  void set(KernelIndex kernel, std::int64_t value);
  std::int64_t total() const { return total_; }
  // Of [from, to), or less that of [to, from); the greatest int64 if the sum is more.
  std::int64_t between(KernelIndex from, KernelIndex to) const;
  // The first `to` for which [from, to) sums to `amount` (above 0); -1 if all is 0.
  KernelIndex forward(KernelIndex from, std::int64_t amount) const;
  // The last `from` for which [from, to) sums to `amount` (above 0); -1 if that lies before kernel 0, or all is 0.
  KernelIndex backward(KernelIndex to, std::int64_t amount) const;

 private:
  std::size_t slot(KernelIndex kernel) const { return static_cast<std::size_t>(kernel) % values_.size(); }
  uint128 before(KernelIndex kernel) const;  // of [0, kernel)
  // The most slots whose sum is less than `amount`, or, with `or_equal`, at most that.
  std::size_t descend(std::int64_t amount, bool or_equal) const;

  std::vector<std::int64_t> values_, tree_;
  std::int64_t total_ = 0;
};

// What can still be moved between tiers during each kernel, at most 2^61 bytes in an iteration. A path takes what it
// moves from its links (two where it is staged) and from the resources that these share with other paths.
class BandwidthPlan {
 public:
  BandwidthPlan(const Kernels& kernels, const MachineSpec& machine);

  bool exists(TierId from, TierId to) const { return paths_[index(from, to)].bandwidth > 0; }
  BytesPerSecond bandwidth(TierId from, TierId to) const { return paths_[index(from, to)].bandwidth; }
  // Of a copy that has the path for itself.
  Nanoseconds trip_ns(TierId from, TierId to, Bytes bytes) const;
  // Bytes that each kernel has left. The path must exist, here and below.
  const CyclicSums& left(TierId from, TierId to) const { return lefts_[paths_[index(from, to)].left]; }
  // Takes `bytes` from [begin, end): the earliest there is. What does not fit is not taken. O(log K) for each kernel
  // that gives something.
  void take_earliest(TierId from, TierId to, KernelIndex begin, KernelIndex end, Bytes bytes);

 private:
  struct Path {
    BytesPerSecond bandwidth = 0;  // of the slowest link; 0: there is none
    Nanoseconds latency_ns = 0;
    std::vector<std::size_t> parts;  // links, then resources: indices into parts_
    std::size_t left = 0;            // into lefts_
  };
  std::size_t index(TierId from, TierId to) const { return from * tier_count_ + to; }
  Bytes take(const Path& path, KernelIndex kernel, Bytes bytes);

  std::size_t tier_count_;
  std::vector<Path> paths_;                      // [from][to]
  std::vector<std::vector<Bytes>> parts_;        // left of each link and resource, by kernel
  std::vector<std::vector<std::size_t>> users_;  // of each part: indices into paths_
  std::vector<CyclicSums> lefts_;
};

// What greedy planners choose from, the greatest first. Values only fall, and one is looked at again when it comes to
// the top: then it is lowered to what it is now worth, which mostly leaves it near the top, so that this is cheaper
// than to take it out and put it back. Items are ordered by <, totally.
template <typename Item>
class Candidates {
 public:
  explicit Candidates(std::vector<Item> items) : items_(std::move(items)) {
    for (std::size_t at = items_.size(); at-- > 0;) sift_down(at, Item(items_[at]));
  }
  bool empty() const { return items_.empty(); }
  const Item& top() const { return items_.front(); }
  void pop() {
    const Item last = items_.back();
    items_.pop_back();
    if (!items_.empty()) sift_down(0, last);
  }
  // Gives the top a value that is not above its own. Whether it is still the top.
  bool lower_top(const Item& item) { return sift_down(0, item) == 0; }

 private:
  static constexpr std::size_t arity = 4;  // of the heap: fewer levels, and children that lie side by side

  std::size_t sift_down(std::size_t at, const Item& item) {
    for (std::size_t child = arity * at + 1; child < items_.size(); child = arity * at + 1) {
      const std::size_t end = std::min(child + arity, items_.size());
      for (std::size_t other = child + 1; other < end; ++other) {
        if (items_[child] < items_[other]) child = other;
      }
      if (!(item < items_[child])) break;
      items_[at] = items_[child];
      at = child;
    }
    items_[at] = item;
    return at;
  }

  std::vector<Item> items_;
};

// Whether a copy that begins with the kernel finds nothing left in all kernels that it would take if it had the path
// for itself, but for the one in which it would end.
bool nothing_left_for(const Kernels& kernels, const BandwidthPlan& bandwidth, TierId from, TierId to, KernelIndex begin,
                      Bytes bytes);

// The memory that each kernel finds taken if everything alive is resident, and the time for which that is too much.
// A tree over the kernels: a change of a range costs O(log K), and O(log K) for each kernel that comes to be above the
// limit or no longer is.
class MemoryProfile {
 public:
  // Nothing is taken.
  MemoryProfile(const Kernels& kernels, Bytes limit);
  // What no kernel uses takes no room. A tensor that is not persistent is there from `allocated_ahead` kernels before
  // its first use (but not in the iteration before) to its last. Each takes a multiple of `granularity`.
  MemoryProfile(const Kernels& kernels, const Trace& trace, Bytes limit, KernelIndex allocated_ahead = 0,
                Bytes granularity = 1);

  std::int64_t at(KernelIndex kernel) const;
  std::int64_t limit() const { return limit_; }
  bool fits() const { return over_.total() == 0; }
  // Of [from, to), the time with more than the limit.
  Nanoseconds time_over(KernelIndex from, KernelIndex to) const { return over_.between(from, to); }
  // Of [from, to), the sum of time x what is above the limit, but no more than `most` of it: what a tensor of that size
  // would relieve by leaving.
  int128 excess(KernelIndex from, KernelIndex to, Bytes most) const;
  // The greatest of [from, to), which is not empty.
  std::int64_t most(KernelIndex from, KernelIndex to) const;
  // The first kernel with the greatest of all.
  KernelIndex peak() const;
  // Adds to (or with a negative number takes from) every kernel of [from, to).
  void add(KernelIndex from, KernelIndex to, std::int64_t bytes);

 private:
  struct Node {
    std::int64_t added = 0;  // to all below, whose figures do not have it yet
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    std::int64_t least_over = std::numeric_limits<std::int64_t>::max();  // of those above the limit, if any
    std::int64_t most_under = std::numeric_limits<std::int64_t>::min();  // of the others, if any
    std::uint32_t over_count = 0, under_count = 0;
    Nanoseconds time_over = 0;
    int128 excess = 0;
  };
  // Kernels of one iteration, in order.
  struct Range {
    std::size_t begin, end;
    std::size_t length() const { return end - begin; }
  };
  // A range of kernels as at most two of one iteration; empty ones are not visited.
  template <typename Visit>
  void each_part(KernelIndex from, KernelIndex to, Visit visit) const;
  void build();
  void set_leaf(std::size_t node, std::int64_t bytes);
  void raise(Node& node, std::int64_t bytes);
  void push(std::size_t node);
  void pull(std::size_t node);
  void settle(std::size_t node, Range below);
  void add(std::size_t node, Range below, Range range, std::int64_t bytes);
  // `added`: by the nodes above.
  int128 excess(std::size_t node, Range below, Range range, std::int64_t added, std::int64_t most) const;
  std::int64_t most(std::size_t node, Range below, Range range) const;

  std::int64_t limit_;
  std::vector<Nanoseconds> durations_ns_;
  CyclicSums over_;
  std::size_t leaf_count_ = 1;  // a power of two
  std::vector<Node> nodes_;     // [1] is the root, the children of n are 2n and 2n + 1; leaves from leaf_count_ on
};

// The tiers that a plan may swap to, the fastest first, and what it keeps there.
class SwapSpace {
 public:
  SwapSpace(const Kernels& kernels, const MachineSpec& machine, const BandwidthPlan& bandwidth);
  // The first with room for the period's tensor, from its eviction to its return; no_tier if there is none.
  TierId tier_for(const InactivePeriod& period) const;
  void take(const InactivePeriod& period, TierId tier);

 private:
  std::vector<TierId> tiers_;
  std::vector<MemoryProfile> used_;  // of each
};

// The unit in which tensors of any size can move: `chunk_bytes`, or, where that is 0 (whole tensors) and some tier is
// reached through staging buffers, one buffer.
Bytes unit_that_moves(const MachineSpec& machine, Bytes chunk_bytes);

// The same for policies that move whole tensors wherever they can: `chunk_bytes`, or, where that is 0, some tier is
// reached through staging buffers and the program's persistent tensors are more than CPU memory holds, all staging
// buffers together. So what passes them in one piece does, and a larger tensor moves in parts that fill them, one after
// the other. `program` may be null (not known yet): whole tensors.
Bytes unit_of_whole_tensors(const MachineSpec& machine, const Program* program, Bytes chunk_bytes);

// A plan as what to do when an op is issued: evictions first, then prefetches, each in the order in which they were
// put in.
class Hints {
 public:
  // Tensors are ids of the program.
  void evict(OpIndex at, TensorId tensor, TierId destination) { evictions_.push_back({at, tensor, destination}); }
  void fetch(OpIndex at, TensorId tensor) { prefetches_.push_back({at, tensor, 0}); }
  void sort();  // when all are put in
  bool empty() const { return evictions_.empty() && prefetches_.empty(); }
  void give(OpIndex issued, const View& view, Actions& actions) const;

 private:
  struct Hint {
    OpIndex op = none;
    TensorId tensor = none;
    TierId destination = no_tier;
  };
  std::vector<Hint> evictions_, prefetches_;  // by op
};

// For policies whose plan says which tier evicted tensors go to, when an op is issued (on the GPU): what it lacks room
// for is made room for by the coldest, which leave for `destination`. Without it the engine chooses the tier.
void evict_coldest_for(const Event& issued, const View& view, TierId destination, Actions& actions);

}  // namespace tencache
