#include "studies/minimum.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "core/error.h"
#include "studies/bisection.h"
#include "traces/demand.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

void set_capacity(MachineSpec& machine, TierId tier, Bytes bytes) {
  machine.tiers[tier].capacity = bytes;
  for (MachineSpec& rank : machine.other_ranks) rank.tiers[tier].capacity = bytes;
}

// But for names, prices and which ranks share what.
bool alike(const MachineSpec& a, const MachineSpec& b) {
  const auto tier = [](const Tier& of) {
    return std::tuple(of.kind, of.capacity, of.granularity, of.allocation.per_call_ns, of.allocation.bandwidth,
                      of.allocation.power_of_two, of.allocator, of.bandwidth, of.expand_bandwidth);
  };
  const auto link = [](const Link& of) {
    return std::tuple(of.from, of.to, of.bandwidth, of.latency_ns, of.uses, of.queue_depth, of.devices, of.stripe_bytes,
                      of.sustained_bandwidth, of.burst_bytes, of.pageable_bandwidth);
  };
  const auto resource = [](const Resource& of) { return std::tuple(of.bandwidth, of.shared == none); };
  const auto rest = [](const MachineSpec& of) {
    return std::tuple(of.staging.tier, of.staging.count, of.staging.bytes, of.initial_tier,
                      of.cpu.adam_parameters_per_second, of.cpu.flops_per_second, of.cpu.bandwidth, of.issue_ahead,
                      of.copies_in_flight, of.host.per_module_ns, of.host.per_transfer_ns, of.run_ahead.ops,
                      of.run_ahead.time_ns, of.lane_uses);
  };
  return std::ranges::equal(a.tiers, b.tiers, {}, tier, tier) && std::ranges::equal(a.links, b.links, {}, link, link) &&
         std::ranges::equal(a.resources, b.resources, {}, resource, resource) && rest(a) == rest(b);
}

std::vector<std::size_t> alike_ranks(std::span<const Trace> traces, const MachineSpec& machine) {
  const auto of_rank = [&](std::size_t rank) -> const MachineSpec& {
    return machine.of_rank(std::min(rank, machine.rank_count() - 1));
  };
  const std::vector<std::size_t> by_trace = alike_ranks(traces);
  std::vector<std::size_t> first(traces.size());
  for (std::size_t rank = 0; rank < first.size(); ++rank) {
    while (first[rank] < rank &&
           (by_trace[first[rank]] != by_trace[rank] || !alike(of_rank(first[rank]), of_rank(rank)))) {
      ++first[rank];
    }
  }
  return first;
}

// One of ranks that are all alike, with its part of what they share.
struct OneRank {
  Trace trace;
  MachineSpec machine;
};

// None: they are not alike, or there is only one.
std::optional<OneRank> one_of_alike(const Trace& trace, const MachineSpec& machine) {
  const std::size_t count = rank_count(trace);
  if (count == 1 || count > machine.rank_count()) return std::nullopt;
  std::vector<Trace> traces = split_ranks(trace);
  const std::vector<std::size_t> first = alike_ranks(traces, machine);
  if (std::ranges::any_of(first, [](std::size_t rank) { return rank != 0; })) return std::nullopt;
  OneRank one{std::move(traces[0]), machine};
  one.machine.other_ranks.clear();
  for (Resource& resource : one.machine.resources) {
    if (resource.shared == none) continue;
    double sharers = 0;
    for (std::size_t rank = 0; rank < count; ++rank) {
      sharers += std::ranges::any_of(machine.of_rank(rank).resources,
                                     [&](const Resource& other) { return other.shared == resource.shared; })
                     ? 1
                     : 0;
    }
    resource.bandwidth = static_cast<BytesPerSecond>(static_cast<double>(resource.bandwidth) / sharers);
    resource.shared = none;
  }
  return one;
}

// In MiB, where the search of the GPU's memory begins: its largest op, beside what persists and no other tier takes.
// Many policies need no more.
std::uint64_t likely_minimum(const Trace& trace, const MachineSpec& machine) {
  Bytes most = 0;
  std::size_t rank = 0;
  for (const Demand& demand : demands_of(trace, machine.tiers[0].granularity)) {
    const MachineSpec& own = machine.of_rank(std::min(rank++, machine.rank_count() - 1));
    Bytes persistent = demand.persistent.bytes;
    for (TierId tier = 1; tier < own.tiers.size(); ++tier) persistent -= std::min(persistent, own.tiers[tier].capacity);
    most = std::max(most, persistent + demand.largest_gpu_op.bytes);
  }
  return (most + MiB - 1) / MiB;
}

}  // namespace

std::vector<std::size_t> alike_ranks(const Trace& trace, const MachineSpec& machine) {
  return alike_ranks(split_ranks(trace), machine);
}

Outcome try_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits, Tried tried) {
  constexpr std::uint64_t early = 2, whole = 8;
  RunLimits within = limits;
  Recorders recorders;
  within.max_iterations = std::min(limits.max_iterations, tried == Tried::whole ? whole : early);
  if (tried == Tried::early) {
    recorders.rehearse = [](const Program&, const MachineSpec&, Policy&, const RehearsalLimits&) {
      return Rehearsal();
    };
  }
  try {
    return run_policy(trace, machine, policy, settings, within, recorders);
  } catch (const Error& error) {
    return refused(policy, error);
  }
}

std::optional<Bytes> minimum_capacity(const Trace& trace, const MachineSpec& machine, TierId tier,
                                      const std::string& policy, const std::map<std::string, std::string>& settings,
                                      const RunLimits& limits, bool fits_machine) {
  MachineSpec trial = machine;
  Tried tried = Tried::early;          // what is found is confirmed by whole runs
  std::uint64_t used = 0, lacked = 0;  // MiB: of the tier, by the last that fitted; by the last that did not
  const auto missing = [&](std::uint64_t mebibytes) -> std::optional<std::uint64_t> {
    // No machine has a tier of nothing: a byte takes no tensor.
    set_capacity(trial, tier, std::max<Bytes>(mebibytes * MiB, 1));
    const Outcome outcome = try_policy(trace, trial, policy, settings, limits, tried);
    if (!outcome.result.fits) return lacked = (outcome.result.misfit_bytes + MiB - 1) / MiB;
    Bytes peak = outcome.result.peak_bytes[tier];
    for (const RankOutcome& rank : outcome.ranks) peak = std::max(peak, rank.result.peak_bytes[tier]);
    used = (peak + MiB - 1) / MiB;
    return std::nullopt;
  };
  const auto fits = [&](std::uint64_t mebibytes) { return !missing(mebibytes); };
  if (const auto one = one_of_alike(trace, machine)) {
    const std::optional<Bytes> guess =
        minimum_capacity(one->trace, one->machine, tier, policy, settings, limits, fits_machine);
    if (guess && *guess % MiB == 0 && fits(*guess / MiB) &&
        (*guess == 0 || (*guess == MiB && tier == 0) || !fits(*guess / MiB - 1))) {
      return guess;
    }
  }
  // With room for every tensor twice over, more of this tier is not what is missing.
  std::uint64_t too_little = 0, enough = 1;
  for (const Tensor& tensor : trace.tensors) enough += (tensor.bytes + MiB - 1) / MiB * 2;
  if (fits_machine) {
    Bytes capacity = 0;
    for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) {
      capacity = std::max(capacity, machine.of_rank(rank).tiers[tier].capacity);
    }
    if (capacity / MiB > enough && !fits(enough)) {
      too_little = enough;
      enough = capacity / MiB;
    }
    enough = std::min(enough, capacity / MiB);
    if (enough == 0 || !fits(enough)) return capacity;
  } else if (!fits(enough)) {
    return std::nullopt;
  }
  const std::uint64_t most = enough;
  // What a run with room used is often all that it needs.
  const std::uint64_t used_with_room = used, likely = tier == 0 ? likely_minimum(trace, machine) : 0;
  bool is_near = false;
  if (likely > too_little && likely < enough) {
    if (fits(likely)) {
      enough = likely;
      if (enough - too_little > 1 && !fits(enough - 1)) too_little = enough - 1;
    } else {
      too_little = likely;
    }
  }
  if (used_with_room > too_little && used_with_room < enough) {
    is_near = !fits(used_with_room);
    (is_near ? too_little : enough) = used_with_room;
  }
  // Many policies need nothing of a tier below the GPU.
  if (tier != 0 && too_little == 0 && enough > 1 && fits(1)) {
    enough = 1;
  } else if (is_near || (too_little == likely && enough - too_little > 1)) {
    enough = least_that_fits_near(enough, too_little, missing, lacked);
  } else if (enough == most || enough - too_little == 1 || fits(enough - 1)) {
    enough = least_that_fits(enough, too_little, missing);
  }
  const auto raise = [&] { enough = least_that_fits_near(most, enough, missing, lacked); };
  tried = Tried::whole;
  if (enough < most && !fits(enough)) {
    tried = Tried::planned;
    if (!fits(enough)) raise();
    tried = Tried::whole;
    if (enough < most && !fits(enough)) raise();
  }
  if (enough == 1 && tier != 0 && fits(0)) return 0;
  return enough * MiB;
}

std::optional<JointMinimum> joint_minimum(const Trace& trace, const MachineSpec& machine, TierId tier,
                                          const std::string& policy, const std::map<std::string, std::string>& settings,
                                          const RunLimits& limits) {
  MachineSpec roomy = machine;
  TierId other = no_tier;
  for (TierId each = 1; each < machine.tiers.size(); ++each) {
    if (each == tier) continue;
    set_capacity(roomy, each, unlimited);
    other = each;
  }
  std::optional<Bytes> least = minimum_capacity(trace, roomy, tier, policy, settings, limits, false);
  if (!least && tier != 0) {
    set_capacity(roomy, 0, unlimited);
    other = 0;
    least = minimum_capacity(trace, roomy, tier, policy, settings, limits, false);
  }
  if (!least) return std::nullopt;
  JointMinimum joint{.bytes = *least};
  if (other == no_tier) return joint;
  MachineSpec with_least = machine;
  set_capacity(with_least, tier, std::max<Bytes>(*least, 1));
  const auto needed = minimum_capacity(trace, with_least, other, policy, settings, limits, false);
  const Bytes own = machine.tiers[other].capacity;
  if (!needed || *needed <= own) return joint;
  joint.other = other;
  joint.more = *needed - own;
  return joint;
}

}  // namespace tencache
