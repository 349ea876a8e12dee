// The spans of one lane, ready to be drawn at any zoom: what is narrower than a pixel is merged into shares of it.
//
// Built once, off the frame path; `collect` then costs in the order of the pixels, the other questions in that of the
// levels, however many spans there are. A pyramid of blocks, each over 16 of the level below, holds the time that each
// kind of span covers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/timeline.h"

namespace tencache::gui {

// What a span is painted as. On the lanes of ops: phases, then what is recomputed, then host time, then stalls by
// cause; on a link's: asked for in advance, or urgent.
inline constexpr std::size_t recompute_slot = phase_count;
inline constexpr std::size_t gap_slot = recompute_slot + 1;
inline constexpr std::size_t first_stall_slot = gap_slot + 1;
inline constexpr std::size_t slot_count = first_stall_slot + all_causes.size();
// Of an op's slot, those before gap_slot.
const char* label_of_op(std::size_t slot);
constexpr std::size_t slot_of(StallCause cause) { return first_stall_slot + static_cast<std::size_t>(cause); }
inline constexpr std::uint8_t ahead_slot = 0, urgent_slot = 1;

struct TrackItem {
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::uint32_t span = 0;  // in Timeline::spans
  std::uint8_t slot = 0;
  std::uint8_t row = 0;  // copies of a link overlap
};

// What of a track is drawn between two times.
struct VisibleTrack {
  std::vector<std::uint32_t> items;  // of Track::items, at least a pixel wide
  std::vector<float> columns;        // [pixel][slot]: the share of the pixel's time, of all that does not fill it
  std::size_t visited = 0;           // spans and blocks of them that were looked at
  float share(std::size_t pixel, std::size_t slot) const { return columns[pixel * slot_count + slot]; }
};

class Track {
 public:
  static constexpr std::uint8_t most_rows = 3;

  Track(std::string name, std::uint8_t lane) : name_(std::move(name)), lane_(lane) {}
  void reserve(std::size_t items) { items_.reserve(items); }
  void add(const TrackItem& item) { items_.push_back(item); }
  // After the last `add`: sorts, lays overlapping items into rows, builds the pyramid.
  void finish();

  const std::string& name() const { return name_; }
  std::uint8_t lane() const { return lane_; }  // as Span::lane
  bool is_link() const { return lane_ >= first_link_lane; }
  std::uint8_t row_count() const { return row_count_; }
  const std::vector<TrackItem>& items() const { return items_; }
  std::size_t memory_bytes() const;

  // Replaces what `visible` holds, whose memory is used again.
  void collect(double begin_ns, double end_ns, std::size_t pixels, VisibleTrack& visible) const;
  // The item at the time (within the tolerance), the row (or any, if none is there); null if there is none.
  const TrackItem* at(double time_ns, std::uint8_t row, double tolerance_ns) const;
  // Time that the slots cover between two times; `visited`: raised by the spans and blocks looked at.
  using Covered = std::array<Nanoseconds, slot_count>;
  Covered covered(Nanoseconds begin_ns, Nanoseconds end_ns, std::size_t* visited = nullptr) const;
  Covered covered() const;  // in all

 private:
  static constexpr std::size_t fan = 16;
  struct Block {
    Nanoseconds begin_ns = 0, end_ns = 0;
    Covered covered_ns{};
  };
  // Calls `on_block(block)`, which says whether to look into it, and `on_item(index)` for what is left.
  template <typename OnBlock, typename OnItem>
  void descend(std::size_t level, std::size_t index, const OnBlock& on_block, const OnItem& on_item) const;
  template <typename OnBlock, typename OnItem>
  void descend(const OnBlock& on_block, const OnItem& on_item) const;
  struct Collecting;
  void collect_item(std::size_t index, Collecting& collecting) const;

  std::string name_;
  std::uint8_t lane_;
  std::uint8_t row_count_ = 1;
  std::vector<TrackItem> items_;            // by begin
  std::vector<std::vector<Block>> levels_;  // the last is one block; none where there is one item at most
};

}  // namespace tencache::gui
