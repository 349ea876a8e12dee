#include "studies/fit.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_map>

#include "core/error.h"
#include "policies/registry.h"
#include "studies/bisection.h"
#include "studies/parallel.h"
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

}  // namespace

std::vector<std::size_t> alike_ranks(const Trace& trace, const MachineSpec& machine) {
  return alike_ranks(split_ranks(trace), machine);
}

std::vector<TierPeak> tier_peaks(const Timeline& timeline, const RunResult& result, const MachineSpec& machine) {
  std::vector<TierPeak> peaks;
  for (const Tier& tier : machine.tiers) peaks.push_back({.name = tier.name});
  Nanoseconds window_begin = 0;
  for (std::size_t i = 0; i + result.period < result.iteration_ns.size(); ++i) window_begin += result.iteration_ns[i];
  std::vector<Bytes> used(peaks.size(), 0), rounded(peaks.size(), 0);
  std::vector<std::unordered_map<TensorId, Bytes>> held(peaks.size());
  bool in_window = false;
  const auto enter_window = [&] {
    in_window = true;
    for (std::size_t tier = 0; tier < peaks.size(); ++tier) peaks[tier].steady_peak_bytes = used[tier];
  };
  for (const OccupancySample& sample : timeline.occupancy) {
    if (!in_window && sample.time_ns > window_begin) enter_window();
    TierPeak& peak = peaks[sample.tier];
    used[sample.tier] = sample.used;
    if (sample.time_ns <= result.first_iteration_ns)
      peak.startup_peak_bytes = std::max(peak.startup_peak_bytes, sample.used);
    if (in_window) peak.steady_peak_bytes = std::max(peak.steady_peak_bytes, sample.used);
    if (machine.tiers[sample.tier].kind != TierKind::cpu || !machine.tiers[sample.tier].allocation.power_of_two)
      continue;
    Bytes& bytes = held[sample.tier][sample.tensor];
    rounded[sample.tier] -= bytes == 0 ? 0 : std::bit_ceil(bytes);
    bytes = static_cast<Bytes>(static_cast<std::int64_t>(bytes) + sample.change);
    rounded[sample.tier] += bytes == 0 ? 0 : std::bit_ceil(bytes);
    peak.pinned_peak_bytes = std::max(peak.pinned_peak_bytes.value_or(0), rounded[sample.tier]);
  }
  if (!in_window) enter_window();
  return peaks;
}

Outcome try_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits, Tried tried) {
  constexpr std::uint64_t early = 2;
  RunLimits within = limits;
  Recorders recorders;
  if (tried == Tried::early) {
    within.max_iterations = std::min(limits.max_iterations, early);
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
  Tried tried = Tried::early;  // what is found is confirmed by whole runs
  std::uint64_t used = 0;      // MiB of the tier, by the last that fitted
  const auto missing = [&](std::uint64_t mebibytes) -> std::optional<std::uint64_t> {
    // No machine has a tier of nothing: a byte takes no tensor.
    set_capacity(trial, tier, std::max<Bytes>(mebibytes * MiB, 1));
    const Outcome outcome = try_policy(trace, trial, policy, settings, limits, tried);
    if (!outcome.result.fits) return (outcome.result.misfit_bytes + MiB - 1) / MiB;
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
  // Many policies need nothing of a tier below the GPU.
  // What a run with room used is often all that it needs.
  bool is_near = false;
  if (const std::uint64_t guess = used; guess > too_little && guess < most) {
    is_near = !fits(guess);
    (is_near ? too_little : enough) = guess;
  }
  if (tier != 0 && too_little == 0 && enough > 1 && fits(1)) {
    enough = 1;
  } else if (is_near) {
    enough = least_that_fits_near(enough, too_little, missing);
  } else if (enough == most || enough - too_little == 1 || fits(enough - 1)) {
    enough = least_that_fits(enough, too_little, missing);
  }
  tried = Tried::whole;
  if (enough < most && !fits(enough)) enough = least_that_fits_near(most, enough, missing);
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

namespace {

TierId tier_of_kind(const MachineSpec& machine, TierKind kind) {
  for (TierId tier = 0; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind == kind) return tier;
  }
  return no_tier;
}

// Of page-locked CPU memory; staging buffers included.
void judge_pinned(FitVerdict& verdict, Bytes limit, const Workload& workload,
                  const std::function<const Timeline&(std::size_t)>& timeline_of) {
  const Outcome& outcome = verdict.outcome;
  const TierId cpu = workload.machine.of_rank(outcome.rank).tier_of(Device::cpu);
  if (cpu == no_tier) return;
  for (std::size_t rank = 0; rank < std::max<std::size_t>(outcome.ranks.size(), 1); ++rank) {  // of one host
    const RunResult& result = outcome.ranks.empty() ? outcome.result : outcome.ranks[rank].result;
    const MachineSpec& own = workload.machine.of_rank(rank);
    const TierPeak peak = tier_peaks(timeline_of(rank), result, own)[cpu];
    verdict.pinned += peak.pinned_peak_bytes.value_or(result.peak_bytes[cpu]) + own.staging.all_bytes();
  }
  verdict.pinned_fits = verdict.pinned <= limit;
  verdict.pinned_limit = limit;
}

FitVerdict judge(const FitRequest& request, const std::string& policy) {
  const Workload& workload = *request.workload;
  FitVerdict verdict;
  Outcome& outcome = verdict.outcome;
  Timeline timeline;
  std::vector<Timeline> others;
  const Recorders recorders{.timeline = &timeline, .other_timelines = &others};
  if (!request.settings.empty()) make_policy(policy, request.settings);  // a wrong option is bad usage
  try {
    outcome = simulate_policy(workload, policy, request.settings, recorders);
  } catch (const Error& error) {  // what the machine cannot serve, such as staging buffers too small, is a no
    outcome.policy = policy;
    outcome.result.fits = false;
    outcome.result.misfit = error.what();
  }
  outcome.program.trace = Trace();
  for (RankOutcome& rank : outcome.ranks) rank.program.trace = Trace();
  const RunResult& result = outcome.result;
  verdict.policy = outcome.policy;
  verdict.fits = result.fits;
  if (!result.fits) {
    verdict.reason = result.misfit;
    if (result.misfit_op.empty()) return verdict;
    verdict.op = result.misfit_op;
    verdict.bytes_missing = result.misfit_bytes;
    return verdict;
  }
  const auto timeline_of = [&](std::size_t rank) -> const Timeline& { return rank == 0 ? timeline : others[rank - 1]; };
  verdict.tiers = tier_peaks(timeline_of(outcome.rank), result, workload.machine.of_rank(outcome.rank));
  verdict.iteration_seconds = result.iteration_seconds();
  verdict.peak_bytes.emplace();
  for (std::size_t tier = 0; tier < workload.machine.tiers.size(); ++tier) {
    verdict.peak_bytes->emplace_back(workload.machine.tiers[tier].name, result.peak_bytes[tier]);
  }
  if (request.pinned_limit) judge_pinned(verdict, *request.pinned_limit, workload, timeline_of);
  return verdict;
}

}  // namespace

std::optional<Bytes>& FitVerdict::minimum_of(TierKind kind) {
  return kind == TierKind::gpu ? minimum_gpu_bytes : kind == TierKind::cpu ? minimum_cpu_bytes : minimum_nvme_bytes;
}

std::vector<FitVerdict> judge_fit(const FitRequest& request) {
  const Workload& workload = *request.workload;
  const MachineSpec& machine = workload.machine;
  const RunLimits limits = limits_of(workload.scenario.iterations);
  std::vector<TierId> tiers;
  for (const TierKind kind : request.searched) {
    if (const TierId tier = tier_of_kind(machine, kind); tier != no_tier) tiers.push_back(tier);
  }
  std::vector<FitVerdict> verdicts(request.policies.size());
  std::mutex mutex;
  std::size_t done = 0;
  const auto step = [&](const std::string& what) {
    const std::lock_guard lock(mutex);
    ++done;
    if (request.progress) request.progress(done, verdicts.size() * (1 + tiers.size()), what);
  };
  on_all_cores(verdicts.size(), [&](std::size_t i) {
    verdicts[i] = judge(request, request.policies[i]);
    step(request.policies[i]);
  });
  on_all_cores(verdicts.size() * tiers.size(), [&](std::size_t i) {
    FitVerdict& verdict = verdicts[i / tiers.size()];
    const TierId tier = tiers[i % tiers.size()];
    verdict.minimum_of(machine.tiers[tier].kind) =
        minimum_capacity(*workload.trace, machine, tier, verdict.policy, request.settings, limits, verdict.fits);
    step(verdict.policy + ", least " + machine.tiers[tier].name + " memory");
  });
  if (tiers.size() < 2) return verdicts;
  std::vector<FitVerdict*> helpless;  // two tiers are too small at least
  for (FitVerdict& verdict : verdicts) {
    if (verdict.minimum_gpu_bytes || verdict.minimum_cpu_bytes || verdict.minimum_nvme_bytes) continue;
    helpless.push_back(&verdict);
  }
  std::vector<std::optional<JointMinimum>> joint(helpless.size() * tiers.size());
  on_all_cores(joint.size(), [&](std::size_t i) {
    joint[i] = joint_minimum(*workload.trace, machine, tiers[i % tiers.size()], helpless[i / tiers.size()]->policy,
                             request.settings, limits);
  });
  for (std::size_t i = 0; i < joint.size(); ++i) {
    if (!joint[i]) continue;
    const bool one = joint[i]->other != no_tier;
    helpless[i / tiers.size()]->minimum_with_more.push_back(
        {machine.tiers[tiers[i % tiers.size()]].name, joint[i]->bytes,
         one ? std::optional(machine.tiers[joint[i]->other].name) : std::nullopt,
         one ? std::optional(joint[i]->more) : std::nullopt});
  }
  return verdicts;
}

}  // namespace tencache
