#include "core/machine_spec.h"

#include <algorithm>
#include <bit>
#include <set>

#include "core/error.h"

namespace tencache {

Bytes CapacityOverTime::at(Nanoseconds passed_ns, Bytes whole) const {
  const Nanoseconds now = phase(passed_ns);
  const auto next = std::ranges::upper_bound(changes, now, {}, &Change::at_ns);
  return next == changes.begin() ? whole : std::min(whole, std::prev(next)->bytes);
}

Nanoseconds CapacityOverTime::phase(Nanoseconds passed_ns) const {
  if (!any()) return 0;
  return period_ns > 0 ? passed_ns % period_ns : std::min(passed_ns, changes.back().at_ns);
}

TierId MachineSpec::tier_of(Device device) const {
  const TierKind kind = device == Device::gpu ? TierKind::gpu : TierKind::cpu;
  for (TierId tier = 0; tier < tiers.size(); ++tier) {
    if (tiers[tier].kind == kind) return tier;
  }
  return no_tier;
}

LinkId MachineSpec::link_between(TierId from, TierId to) const {
  for (LinkId link = 0; link < links.size(); ++link) {
    if (links[link].from == from && links[link].to == to) return link;
  }
  return no_link;
}

std::vector<LinkId> MachineSpec::path_between(TierId from, TierId to) const {
  if (from == to) return {};
  if (const LinkId direct = link_between(from, to); direct != no_link) return {direct};
  if (staging.count == 0 || staging.tier == from || staging.tier == to) return {};
  const LinkId in = link_between(from, staging.tier), out = link_between(staging.tier, to);
  if (in == no_link || out == no_link) return {};
  return {in, out};
}

void MachineSpec::validate() const {
  const std::string at = file.empty() ? "machine '" + name + "'" : file;
  const auto refuse = [&at](const std::string& message) { throw Error(at, 0, message); };
  if (tiers.empty() || tiers[0].kind != TierKind::gpu) refuse("the first tier must be of kind gpu");
  if (tiers.size() > max_tiers) refuse("at most " + std::to_string(max_tiers) + " tiers are possible");
  if (links.size() > max_links) refuse("at most " + std::to_string(max_links) + " links are possible");
  if (run_ahead.ops > 0 && run_ahead.time_ns <= 0) refuse("run_ahead.time must be above 0");
  std::set<std::string> names;
  for (const Tier& tier : tiers) {
    if (tier.capacity == 0) refuse("tier '" + tier.name + "' has no capacity");
    if (!std::has_single_bit(tier.granularity)) refuse("tier '" + tier.name + "': granularity must be a power of two");
    if (!names.insert(tier.name).second) refuse("two tiers are named '" + tier.name + "'");
  }
  for (const Resource& resource : resources) {
    if (resource.bandwidth == 0) refuse("resource '" + resource.name + "' has no bandwidth");
  }
  for (const Link& link : links) {
    if (link.from >= tiers.size() || link.to >= tiers.size() || link.from == link.to) {
      refuse("link '" + link.name + "' does not join two tiers");
    }
    if (link.bandwidth == 0) refuse("link '" + link.name + "' has no bandwidth");
    if (link.latency_ns < 0) refuse("link '" + link.name + "' has a negative latency");
    if (!names.insert(link.name).second) refuse("two links or tiers are named '" + link.name + "'");
    for (const std::uint8_t resource : link.uses) {
      if (resource >= resources.size()) refuse("link '" + link.name + "' uses a resource that does not exist");
    }
  }
  if (staging.count > 0 && (staging.tier >= tiers.size() || staging.bytes == 0)) {
    refuse("staging needs a tier and buffers of a size");
  }
  if (initial_tier >= tiers.size()) refuse("initial_tier is not a tier");
  for (TierId tier = 0; tier < tiers.size(); ++tier) {
    if (!tiers[tier].over_time.any()) continue;
    const bool needed = tier == 0 || tier == initial_tier || (staging.count > 0 && tier == staging.tier);
    if (needed || tiers[tier].kind != TierKind::gpu || tiers[tier].allocator != AllocatorKind::exact) {
      refuse("tier '" + tiers[tier].name +
             "' has capacity_over_time: it must be of kind gpu and allocator exact, and neither the first tier nor "
             "where tensors start or are staged, as what it holds is given up when it shrinks");
    }
  }
  if (issue_ahead == 0 || copies_in_flight == 0) refuse("issue_ahead and copies_in_flight are at least 1");
  for (TierId tier = 1; tier < tiers.size(); ++tier) {
    const bool staged =
        staging.count > 0 && link_between(tier, staging.tier) != no_link && link_between(staging.tier, 0) != no_link;
    if (link_between(tier, 0) == no_link && !staged)
      refuse("nothing leads from tier '" + tiers[tier].name + "' to the GPU");
  }
}

}  // namespace tencache
