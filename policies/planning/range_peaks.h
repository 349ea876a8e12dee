// The greatest of a range of the kernels of an iteration, which goes round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/planning/kernels.h"

namespace tencache {

// A value for each kernel, of which ranges are raised and asked for their greatest: O(log K). MemoryProfile can tell of
// time above a limit, too, which costs several times as much.
class RangePeaks {
 public:
  explicit RangePeaks(const std::vector<std::int64_t>& values);

  // Of [from, to), which is neither empty nor longer than an iteration.
  std::int64_t most(KernelIndex from, KernelIndex to) const;
  void add(KernelIndex from, KernelIndex to, std::int64_t change);

 private:
  struct Node {
    std::int64_t most = 0;   // below, with what was added to this node, without what was to those above
    std::int64_t added = 0;  // to all below
  };
  // A range of kernels as one or two of leaves.
  template <typename Visit>
  void each_part(KernelIndex from, KernelIndex to, Visit visit) const;
  void update(std::size_t node);

  std::size_t count_;           // of kernels
  std::size_t leaf_count_ = 1;  // a power of two, as many or more
  std::vector<Node> nodes_;     // [1] is the root, the children of n are 2n and 2n + 1
};

}  // namespace tencache
