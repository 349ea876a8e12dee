// What a tier holds over time, by role: answered at any time from the changes of a timeline.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/timeline.h"

namespace tencache::gui {

using RoleBytes = std::array<std::int64_t, role_count>;

struct Resident {
  TensorId tensor = none;  // `none`: all those without an id
  Role role = Role::activation;
  std::int64_t bytes = 0;
};

// Of a pixel: the moment at which most was held in it.
struct OccupancyColumn {
  RoleBytes roles{};
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t bytes : roles) sum += bytes;
    return sum;
  }
};

class Occupancy {
 public:
  // `timeline` outlives this object. Linear; `collect` costs a few hundred changes a pixel at most.
  Occupancy(const Timeline& timeline, std::size_t tiers);

  void collect(TierId tier, double begin_ns, double end_ns, std::size_t pixels,
               std::vector<OccupancyColumn>& columns) const;
  RoleBytes held(TierId tier, Nanoseconds time_ns) const;
  // The largest first. Costs some thousand changes at most, and what is resident; `visited`: raised by the changes
  // looked at.
  std::vector<Resident> residents(TierId tier, Nanoseconds time_ns, std::size_t* visited = nullptr) const;
  Bytes peak(TierId tier) const { return tiers_[tier].peak; }
  bool empty(TierId tier) const { return tiers_[tier].changes.empty(); }
  std::size_t tier_count() const { return tiers_.size(); }

 private:
  static constexpr std::size_t step = 64;  // changes between two checkpoints
  struct Checkpoint {                      // before a change
    RoleBytes roles{};
    Bytes most = 0;                // of the changes up to the next checkpoint
    std::uint32_t most_index = 0;  // in `changes`
  };
  struct Inventory {
    std::size_t change = 0;           // before this one
    std::vector<Resident> residents;  // in any order
  };
  static constexpr std::size_t least_between_inventories = 4096;  // changes
  struct TierChanges {
    std::vector<std::uint32_t> changes;  // in Timeline::occupancy
    std::vector<Checkpoint> checkpoints;
    std::vector<Inventory> inventories;
    Bytes peak = 0;
  };
  // Changes of the tier up to the time.
  std::size_t count_until(const TierChanges& tier, double time_ns) const;
  RoleBytes state_after(const TierChanges& tier, std::size_t count) const;
  void take_inventories(TierChanges& tier) const;

  const Timeline& timeline_;
  std::vector<TierChanges> tiers_;
};

}  // namespace tencache::gui
