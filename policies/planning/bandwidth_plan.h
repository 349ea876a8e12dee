// What the links of a machine can still move during each kernel.
#pragma once

#include <cstddef>
#include <vector>

#include "core/machine_spec.h"
#include "policies/planning/cyclic_sums.h"
#include "policies/planning/kernels.h"

namespace tencache {

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

// Whether a copy that begins with the kernel finds nothing left in all kernels that it would take if it had the path
// for itself, but for the one in which it would end.
bool nothing_left_for(const Kernels& kernels, const BandwidthPlan& bandwidth, TierId from, TierId to, KernelIndex begin,
                      Bytes bytes);

}  // namespace tencache
