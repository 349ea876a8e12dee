#include "gui/model/occupancy.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tencache::gui {

Occupancy::Occupancy(const Timeline& timeline, std::size_t tiers) : timeline_(timeline), tiers_(tiers) {
  const auto& samples = timeline.occupancy;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].tier < tiers) tiers_[samples[i].tier].changes.push_back(static_cast<std::uint32_t>(i));
  }
  for (TierChanges& tier : tiers_) {
    RoleBytes roles{};
    for (std::size_t i = 0; i < tier.changes.size(); ++i) {
      const OccupancySample& sample = samples[tier.changes[i]];
      if (i % step == 0) tier.checkpoints.push_back({roles, 0, static_cast<std::uint32_t>(i)});
      roles[static_cast<std::size_t>(sample.role)] += sample.change;
      Checkpoint& checkpoint = tier.checkpoints.back();
      if (sample.used > checkpoint.most) {
        checkpoint.most = sample.used;
        checkpoint.most_index = static_cast<std::uint32_t>(i);
      }
      tier.peak = std::max(tier.peak, sample.used);
    }
  }
}

std::size_t Occupancy::count_until(const TierChanges& tier, double time_ns) const {
  const auto end =
      std::upper_bound(tier.changes.begin(), tier.changes.end(), time_ns, [this](double time, std::uint32_t change) {
        return time < static_cast<double>(timeline_.occupancy[change].time_ns);
      });
  return static_cast<std::size_t>(end - tier.changes.begin());
}

RoleBytes Occupancy::state_after(const TierChanges& tier, std::size_t count) const {
  if (count == 0) return {};
  const std::size_t checkpoint = std::min(count / step, tier.checkpoints.size() - 1);
  RoleBytes roles = tier.checkpoints[checkpoint].roles;
  for (std::size_t i = checkpoint * step; i < count; ++i) {
    const OccupancySample& sample = timeline_.occupancy[tier.changes[i]];
    roles[static_cast<std::size_t>(sample.role)] += sample.change;
  }
  return roles;
}

void Occupancy::collect(TierId tier_id, double begin_ns, double end_ns, std::size_t pixels,
                        std::vector<OccupancyColumn>& columns) const {
  columns.assign(pixels, {});
  const TierChanges& tier = tiers_[tier_id];
  if (tier.changes.empty() || pixels == 0) return;
  const double pixel_ns = (end_ns - begin_ns) / static_cast<double>(pixels);
  std::size_t first = count_until(tier, begin_ns);
  RoleBytes state = state_after(tier, first);
  for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
    const std::size_t last = count_until(tier, begin_ns + pixel_ns * static_cast<double>(pixel + 1));
    // What was there as the pixel began counts too, unless it is the first one with any.
    Bytes most = first > 0 ? timeline_.occupancy[tier.changes[first - 1]].used : 0;
    std::size_t most_count = first;
    for (std::size_t i = first; i < last;) {
      if (i % step == 0 && i + step <= last) {  // a whole checkpoint
        const Checkpoint& checkpoint = tier.checkpoints[i / step];
        if (checkpoint.most > most) {
          most = checkpoint.most;
          most_count = checkpoint.most_index + 1;
        }
        i += step;
        continue;
      }
      if (timeline_.occupancy[tier.changes[i]].used > most) {
        most = timeline_.occupancy[tier.changes[i]].used;
        most_count = i + 1;
      }
      ++i;
    }
    columns[pixel].roles = most_count == first ? state : state_after(tier, most_count);
    if (last != first) state = state_after(tier, last);
    first = last;
  }
}

RoleBytes Occupancy::held(TierId tier, Nanoseconds time_ns) const {
  return state_after(tiers_[tier], count_until(tiers_[tier], static_cast<double>(time_ns)));
}

std::vector<Resident> Occupancy::residents(TierId tier_id, Nanoseconds time_ns) const {
  const TierChanges& tier = tiers_[tier_id];
  const std::size_t count = count_until(tier, static_cast<double>(time_ns));
  std::map<std::tuple<TensorId, Role>, std::int64_t> held;
  for (std::size_t i = 0; i < count; ++i) {
    const OccupancySample& sample = timeline_.occupancy[tier.changes[i]];
    held[{sample.tensor, sample.role}] += sample.change;
  }
  std::vector<Resident> list;
  for (const auto& [key, bytes] : held) {
    if (bytes > 0) list.push_back({std::get<0>(key), std::get<1>(key), bytes});
  }
  std::stable_sort(list.begin(), list.end(), [](const Resident& a, const Resident& b) { return a.bytes > b.bytes; });
  return list;
}

}  // namespace tencache::gui
