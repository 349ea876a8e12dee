#include "policies/foresight/ways.h"

#include <algorithm>
#include <utility>

namespace tencache {

Ways::Ways(const MachineSpec& machine) : cpu(machine.tier_of(Device::cpu)), tiers(machine.tiers.size()) {
  for (TierId from = 0; from < tiers; ++from) {
    for (TierId to = 0; to < tiers; ++to) links.push_back(machine.link_between(from, to));
  }
  if (cpu != no_tier && machine.link_between(0, cpu) == no_link) cpu = no_tier;
  const auto joined = [&](TierId a, TierId b) {
    return a != no_tier && machine.link_between(a, b) != no_link && machine.link_between(b, a) != no_link;
  };
  std::vector<std::pair<BytesPerSecond, TierId>> found;
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    const auto path = machine.path_between(tier, 0);
    if (!path.empty()) {
      BytesPerSecond bandwidth = machine.links[path.front()].bandwidth;
      for (const LinkId link : path) bandwidth = std::min(bandwidth, machine.links[link].bandwidth);
      found.emplace_back(bandwidth, tier);
    }
    if (machine.tiers[tier].kind != TierKind::nvme) continue;
    stores.push_back({.tier = tier, .by_gpu = joined(0, tier), .by_cpu = joined(cpu, tier), .read = {}});
  }
  std::ranges::stable_sort(found, std::greater<>(), &decltype(found)::value_type::first);
  for (const auto& [bandwidth, tier] : found) sources.push_back(tier);
}

bool Ways::leave(TierId from, const View& view) const {
  for (TierId to = 0; to < tiers; ++to) {
    if (link(from, to) != no_link && view.transfers_on(link(from, to)) > 0) return true;
  }
  return false;
}

TierId Ways::store_of(ChunkId chunk, const Residency& memory) const {
  for (const Store& store : stores) {
    if (memory.valid(chunk, store.tier)) return store.tier;
  }
  return no_tier;
}

TierId Ways::source_of(ChunkId chunk, const Residency& memory) const {
  for (const TierId tier : sources) {
    if (memory.valid(chunk, tier) && memory.copy(chunk, tier).writers == 0) return tier;
  }
  return no_tier;
}

}  // namespace tencache
