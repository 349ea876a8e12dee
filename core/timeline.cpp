#include "core/timeline.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

namespace tencache {

std::string_view to_string(StallCause cause) {
  constexpr std::string_view texts[stall_cause_count] = {"h2d",           "d2h",    "nvme_read", "nvme_write",
                                                         "cpu_optimizer", "memory", "collective"};
  return texts[static_cast<std::size_t>(cause)];
}

StallCause cause_of(const MachineSpec& machine, LinkId link) {
  const TierKind from = machine.tiers[machine.links[link].from].kind;
  const TierKind to = machine.tiers[machine.links[link].to].kind;
  if (from == TierKind::nvme) return StallCause::nvme_read;
  if (to == TierKind::nvme) return StallCause::nvme_write;
  return to == TierKind::gpu ? StallCause::h2d : StallCause::d2h;
}

Timeline from_iteration(const Timeline& timeline, std::uint64_t first) {
  Timeline part;
  std::ranges::copy_if(timeline.spans, std::back_inserter(part.spans),
                       [first](const Span& span) { return span.iteration >= first; });
  if (part.spans.empty()) return part;
  const Nanoseconds start_ns = std::ranges::min_element(part.spans, {}, &Span::start_ns)->start_ns;
  std::map<std::tuple<TierId, Role, TensorId>, std::int64_t> held;
  for (const OccupancySample& sample : timeline.occupancy) {
    if (sample.time_ns > start_ns) break;
    held[{sample.tier, sample.role, sample.tensor}] += sample.change;
  }
  std::array<Bytes, max_tiers> used{};
  for (const auto& [key, bytes] : held) {
    const auto& [tier, role, tensor] = key;
    if (bytes == 0) continue;
    used[tier] += static_cast<Bytes>(bytes);  // wraps where a role became known late; the sum is right
    part.occupancy.push_back({start_ns, tier, role, tensor, used[tier], bytes});
  }
  std::ranges::copy_if(timeline.occupancy, std::back_inserter(part.occupancy),
                       [start_ns](const OccupancySample& sample) { return sample.time_ns > start_ns; });
  return part;
}

}  // namespace tencache
