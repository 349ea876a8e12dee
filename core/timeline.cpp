#include "core/timeline.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

namespace tencache {

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
  struct Held {
    Role role = Role::activation;  // the last one: some become known after the room was taken
    std::int64_t bytes = 0;
  };
  std::map<std::tuple<TierId, TensorId, Role>, Held> held;  // by role only what nobody knows the tensors of
  for (const OccupancySample& sample : timeline.occupancy) {
    if (sample.time_ns > start_ns) break;
    Held& of_tensor = held[{sample.tier, sample.tensor, sample.tensor == none ? sample.role : Role::activation}];
    of_tensor.role = sample.role;
    of_tensor.bytes += sample.change;
  }
  std::array<Bytes, max_tiers> used{};
  for (const auto& [key, of_tensor] : held) {
    const auto& [tier, tensor, unknown] = key;
    if (of_tensor.bytes == 0) continue;
    used[tier] += static_cast<Bytes>(of_tensor.bytes);
    part.occupancy.push_back({start_ns, tier, of_tensor.role, tensor, used[tier], of_tensor.bytes});
  }
  std::ranges::copy_if(timeline.occupancy, std::back_inserter(part.occupancy),
                       [start_ns](const OccupancySample& sample) { return sample.time_ns > start_ns; });
  return part;
}

}  // namespace tencache
