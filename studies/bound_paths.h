// What flows at most into and out of a set of tiers.
#pragma once

#include <vector>

#include "core/machine_spec.h"

namespace tencache {

// The links that cross the border of a set of tiers, and the most that they carry together.
struct Border {
  std::vector<LinkId> links;
  // Over any time t at most bandwidth x t bytes, and at most sustained x t + burst.
  double bandwidth = 0, sustained = 0, burst = 0;  // bytes per second, bytes
};

// `inside`: by tier. Links into the set, out of it, or both together. The bandwidth is a bound from above: each link is
// counted at its own, or with others that use the same resource at that resource's, whichever choice is the least.
enum class Crossing : std::uint8_t { in, out, both };
Border border_of(const MachineSpec& machine, const std::vector<bool>& inside, Crossing crossing);

}  // namespace tencache
