#include "studies/wear.h"

#include <algorithm>
#include <set>

#include "core/check.h"

namespace tencache {
namespace {

constexpr double seconds_a_day = 86'400, days_a_year = 365;

bool written_by(const Link& link, TierId tier) { return link.to == tier; }

// Ranks with the same number write to the same SSDs; none: this rank's own.
std::uint32_t shared_ssds(const MachineSpec& machine, TierId tier) {
  for (const Link& link : machine.links) {
    if (!written_by(link, tier)) continue;
    for (const std::uint8_t resource : link.uses) {
      const bool storage_only = std::ranges::all_of(machine.links, [&](const Link& other) {
        const bool uses = std::ranges::find(other.uses, resource) != other.uses.end();
        return !uses || other.to == tier || other.from == tier;
      });
      if (storage_only && machine.resources[resource].shared != none) return machine.resources[resource].shared;
    }
  }
  return none;
}

// The SSDs that so many ranks write to, of all arrays together, and their capacity.
struct Ssds {
  std::uint32_t devices = 0;
  double capacity = 0;
  bool known = true;  // the capacity
};

std::uint32_t devices_of(const MachineSpec& machine, TierId tier) {
  auto devices = static_cast<std::uint32_t>(std::max<std::size_t>(1, machine.tiers[tier].directories.size()));
  for (const Link& link : machine.links) {
    if (written_by(link, tier)) devices = std::max(devices, link.devices);
  }
  return devices;
}

Ssds ssds_of(const MachineSpec& machine, TierId tier, std::size_t ranks) {
  Ssds ssds;
  std::set<std::uint32_t> arrays;  // that ranks share
  std::uint32_t count = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t shared = shared_ssds(machine.of_rank(rank), tier);
    if (shared == none || arrays.insert(shared).second) ++count;
  }
  ssds.devices = devices_of(machine, tier) * count;
  // With the parts of ranks that the trace leaves idle.
  for (std::size_t rank = 0; rank < std::max(ranks, machine.rank_count()); ++rank) {
    if (rank >= ranks && !arrays.contains(shared_ssds(machine.of_rank(rank), tier))) continue;
    const Bytes own = machine.of_rank(rank).tiers[tier].capacity;
    ssds.known = ssds.known && own < unlimited;
    ssds.capacity += static_cast<double>(own);
  }
  return ssds;
}

double written_per_iteration(const RunResult& result, const MachineSpec& machine, TierId tier) {
  double bytes = 0;
  for (std::size_t link = 0; link < machine.links.size(); ++link) {
    if (written_by(machine.links[link], tier)) bytes += static_cast<double>(result.window.links[link].bytes);
  }
  return bytes / static_cast<double>(result.period);
}

void rate(TierWear& wear, const Tier& tier, const WearOptions& options) {
  if (options.rated) {
    wear.ssd_rated_bytes = static_cast<double>(*options.rated);
  } else if (!options.drive_writes_per_day && tier.rated_written_bytes != 0) {
    wear.ssd_rated_bytes = static_cast<double>(tier.rated_written_bytes);
  } else if (wear.ssd_capacity_bytes) {
    wear.ssd_rated_bytes = options.drive_writes_per_day.value_or(1) * static_cast<double>(*wear.ssd_capacity_bytes) *
                           days_a_year * options.warranty_years;
  } else {
    return;
  }
  wear.rated_by = options.rated || options.drive_writes_per_day ? "options"
                  : tier.rated_written_bytes != 0               ? "machine"
                                                                : "assumed";
}

}  // namespace

bool is_parallel_file_system(const Tier& tier) { return tier.kind == TierKind::nvme && tier.name == "pfs"; }

std::vector<TierWear> wear_of(const Outcome& outcome, const MachineSpec& machine, const WearOptions& options) {
  TENCACHE_CHECK(outcome.result.fits);
  std::vector<TierWear> wears;
  const std::size_t ranks = std::max<std::size_t>(1, outcome.ranks.size());
  const double iteration_seconds = outcome.result.iteration_seconds();
  for (TierId tier = 0; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind != TierKind::nvme || is_parallel_file_system(machine.tiers[tier])) continue;
    double bytes = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const RunResult& result = outcome.ranks.empty() ? outcome.result : outcome.ranks[rank].result;
      bytes += written_per_iteration(result, machine.of_rank(rank), tier);
    }
    const Ssds ssds = ssds_of(machine, tier, ranks);
    TierWear wear;
    wear.tier = machine.tiers[tier].name;
    wear.ssds = ssds.devices;
    wear.ssd_written_bytes_per_iteration = bytes / wear.ssds;
    wear.ssd_written_bytes_per_day = wear.ssd_written_bytes_per_iteration * options.write_amplification * options.duty *
                                     seconds_a_day / iteration_seconds;
    if (const auto capacity = static_cast<Bytes>(ssds.capacity / wear.ssds); ssds.known && capacity > 0) {
      wear.ssd_capacity_bytes = capacity;
      wear.drive_writes_per_day = wear.ssd_written_bytes_per_day / static_cast<double>(capacity);
    }
    rate(wear, machine.tiers[tier], options);
    if (wear.ssd_written_bytes_per_day > 0 && wear.ssd_rated_bytes.value_or(0) > 0) {
      wear.years = *wear.ssd_rated_bytes / wear.ssd_written_bytes_per_day / days_a_year;
    }
    wears.push_back(std::move(wear));
  }
  return wears;
}

}  // namespace tencache
