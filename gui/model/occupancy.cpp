#include "gui/model/occupancy.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace tencache::gui {
namespace {

// What is there, by tensor and role.
class Stock {
 public:
  void add(TensorId tensor, Role role, std::int64_t bytes) {
    const auto [entry, is_new] = held_.try_emplace(std::uint64_t{tensor} << 8 | static_cast<std::uint64_t>(role));
    entry->second += bytes;
    if (entry->second == 0) held_.erase(entry);
  }
  std::size_t size() const { return held_.size(); }
  std::vector<Resident> list() const {
    std::vector<Resident> list;
    list.reserve(held_.size());
    for (const auto& [key, bytes] : held_) {
      list.push_back({static_cast<TensorId>(key >> 8), static_cast<Role>(key & 255), bytes});
    }
    return list;
  }

 private:
  std::unordered_map<std::uint64_t, std::int64_t> held_;
};

}  // namespace

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
    take_inventories(tier);
  }
}

// The more is there, the fewer: all of them hold no more than a part of the changes.
void Occupancy::take_inventories(TierChanges& tier) const {
  Stock stock;
  std::size_t next = least_between_inventories;
  for (std::size_t i = 0; i < tier.changes.size(); ++i) {
    if (i == next) {
      tier.inventories.push_back({i, stock.list()});
      next += std::max(least_between_inventories, 4 * stock.size());
    }
    const OccupancySample& sample = timeline_.occupancy[tier.changes[i]];
    stock.add(sample.tensor, sample.role, sample.change);
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

std::vector<Resident> Occupancy::residents(TierId tier_id, Nanoseconds time_ns, std::size_t* visited) const {
  const TierChanges& tier = tiers_[tier_id];
  const std::size_t count = count_until(tier, static_cast<double>(time_ns));
  Stock stock;
  std::size_t first = 0;
  const auto after = std::ranges::upper_bound(tier.inventories, count, {}, &Inventory::change);
  if (after != tier.inventories.begin()) {
    first = std::prev(after)->change;
    for (const Resident& resident : std::prev(after)->residents) {
      stock.add(resident.tensor, resident.role, resident.bytes);
    }
  }
  for (std::size_t i = first; i < count; ++i) {
    const OccupancySample& sample = timeline_.occupancy[tier.changes[i]];
    stock.add(sample.tensor, sample.role, sample.change);
  }
  if (visited != nullptr) *visited += count - first;
  std::vector<Resident> list = stock.list();
  std::erase_if(list, [](const Resident& resident) { return resident.bytes <= 0; });
  std::ranges::sort(list, [](const Resident& a, const Resident& b) {
    return std::tie(b.bytes, a.tensor, a.role) < std::tie(a.bytes, b.tensor, b.role);
  });
  return list;
}

}  // namespace tencache::gui
