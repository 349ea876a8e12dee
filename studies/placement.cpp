#include "studies/placement.h"

#include <algorithm>
#include <compare>
#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

using Time = std::uint32_t;  // the number of an event

constexpr Bytes granularity = 512;
constexpr Time never = ~Time{0};
constexpr std::size_t no_band = ~std::size_t{0};

// The life of a block, its end not included.
struct Life {
  std::uint32_t block = 0;
  Time birth = 0, death = never;
  Bytes bytes = 0;
  auto operator<=>(const Life&) const = default;
};

struct Placed {
  Time birth = 0, death = 0;
  std::uint64_t offset = 0, end = 0;
};

// What is placed, found by its time. Lives lie between `begin` and `end`; `width`: of the parts of that time in which
// they are sought, one for lives that mostly are as long.
class PlacedLives {
 public:
  static constexpr Time short_lives = 128;

  PlacedLives(Time begin, Time end, Time width = short_lives)
      : begin_(begin), width_(width), buckets_((end - begin) / width + 1) {}

  // Addresses that are taken all the time.
  void take(std::uint64_t offset, std::uint64_t end) { always_.emplace_back(offset, end); }

  void add(const Life& life, std::uint64_t offset) {
    const auto index = static_cast<std::uint32_t>(all_.size());
    all_.push_back({life.birth, life.death, offset, offset + life.bytes});
    seen_.push_back(0);
    for (std::size_t bucket = bucket_of(life.birth); bucket <= bucket_of(life.death - 1); ++bucket) {
      buckets_[bucket].push_back(index);
    }
  }

  template <typename Visit>
  void each_during(const Life& life, const Visit& visit) {
    ++round_;
    for (std::size_t bucket = bucket_of(life.birth); bucket <= bucket_of(life.death - 1); ++bucket) {
      for (const std::uint32_t index : buckets_[bucket]) {
        const Placed& placed = all_[index];
        if (placed.birth >= life.death || placed.death <= life.birth || seen_[index] == round_) continue;
        seen_[index] = round_;
        visit(placed);
      }
    }
  }

  // The lowest offset that is free during the whole life.
  std::uint64_t lowest_for(const Life& life) {
    taken_ = always_;
    each_during(life, [this](const Placed& placed) { taken_.emplace_back(placed.offset, placed.end); });
    std::ranges::sort(taken_);
    std::uint64_t offset = 0;
    for (const auto& [from, to] : taken_) {
      if (from >= offset + life.bytes) break;
      offset = std::max(offset, to);
    }
    return offset;
  }

  // The end of what lies highest at any time of the life.
  std::uint64_t top_during(const Life& life) {
    std::uint64_t top = 0;
    each_during(life, [&top](const Placed& placed) { top = std::max(top, placed.end); });
    return top;
  }

 private:
  std::size_t bucket_of(Time time) const { return (time - begin_) / width_; }

  Time begin_, width_;
  std::vector<Placed> all_;
  std::vector<std::vector<std::uint32_t>> buckets_;
  std::vector<std::uint32_t> seen_;  // by the round in which it was
  std::uint32_t round_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> always_, taken_;
};

struct Iteration {
  Time begin = 0, end = 0;
  std::vector<Life> lives;     // that begin and end in it
  std::vector<Life> crossing;  // others that are there in it, cut at its borders
};

void from_the_largest(std::vector<Life>& lives) {
  std::ranges::sort(
      lives, [](const Life& a, const Life& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.birth < b.birth; });
}

void place_largest_first(std::vector<Life> lives, PlacedLives& placed, Placement& result) {
  from_the_largest(lives);
  for (const Life& life : lives) {
    const std::uint64_t offset = placed.lowest_for(life);
    placed.add(life, offset);
    result.offset[life.block] = offset;
  }
}

// What is there during the whole iteration as one, where it lies side by side.
void add_crossing(const Iteration& iteration, const Placement& result, PlacedLives& around) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> always;
  for (const Life& life : iteration.crossing) {
    const std::uint64_t offset = result.offset[life.block];
    if (life.birth == iteration.begin && life.death == iteration.end) {
      always.emplace_back(offset, offset + life.bytes);
    } else {
      around.add(life, offset);
    }
  }
  std::ranges::sort(always);
  for (std::size_t i = 0; i < always.size();) {
    auto [offset, end] = always[i];
    for (; i < always.size() && always[i].first <= end; ++i) end = std::max(end, always[i].second);
    around.take(offset, end);
  }
}

// A part of the addresses, in which what is there at a time lies without holes from its bottom up.
struct Band {
  std::uint64_t offset = 0;
  Bytes height = 0;
  PlacedLives lives;
};

// Each block's lane: of those that are free at its birth the one that was left last.
std::vector<std::size_t> lanes_of(const std::vector<Life>& by_birth) {
  std::vector<std::size_t> lane;
  std::vector<Time> ends;
  for (const Life& life : by_birth) {
    std::size_t best = ends.size();
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] <= life.birth && (best == ends.size() || ends[i] > ends[best])) best = i;
    }
    if (best == ends.size()) ends.push_back(0);
    ends[best] = life.death;
    lane.push_back(best);
  }
  return lane;
}

void split_and_fuse(const Iteration& iteration, std::uint64_t bottom, Placement& result) {
  std::vector<Life> lives = iteration.lives;
  from_the_largest(lives);
  std::vector<Band> bands;
  std::uint64_t top = bottom;
  for (std::size_t begin = 0; begin < lives.size();) {
    std::size_t end = begin;
    while (end < lives.size() && lives[end].bytes == lives[begin].bytes) ++end;
    const std::vector<Life> same(lives.begin() + static_cast<std::ptrdiff_t>(begin),
                                 lives.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<std::size_t> lane = lanes_of(same);
    const std::size_t old_bands = bands.size();
    std::vector<std::size_t> band_of_lane;  // of this size
    for (std::size_t i = 0; i < same.size(); ++i) {
      const Life& life = same[i];
      bool found = false;
      for (std::size_t b = 0; b < old_bands && !found; ++b) {
        const std::uint64_t on_top = bands[b].lives.top_during(life);
        found = on_top + life.bytes <= bands[b].height;
        if (!found) continue;
        bands[b].lives.add(life, on_top);
        result.offset[life.block] = bands[b].offset + on_top;
      }
      if (found) continue;
      if (band_of_lane.size() <= lane[i]) band_of_lane.resize(lane[i] + 1, no_band);
      std::size_t& mine = band_of_lane[lane[i]];
      if (mine == no_band) {
        mine = bands.size();
        bands.push_back({top, life.bytes, PlacedLives(iteration.begin, iteration.end)});
        top += life.bytes;
      }
      bands[mine].lives.add(life, 0);
      result.offset[life.block] = bands[mine].offset;
    }
    begin = end;
  }
}

}  // namespace

Placement place(const Allocations& allocations, PlacementRule rule) {
  std::vector<Life> lives(allocations.blocks);
  std::vector<std::uint32_t> born_in(allocations.blocks, 0), died_in(allocations.blocks, 0);
  std::vector<Iteration> iterations(1);
  for (Time time = 0; time < allocations.events.size(); ++time) {
    const AllocationEvent& event = allocations.events[time];
    const auto iteration = static_cast<std::uint32_t>(iterations.size() - 1);
    switch (event.kind) {
      case AllocationEvent::Kind::allocate:
        lives[event.block] = {event.block, time, never, round_up(event.bytes, granularity)};
        born_in[event.block] = iteration;
        break;
      case AllocationEvent::Kind::release:
        lives[event.block].death = time;
        died_in[event.block] = iteration;
        break;
      case AllocationEvent::Kind::iteration:
        iterations.back().end = time;
        iterations.emplace_back().begin = time;
        break;
    }
  }
  const auto end = static_cast<Time>(allocations.events.size());
  iterations.back().end = end;

  Placement result;
  result.offset.assign(allocations.blocks, 0);
  std::vector<Life> crossing;
  for (Life& life : lives) {
    const bool forever = life.death == never;
    if (forever) life.death = end;
    if (!forever && born_in[life.block] == died_in[life.block]) {
      iterations[born_in[life.block]].lives.push_back(life);
    } else {
      if (forever) died_in[life.block] = static_cast<std::uint32_t>(iterations.size() - 1);
      crossing.push_back(life);
    }
  }
  PlacedLives placed(0, end, end);
  place_largest_first(crossing, placed, result);
  std::uint64_t crossing_top = 0;
  for (const Life& life : crossing) {
    crossing_top = std::max(crossing_top, result.offset[life.block] + life.bytes);
    for (std::uint32_t i = born_in[life.block]; i <= died_in[life.block]; ++i) {
      Life part = life;
      part.birth = std::max(part.birth, iterations[i].begin);
      part.death = std::min(part.death, iterations[i].end);
      if (part.birth < part.death) iterations[i].crossing.push_back(part);
    }
  }

  // Equal iterations get the plan of the first of them.
  struct Planned {
    std::vector<Life> shape;
    const Iteration* iteration;
  };
  std::vector<Planned> planned;
  for (const Iteration& iteration : iterations) {
    if (iteration.lives.empty()) continue;
    std::vector<Life> shape = iteration.lives;
    const std::uint32_t first_block = shape.front().block;
    for (Life& life : shape) {
      life.block -= first_block;
      life.birth -= iteration.begin;
      life.death -= iteration.begin;
    }
    for (const Life& life : iteration.crossing) {
      shape.push_back({static_cast<std::uint32_t>(result.offset[life.block] / granularity),
                       life.birth - iteration.begin, life.death - iteration.begin, life.bytes});
    }
    const auto same = std::ranges::find(planned, shape, &Planned::shape);
    if (same != planned.end()) {
      for (std::size_t i = 0; i < iteration.lives.size(); ++i) {
        result.offset[iteration.lives[i].block] = result.offset[same->iteration->lives[i].block];
      }
      continue;
    }
    if (rule == PlacementRule::largest_first) {
      PlacedLives around(iteration.begin, iteration.end);
      add_crossing(iteration, result, around);
      place_largest_first(iteration.lives, around, result);
    } else {
      split_and_fuse(iteration, crossing_top, result);
    }
    planned.push_back({std::move(shape), &iteration});
  }

  for (const Life& life : lives) {
    result.height = std::max<std::uint64_t>(result.height, result.offset[life.block] + life.bytes);
  }
  return result;
}

}  // namespace tencache
