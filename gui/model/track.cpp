#include "gui/model/track.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "answers/figure_unit.h"

namespace tencache::gui {

const char* label_of_op(std::size_t slot) {
  return slot == recompute_slot ? "recomputation" : label_of(static_cast<Phase>(slot));
}

void Track::finish() {
  std::sort(items_.begin(), items_.end(), [](const TrackItem& a, const TrackItem& b) {
    return std::tie(a.begin_ns, a.end_ns, a.span) < std::tie(b.begin_ns, b.end_ns, b.span);
  });
  std::array<Nanoseconds, most_rows> free_at{};
  free_at.fill(std::numeric_limits<Nanoseconds>::min());
  for (TrackItem& item : items_) {
    std::uint8_t row = 0;
    while (row + 1 < most_rows && free_at[row] > item.begin_ns) ++row;
    item.row = row;
    free_at[row] = std::max(free_at[row], item.end_ns);
    row_count_ = std::max<std::uint8_t>(row_count_, static_cast<std::uint8_t>(row + 1));
  }
  for (std::size_t count = items_.size(); count > 1;) {
    const std::size_t blocks = (count + fan - 1) / fan;
    std::vector<Block> level(blocks);
    for (std::size_t i = 0; i < blocks; ++i) {
      Block& block = level[i];
      const auto widen = [&block](Nanoseconds begin_ns, Nanoseconds end_ns, bool first) {
        block.begin_ns = first ? begin_ns : std::min(block.begin_ns, begin_ns);
        block.end_ns = first ? end_ns : std::max(block.end_ns, end_ns);
      };
      for (std::size_t j = i * fan; j < std::min(count, (i + 1) * fan); ++j) {
        if (levels_.empty()) {
          const TrackItem& item = items_[j];
          widen(item.begin_ns, item.end_ns, j == i * fan);
          block.covered_ns[item.slot] += item.end_ns - item.begin_ns;
        } else {
          const Block& below = levels_.back()[j];
          widen(below.begin_ns, below.end_ns, j == i * fan);
          for (std::size_t slot = 0; slot < slot_count; ++slot) block.covered_ns[slot] += below.covered_ns[slot];
        }
      }
    }
    levels_.push_back(std::move(level));
    count = blocks;
  }
}

std::size_t Track::memory_bytes() const {
  std::size_t bytes = items_.capacity() * sizeof(TrackItem);
  for (const std::vector<Block>& level : levels_) bytes += level.capacity() * sizeof(Block);
  return bytes;
}

struct Track::Collecting {
  double begin_ns, end_ns, pixel_ns;
  std::size_t pixels;
  VisibleTrack& visible;

  // Adds `share` of what lies between the two times, at most a pixel apart, to the pixels that it lies in.
  template <typename Add>
  void spread(Nanoseconds begin, Nanoseconds end, Add add) const {
    const double from = (static_cast<double>(begin) - begin_ns) / pixel_ns;
    const double to = (static_cast<double>(end) - begin_ns) / pixel_ns;
    const double edge = std::floor(from) + 1;
    const double in_first = to <= edge ? 1.0 : (edge - from) / (to - from);
    const auto put = [&](double pixel, double share) {
      if (share <= 0 || pixel < 0 || pixel >= static_cast<double>(pixels)) return;
      add(&visible.columns[static_cast<std::size_t>(pixel) * slot_count], static_cast<float>(share));
    };
    put(std::floor(from), in_first);
    put(edge, 1 - in_first);
  }
  void add_block(const Block& block) const {
    const auto scale = static_cast<float>(1 / pixel_ns);
    spread(block.begin_ns, block.end_ns, [&](float* column, float share) {
      for (std::size_t slot = 0; slot < slot_count; ++slot)
        column[slot] += static_cast<float>(block.covered_ns[slot]) * share * scale;
    });
  }
  void add_item(const TrackItem& item) const {
    const auto covered = static_cast<float>(static_cast<double>(item.end_ns - item.begin_ns) / pixel_ns);
    spread(item.begin_ns, item.end_ns, [&](float* column, float share) { column[item.slot] += covered * share; });
  }
  // The pixels at the ends of a wide item are shared with its neighbours.
  void add_ends(const TrackItem& item) const {
    const double from = (static_cast<double>(item.begin_ns) - begin_ns) / pixel_ns;
    const double to = (static_cast<double>(item.end_ns) - begin_ns) / pixel_ns;
    const auto put = [&](double pixel, double share) {
      if (pixel < 0 || pixel >= static_cast<double>(pixels)) return;
      visible.columns[static_cast<std::size_t>(pixel) * slot_count + item.slot] += static_cast<float>(share);
    };
    put(std::floor(from), std::min(to, std::floor(from) + 1) - from);
    if (std::floor(to) > std::floor(from)) put(std::floor(to), to - std::floor(to));
  }
  bool outside(Nanoseconds begin, Nanoseconds end) const {
    return static_cast<double>(end) < begin_ns || static_cast<double>(begin) > end_ns;
  }
  bool narrow(Nanoseconds begin, Nanoseconds end) const { return static_cast<double>(end - begin) < pixel_ns; }
};

template <typename OnBlock, typename OnItem>
void Track::descend(std::size_t level, std::size_t index, const OnBlock& on_block, const OnItem& on_item) const {
  if (!on_block(levels_[level][index])) return;
  const std::size_t first = index * fan;
  if (level > 0) {
    const std::size_t last = std::min(first + fan, levels_[level - 1].size());
    for (std::size_t i = first; i < last; ++i) descend(level - 1, i, on_block, on_item);
    return;
  }
  for (std::size_t i = first; i < std::min(first + fan, items_.size()); ++i) on_item(i);
}

template <typename OnBlock, typename OnItem>
void Track::descend(const OnBlock& on_block, const OnItem& on_item) const {
  if (!levels_.empty()) return descend(levels_.size() - 1, 0, on_block, on_item);
  if (!items_.empty()) on_item(0);
}

void Track::collect_item(std::size_t index, Collecting& collecting) const {
  const TrackItem& item = items_[index];
  ++collecting.visible.visited;
  if (collecting.outside(item.begin_ns, item.end_ns)) return;
  if (collecting.narrow(item.begin_ns, item.end_ns)) {
    collecting.add_item(item);
  } else {
    collecting.visible.items.push_back(static_cast<std::uint32_t>(index));
    collecting.add_ends(item);
  }
}

void Track::collect(double begin_ns, double end_ns, std::size_t pixels, VisibleTrack& visible) const {
  visible.items.clear();
  visible.visited = 0;
  visible.columns.assign(pixels * slot_count, 0.0f);
  if (items_.empty() || pixels == 0 || end_ns <= begin_ns) return;
  Collecting collecting{begin_ns, end_ns, (end_ns - begin_ns) / static_cast<double>(pixels), pixels, visible};
  const auto on_block = [&collecting](const Block& block) {
    ++collecting.visible.visited;
    if (collecting.outside(block.begin_ns, block.end_ns)) return false;
    if (!collecting.narrow(block.begin_ns, block.end_ns)) return true;
    collecting.add_block(block);
    return false;
  };
  descend(on_block, [&](std::size_t index) { collect_item(index, collecting); });
}

const TrackItem* Track::at(double time_ns, std::uint8_t row, double tolerance_ns) const {
  const TrackItem* best = nullptr;
  double best_distance = 0;
  const auto near = [&](Nanoseconds begin, Nanoseconds end) {
    return static_cast<double>(end) >= time_ns - tolerance_ns && static_cast<double>(begin) <= time_ns + tolerance_ns;
  };
  const auto on_item = [&](std::size_t index) {
    const TrackItem& item = items_[index];
    if (!near(item.begin_ns, item.end_ns)) return;
    // A row's width counts as more than any distance in time within the tolerance.
    const double outside =
        std::max({0.0, static_cast<double>(item.begin_ns) - time_ns, time_ns - static_cast<double>(item.end_ns)});
    const double distance = outside + (item.row == row ? 0 : 4 * tolerance_ns + 1);
    if (best == nullptr || distance <= best_distance) {  // the last that begins, of those as near
      best = &item;
      best_distance = distance;
    }
  };
  descend([&](const Block& block) { return near(block.begin_ns, block.end_ns); }, on_item);
  return best;
}

Track::Covered Track::covered(Nanoseconds begin_ns, Nanoseconds end_ns, std::size_t* visited) const {
  Covered sums{};
  std::size_t looked_at = 0;
  const auto on_block = [&](const Block& block) {
    ++looked_at;
    if (block.end_ns <= begin_ns || block.begin_ns >= end_ns) return false;
    if (block.begin_ns < begin_ns || block.end_ns > end_ns) return true;
    for (std::size_t slot = 0; slot < slot_count; ++slot) sums[slot] += block.covered_ns[slot];
    return false;
  };
  descend(on_block, [&](std::size_t index) {
    const TrackItem& item = items_[index];
    ++looked_at;
    sums[item.slot] += std::max<Nanoseconds>(0, std::min(item.end_ns, end_ns) - std::max(item.begin_ns, begin_ns));
  });
  if (visited != nullptr) *visited += looked_at;
  return sums;
}

Track::Covered Track::covered() const {
  if (!levels_.empty()) return levels_.back().front().covered_ns;
  Covered sums{};
  for (const TrackItem& item : items_) sums[item.slot] += item.end_ns - item.begin_ns;
  return sums;
}

}  // namespace tencache::gui
