#include "studies/fit.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "policies/registry.h"
#include "studies/minimum.h"
#include "studies/parallel.h"

namespace tencache {

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

FitVerdict judge(const FitRequest& request, const std::string& policy, KnownRun& known) {
  const Workload& workload = *request.workload;
  FitVerdict verdict;
  Outcome& outcome = verdict.outcome;
  Timeline timeline{.keeps_spans = false};
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
  known = known_run(outcome, workload.machine);
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
    FitVerdict& verdict = verdicts[i];
    KnownRun known;
    verdict = judge(request, request.policies[i], known);
    step(request.policies[i]);
    for (const TierId tier : tiers) {
      verdict.minimum_of(machine.tiers[tier].kind) =
          minimum_capacity(*workload.trace, machine, tier, verdict.policy, request.settings, limits, known);
      step(verdict.policy + ", least " + machine.tiers[tier].name + " memory");
    }
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
