#include "studies/bound_paths.h"

#include <algorithm>
#include <limits>

namespace tencache {
namespace {

constexpr std::size_t most_resources_together = 10;

bool uses_any(const Link& link, std::uint64_t resources) {
  return std::ranges::any_of(link.uses,
                             [resources](std::uint8_t resource) { return (resources >> resource & 1) != 0; });
}

double rate_of(const Link& link, bool sustained) {
  const bool falls = sustained && link.sustained_bandwidth != 0 && link.sustained_bandwidth < link.bandwidth;
  return static_cast<double>(falls ? link.sustained_bandwidth : link.bandwidth);
}

// All choices of resources if there are few, else each one alone.
double most_together(const MachineSpec& machine, const std::vector<LinkId>& links, bool sustained) {
  std::vector<std::uint8_t> resources;
  for (const LinkId link : links) {
    for (const std::uint8_t resource : machine.links[link].uses) {
      if (resource < 64 && std::ranges::find(resources, resource) == resources.end()) resources.push_back(resource);
    }
  }
  const std::size_t count = resources.size();
  const bool all = count <= most_resources_together;
  const std::uint64_t choices = all ? std::uint64_t{1} << count : count + 1;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint64_t choice = 0; choice < choices; ++choice) {
    std::uint64_t chosen = 0;
    double rate = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (all ? (choice >> i & 1) == 0 : choice != i + 1) continue;
      chosen |= std::uint64_t{1} << resources[i];
      rate += static_cast<double>(machine.resources[resources[i]].bandwidth);
    }
    for (const LinkId link : links) {
      if (!uses_any(machine.links[link], chosen)) rate += rate_of(machine.links[link], sustained);
    }
    least = std::min(least, rate);
  }
  return least;
}

}  // namespace

Border border_of(const MachineSpec& machine, const std::vector<bool>& inside, Crossing crossing) {
  Border border;
  for (LinkId link = 0; link < machine.links.size(); ++link) {
    const bool from = inside[machine.links[link].from], to = inside[machine.links[link].to];
    if (from == to || (crossing == Crossing::in && !to) || (crossing == Crossing::out && !from)) continue;
    border.links.push_back(link);
    border.burst +=
        static_cast<double>(machine.links[link].sustained_bandwidth != 0 ? machine.links[link].burst_bytes : 0);
  }
  border.bandwidth = most_together(machine, border.links, false);
  border.sustained = most_together(machine, border.links, true);
  return border;
}

}  // namespace tencache
