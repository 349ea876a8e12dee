// The windows of the lower bound (studies/bound.h): where the iteration is cut, what each window's fixed ops bring in
// and send out, and the disjoint windows that take longest together, in n log n.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "studies/bound_paths.h"
#include "studies/bound_trace.h"

namespace tencache {

// The iteration cut into `count` parts of whole units, for windows [i, j) of parts.
class BoundCuts {
 public:
  BoundCuts() = default;
  // At most about `most` parts, ending where much time or many bytes have been used, and where phases change.
  BoundCuts(const BoundTrace& trace, std::size_t most);

  std::size_t count() const { return first_unit.size(); }
  // Some of these cuts: about `most`, and those where phases change.
  BoundCuts coarser(const BoundTrace& trace, std::size_t most) const;

  std::vector<std::uint32_t> first_unit;    // of each part
  std::vector<std::uint32_t> part_of_unit;  // by unit
};

// How the bytes of windows [i, j) change when j gets to `end`: those with i >= begin get more (`later`), or those with
// i < begin get less. Either way later begins gain on earlier ones. 0 <= begin < end.
struct DemandChange {
  std::uint32_t end = 0, begin = 0;
  bool later = true;
  double bytes = 0;  // whole
};

// What crosses the border of a set of tiers around the GPU's. `with_cpu`: the tier of the CPU's lane is one of them.
struct Crossed {
  std::optional<Crossing> crossing;  // none: nothing
  bool with_cpu = false;
};

// The iteration in parts, and for each of `crossed` what the fixed GPU ops of windows bring into the set and send out
// of it, but for what the set holds at the window's begin or end.
struct CutTrace {
  BoundCuts cuts;
  std::vector<double> compute_ns;                  // of the fixed GPU ops before each part
  std::vector<std::vector<DemandChange>> changes;  // sorted, those of the same windows as one
};
CutTrace cut(const BoundTrace& trace, BoundCuts cuts, std::span<const Crossed> crossed);

// Sorted as `best_windows` wants them, those of the same windows as one.
std::vector<DemandChange> in_order(std::vector<DemandChange> changes);

// A way to bound the time of a window, in nanoseconds:
// gpu_weight x (compute in it + (bytes - held) / bandwidth) + what movable ops in it add. It may be negative.
struct WindowNeed {
  std::span<const double> compute_ns;  // before each place where a window may begin or end: parts + 1; empty: none
  std::span<const double> movable_ns;  // likewise
  std::span<const DemandChange> changes = {};
  double held = 0, bytes_per_second = 1;
};

struct NeededWindow {
  std::size_t begin = 0, end = 0;  // parts
  std::size_t need = 0;            // the greatest: which of them
  double ns = 0, bytes = 0;        // of that need
  double first_ns = 0;             // of the first need
};

struct BestWindows {
  double ns = 0;
  std::vector<NeededWindow> windows = {};  // that cover the iteration, in order
  std::uint64_t steps = 0;                 // windows and changes looked at
};

// The cut of the iteration with the greatest sum, over its windows, of the greatest need. The first need is of
// no bytes.
BestWindows best_windows(std::span<const WindowNeed> needs, double gpu_weight);

}  // namespace tencache
