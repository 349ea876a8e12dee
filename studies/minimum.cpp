#include "studies/minimum.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "policies/registry.h"
#include "studies/bisection.h"
#include "traces/demand.h"
#include "traces/transform/lower.h"
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
                      of.allocation.power_of_two, of.allocator, of.bandwidth, of.expand_bandwidth, of.over_time);
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

std::uint64_t in_mebibytes(Bytes bytes) { return (bytes + MiB - 1) / MiB; }

// The program that ran on one rank: its largest op, beside what persists and no other tier takes.
Bytes least_of_program(const Program& program, const MachineSpec& machine) {
  Bytes most = 0;
  for (const Demand& demand : demands_of(program.trace, machine.tiers[0].granularity)) {
    Bytes persistent = demand.persistent.bytes;
    for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
      persistent -= std::min(persistent, machine.tiers[tier].capacity);
    }
    most = std::max(most, persistent + demand.largest_placed_op);
  }
  return most;
}

// `is_whole`, if given: what comes out is a whole try's result.
Outcome try_once(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                 const std::map<std::string, std::string>& settings, const RunLimits& limits, Tried tried,
                 bool* is_whole) {
  constexpr std::uint64_t early = 2, whole = 8;
  RunLimits within = limits;
  Recorders recorders;
  within.max_iterations = std::min(limits.max_iterations, tried == Tried::whole ? whole : early);
  bool rehearsed = false;
  if (tried == Tried::early) {
    recorders.rehearse = [&](const Program&, const MachineSpec&, Policy&, const RehearsalLimits&) {
      rehearsed = true;
      return Rehearsal();
    };
  }
  try {
    Outcome outcome = run_policy(trace, machine, policy, settings, within, recorders);
    if (is_whole != nullptr) {
      *is_whole = !rehearsed && (outcome.result.steady || limits.max_iterations <= within.max_iterations);
    }
    return outcome;
  } catch (const Error& error) {
    return refused(policy, error);
  }
}

// Whether an early try with so many MiB of GPU memory need not be made: an op of its program is larger, or the policy
// refuses.
bool surely_lacks(const Trace& trace, MachineSpec machine, std::uint64_t mebibytes, const std::string& policy,
                  const std::map<std::string, std::string>& settings) {
  if (rank_count(trace) > 1) return false;
  set_capacity(machine, 0, mebibytes * MiB);
  const Rehearse none = [](const Program&, const MachineSpec&, Policy&, const RehearsalLimits&) { return Rehearsal(); };
  Bytes largest = 0;
  try {
    naming_policy(policy, [&] {
      const MadePolicy made = make_policy(policy, settings);
      prepare(trace, *made.policy, machine, none);
      const Program program = lower(trace, *made.policy, machine);
      largest = demands_of(program.trace, machine.tiers[0].granularity).front().largest_placed_op;
    });
  } catch (const Error&) {
    return true;
  }
  return largest > mebibytes * MiB;
}

}  // namespace

std::vector<std::size_t> alike_ranks(const Trace& trace, const MachineSpec& machine) {
  return alike_ranks(split_ranks(trace), machine);
}

KnownRun known_run(const Outcome& outcome, const MachineSpec& machine) {
  KnownRun known{.fits = outcome.result.fits};
  known.peak_bytes.assign(machine.tiers.size(), 0);
  for (std::size_t rank = 0; rank < std::max<std::size_t>(outcome.ranks.size(), 1); ++rank) {
    const RunResult& result = outcome.ranks.empty() ? outcome.result : outcome.ranks[rank].result;
    const Program& program = outcome.ranks.empty() ? outcome.program : outcome.ranks[rank].program;
    for (std::size_t tier = 0; tier < result.peak_bytes.size(); ++tier) {
      known.peak_bytes[tier] = std::max(known.peak_bytes[tier], result.peak_bytes[tier]);
    }
    known.least_bytes = std::max(known.least_bytes, least_of_program(program, machine.of_rank(rank)));
  }
  return known;
}

Outcome try_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits, Tried tried) {
  return try_once(trace, machine, policy, settings, limits, tried, nullptr);
}

std::optional<Bytes> minimum_capacity(const Trace& trace, const MachineSpec& machine, TierId tier,
                                      const std::string& policy, const std::map<std::string, std::string>& settings,
                                      const RunLimits& limits, const std::optional<KnownRun>& as_is) {
  MachineSpec trial = machine;
  Tried tried = Tried::early;   // what is found is confirmed by whole runs
  std::uint64_t confirmed = 0;  // MiB: where an early run was a whole one, and fitted
  std::uint64_t lacked = 0;     // MiB: of the tier, by the last that did not fit
  std::optional<Outcome> last;  // that fitted
  const auto missing = [&](std::uint64_t mebibytes) -> std::optional<std::uint64_t> {
    // No machine has a tier of nothing: a byte takes no tensor.
    set_capacity(trial, tier, std::max<Bytes>(mebibytes * MiB, 1));
    bool is_whole = false;
    Outcome outcome = try_once(trace, trial, policy, settings, limits, tried, &is_whole);
    if (!outcome.result.fits) return lacked = in_mebibytes(outcome.result.misfit_bytes);
    last = std::move(outcome);
    if (is_whole) confirmed = mebibytes;
    return std::nullopt;
  };
  const auto fits = [&](std::uint64_t mebibytes) { return !missing(mebibytes); };
  constexpr std::uint64_t within = 1024;
  if (const auto one = one_of_alike(trace, machine)) {
    const std::optional<Bytes> guess =
        minimum_capacity(one->trace, one->machine, tier, policy, settings, limits, as_is);
    if (guess && *guess % MiB == 0 && fits(*guess / MiB) &&
        (*guess == 0 || (*guess == MiB && tier == 0) || !fits(*guess / MiB - 1 - *guess / MiB / within))) {
      return guess;
    }
  }
  Bytes capacity = 0;
  for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) {
    capacity = std::max(capacity, machine.of_rank(rank).tiers[tier].capacity);
  }
  // With room for every tensor twice over, more of this tier is not what is missing.
  std::uint64_t too_little = 0, enough = 1;
  for (const Tensor& tensor : trace.tensors) enough += in_mebibytes(tensor.bytes) * 2;
  if (!as_is || !as_is->fits) {
    if (!fits(enough)) return std::nullopt;
    if (as_is && capacity / MiB < enough) too_little = capacity / MiB;
  } else if (capacity / MiB <= enough) {
    enough = capacity / MiB;
    if (enough == 0 || (capacity % MiB != 0 && !fits(enough))) return capacity;
  } else if (!fits(enough)) {
    too_little = enough;
    enough = capacity / MiB;
  }
  const std::uint64_t most = enough;
  // Its largest op is all that many policies need of the GPU, and nothing of a tier below.
  const KnownRun roomy = last ? known_run(*last, trial) : *as_is;
  const std::uint64_t likely = tier == 0 ? in_mebibytes(roomy.least_bytes) : 1;
  const std::uint64_t used = in_mebibytes(roomy.peak_bytes[tier]);
  bool is_near = false;  // to too_little
  if (likely > too_little && likely < enough) {
    tried = tier == 0 ? Tried::whole : Tried::early;
    if (fits(likely)) {
      enough = likely;
      if (tried == Tried::whole) confirmed = likely;
      tried = Tried::early;
      if (enough - too_little > 1) {
        const bool is_least = tier == 0 && surely_lacks(trace, trial, enough - 1, policy, settings);
        (!is_least && fits(enough - 1) ? enough : too_little) = enough - 1;
      }
    } else {
      too_little = likely;
      is_near = tier == 0;
      tried = Tried::early;
    }
  }
  // What a run with room used is often all that it needs.
  if (used > too_little && used < enough) {
    if (fits(used - 1)) {
      enough = used - 1;
    } else {
      is_near = !fits(used);
      (is_near ? too_little : enough) = used;
      if (!is_near) too_little = used - 1;
    }
  }
  if (is_near) {
    enough = least_that_fits_near(enough, too_little, missing, lacked, within);
  } else {
    enough = least_that_fits(enough, too_little, missing, within);
  }
  const auto raise = [&] { enough = least_that_fits_near(most, enough, missing, lacked, within); };
  tried = Tried::whole;
  if (enough < most && enough != confirmed && !fits(enough)) {
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
  std::optional<Bytes> least = minimum_capacity(trace, roomy, tier, policy, settings, limits, std::nullopt);
  if (!least && tier != 0) {
    set_capacity(roomy, 0, unlimited);
    other = 0;
    least = minimum_capacity(trace, roomy, tier, policy, settings, limits, std::nullopt);
  }
  if (!least) return std::nullopt;
  JointMinimum joint{.bytes = *least};
  if (other == no_tier) return joint;
  MachineSpec with_least = machine;
  set_capacity(with_least, tier, std::max<Bytes>(*least, 1));
  const auto needed = minimum_capacity(trace, with_least, other, policy, settings, limits, std::nullopt);
  const Bytes own = machine.tiers[other].capacity;
  if (!needed || *needed <= own) return joint;
  joint.other = other;
  joint.more = *needed - own;
  return joint;
}

}  // namespace tencache
