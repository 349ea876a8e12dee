#include "sim/fit.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "core/error.h"
#include "sim/policy_run.h"

namespace tencache {
namespace {

void set_capacity(MachineSpec& machine, TierId tier, Bytes bytes) {
  machine.tiers[tier].capacity = bytes;
  for (MachineSpec& rank : machine.other_ranks) rank.tiers[tier].capacity = bytes;
}

}  // namespace

std::vector<TierPeak> tier_peaks(const Timeline& timeline, const RunResult& result, const MachineSpec& machine) {
  std::vector<TierPeak> peaks(machine.tiers.size());
  Nanoseconds window_begin = 0;
  for (std::size_t i = 0; i + result.period < result.iteration_ns.size(); ++i) window_begin += result.iteration_ns[i];
  std::vector<Bytes> used(peaks.size(), 0), rounded(peaks.size(), 0);
  std::vector<std::unordered_map<TensorId, Bytes>> held(peaks.size());
  bool in_window = false;
  const auto enter_window = [&] {
    in_window = true;
    for (std::size_t tier = 0; tier < peaks.size(); ++tier) peaks[tier].steady = used[tier];
  };
  for (const OccupancySample& sample : timeline.occupancy) {
    if (!in_window && sample.time_ns > window_begin) enter_window();
    TierPeak& peak = peaks[sample.tier];
    used[sample.tier] = sample.used;
    if (sample.time_ns <= result.first_iteration_ns) peak.startup = std::max(peak.startup, sample.used);
    if (in_window) peak.steady = std::max(peak.steady, sample.used);
    if (machine.tiers[sample.tier].kind != TierKind::cpu || !machine.tiers[sample.tier].allocation.power_of_two)
      continue;
    Bytes& bytes = held[sample.tier][sample.tensor];
    rounded[sample.tier] -= bytes == 0 ? 0 : std::bit_ceil(bytes);
    bytes = static_cast<Bytes>(static_cast<std::int64_t>(bytes) + sample.change);
    rounded[sample.tier] += bytes == 0 ? 0 : std::bit_ceil(bytes);
    peak.pinned = std::max(peak.pinned, rounded[sample.tier]);
  }
  if (!in_window) enter_window();
  return peaks;
}

std::optional<Bytes> minimum_capacity(const Trace& trace, const MachineSpec& machine, TierId tier,
                                      const std::string& policy, const std::map<std::string, std::string>& settings,
                                      const RunLimits& limits, bool fits_machine) {
  MachineSpec trial = machine;
  const auto fits = [&](std::uint64_t mebibytes) {
    set_capacity(trial, tier, mebibytes * MiB);
    try {
      return run_policy(trace, trial, policy, settings, limits).result.fits;
    } catch (const Error&) {
      return false;
    }
  };
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
  while (enough - too_little > 1) {
    const std::uint64_t middle = too_little + (enough - too_little) / 2;
    (fits(middle) ? enough : too_little) = middle;
  }
  return enough * MiB;
}

}  // namespace tencache
