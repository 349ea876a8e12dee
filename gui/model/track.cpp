#include "gui/model/track.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace tencache::gui {

void Track::finish() {
  std::sort(items_.begin(), items_.end(), [](const TrackItem& a, const TrackItem& b) {
    return std::tie(a.begin_ns, a.end_ns, a.span) < std::tie(b.begin_ns, b.end_ns, b.span);
  });
  std::array<Nanoseconds, most_rows> free_at{};
  free_at.fill(std::numeric_limits<Nanoseconds>::min());
  for (TrackItem& item : items_) {
    longest_ns_ = std::max(longest_ns_, item.end_ns - item.begin_ns);
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
          block.covered_ns[item.slot] += static_cast<float>(item.end_ns - item.begin_ns);
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
      for (std::size_t slot = 0; slot < slot_count; ++slot) column[slot] += block.covered_ns[slot] * share * scale;
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

void Track::collect_block(std::size_t level, std::size_t index, Collecting& collecting) const {
  const Block& block = levels_[level][index];
  if (collecting.outside(block.begin_ns, block.end_ns)) return;
  if (collecting.narrow(block.begin_ns, block.end_ns)) {
    collecting.add_block(block);
    return;
  }
  const std::size_t first = index * fan;
  if (level > 0) {
    const std::size_t last = std::min(first + fan, levels_[level - 1].size());
    for (std::size_t i = first; i < last; ++i) collect_block(level - 1, i, collecting);
    return;
  }
  for (std::size_t i = first; i < std::min(first + fan, items_.size()); ++i) collect_item(i, collecting);
}

void Track::collect_item(std::size_t index, Collecting& collecting) const {
  const TrackItem& item = items_[index];
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
  visible.columns.assign(pixels * slot_count, 0.0f);
  if (items_.empty() || pixels == 0 || end_ns <= begin_ns) return;
  Collecting collecting{begin_ns, end_ns, (end_ns - begin_ns) / static_cast<double>(pixels), pixels, visible};
  if (levels_.empty()) return collect_item(0, collecting);
  for (std::size_t i = 0; i < levels_.back().size(); ++i) collect_block(levels_.size() - 1, i, collecting);
}

const TrackItem* Track::at(double time_ns, std::uint8_t row, double tolerance_ns) const {
  const auto latest =
      std::upper_bound(items_.begin(), items_.end(), time_ns + tolerance_ns,
                       [](double time, const TrackItem& item) { return time < static_cast<double>(item.begin_ns); });
  const TrackItem* best = nullptr;
  double best_distance = 0;
  for (auto i = latest; i != items_.begin();) {
    --i;
    const auto begin = static_cast<double>(i->begin_ns), end = static_cast<double>(i->end_ns);
    if (begin + static_cast<double>(longest_ns_) < time_ns - tolerance_ns) break;
    if (end < time_ns - tolerance_ns) continue;
    // A row's width counts as more than any distance in time within the tolerance.
    const double outside = std::max({0.0, begin - time_ns, time_ns - end});
    const double distance = outside + (i->row == row ? 0 : 4 * tolerance_ns + 1);
    if (best == nullptr || distance < best_distance) {
      best = &*i;
      best_distance = distance;
    }
  }
  return best;
}

std::array<Nanoseconds, slot_count> Track::covered(Nanoseconds begin_ns, Nanoseconds end_ns) const {
  std::array<Nanoseconds, slot_count> sums{};
  const auto first = std::lower_bound(items_.begin(), items_.end(), begin_ns - longest_ns_,
                                      [](const TrackItem& item, Nanoseconds time) { return item.begin_ns < time; });
  for (auto i = first; i != items_.end() && i->begin_ns < end_ns; ++i) {
    sums[i->slot] += std::max<Nanoseconds>(0, std::min(i->end_ns, end_ns) - std::max(i->begin_ns, begin_ns));
  }
  return sums;
}

}  // namespace tencache::gui
