// The memory that a program needs, kernel by kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/trace.h"
#include "core/units.h"
#include "policies/planning/cyclic_sums.h"
#include "policies/planning/kernels.h"

namespace tencache {

__extension__ using int128 = __int128;

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
  // The last kernel of [from, to) with more than that; from - 1 if there is none.
  KernelIndex last_above(KernelIndex from, KernelIndex to, std::int64_t bytes) const;
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
  std::optional<std::size_t> last_above(std::size_t node, Range below, Range range, std::int64_t bytes) const;

  std::int64_t limit_;
  std::vector<Nanoseconds> durations_ns_;
  CyclicSums over_;
  std::size_t leaf_count_ = 1;  // a power of two
  std::vector<Node> nodes_;     // [1] is the root, the children of n are 2n and 2n + 1; leaves from leaf_count_ on
};

}  // namespace tencache
