#include "studies/placement.h"

#include <algorithm>
#include <array>
#include <compare>
#include <iterator>
#include <map>
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

// Addresses that are taken; ranges that meet are one.
class Ranges {
 public:
  void add(std::uint64_t begin, std::uint64_t end) {
    auto next = end_of_.upper_bound(begin);
    if (next != end_of_.begin() && std::prev(next)->second >= begin) begin = (--next)->first;
    while (next != end_of_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = end_of_.erase(next);
    }
    end_of_.emplace_hint(next, begin, end);
  }
  std::uint64_t top() const { return end_of_.empty() ? 0 : end_of_.rbegin()->second; }
  // No lower offset is left to what finds so many bytes at this one taken; the offset itself: they are free.
  std::uint64_t past(std::uint64_t offset, Bytes bytes) const {
    const auto above = end_of_.lower_bound(offset + bytes);
    return above == end_of_.begin() ? offset : std::max(offset, std::prev(above)->second);
  }

 private:
  std::map<std::uint64_t, std::uint64_t> end_of_;  // by begin
};

// What is placed, found by its time: a tree whose nodes halve the time between `begin` and `end`, made where a life
// needs them. A life belongs to the highest nodes whose whole time it lasts, O(log time).
class PlacedLives {
 public:
  PlacedLives(Time begin, Time end) : begin_(begin), end_(end), nodes_(1) {}

  void add(const Life& life, std::uint64_t offset) { add(life, offset, 0, begin_, end_); }

  // The lowest offset that is free during the whole life.
  std::uint64_t lowest_for(const Life& life) {
    find_taken(life);
    std::uint64_t offset = 0, before = 0;
    do {
      before = offset;
      for (const Ranges* const ranges : taken_) offset = ranges->past(offset, life.bytes);
    } while (offset != before);
    return offset;
  }

  // The end of what lies highest at any time of the life.
  std::uint64_t top_during(const Life& life) {
    find_taken(life);
    std::uint64_t top = 0;
    for (const Ranges* const ranges : taken_) top = std::max(top, ranges->top());
    return top;
  }

 private:
  struct Node {
    Ranges own, all;                          // of the lives that belong to it; of those and of all below
    std::array<std::uint32_t, 2> half{0, 0};  // in nodes_; 0: no life needed it
  };

  void add(const Life& life, std::uint64_t offset, std::uint32_t index, Time begin, Time end) {
    nodes_[index].all.add(offset, offset + life.bytes);
    if (life.birth <= begin && end <= life.death) {
      nodes_[index].own.add(offset, offset + life.bytes);
      return;
    }
    const Time middle = begin + (end - begin) / 2;
    for (const bool late : {false, true}) {
      if (late ? life.death <= middle : life.birth >= middle) continue;
      if (nodes_[index].half[late] == 0) {
        nodes_[index].half[late] = static_cast<std::uint32_t>(nodes_.size());
        nodes_.emplace_back();
      }
      add(life, offset, nodes_[index].half[late], late ? middle : begin, late ? end : middle);
    }
  }

  // Together, all that is taken at some time of the life.
  void find_taken(const Life& life) {
    taken_.clear();
    find_taken(life, 0, begin_, end_);
  }
  void find_taken(const Life& life, std::uint32_t index, Time begin, Time end) {
    const Node& node = nodes_[index];
    const bool whole = life.birth <= begin && end <= life.death;
    taken_.push_back(whole ? &node.all : &node.own);
    if (whole) return;
    const Time middle = begin + (end - begin) / 2;
    if (life.birth < middle && node.half[0] != 0) find_taken(life, node.half[0], begin, middle);
    if (life.death > middle && node.half[1] != 0) find_taken(life, node.half[1], middle, end);
  }

  Time begin_, end_;
  std::vector<Node> nodes_;
  std::vector<const Ranges*> taken_;
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

// A part of the addresses, in which what is there at a time lies without holes from its bottom up.
struct Band {
  std::uint64_t offset = 0;
  Bytes height = 0;
  PlacedLives lives;
};

// Each block's lane: of those that are free at its birth the one that was left last.
std::vector<std::size_t> lanes_of(const std::vector<Life>& by_birth) {
  std::vector<std::size_t> lane;
  std::map<Time, std::size_t> lane_left_at;
  for (const Life& life : by_birth) {
    std::size_t mine = lane_left_at.size();
    if (const auto later = lane_left_at.upper_bound(life.birth); later != lane_left_at.begin()) {
      mine = std::prev(later)->second;
      lane_left_at.erase(std::prev(later));
    }
    lane_left_at.emplace(life.death, mine);
    lane.push_back(mine);
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
  PlacedLives placed(0, end);
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
      for (const Life& life : iteration.crossing) around.add(life, result.offset[life.block]);
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
