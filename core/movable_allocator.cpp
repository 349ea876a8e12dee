#include "core/movable_allocator.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

struct Piece {
  std::uint64_t begin = 0;
  Bytes bytes = 0;
  ChunkId chunk = 0;
  bool fixed = false;
  std::uint64_t end() const { return begin + bytes; }
};
using Pieces = std::vector<Piece>;  // by address

// From a hole to a hole, of which the first is in front of `first` and the last in front of `last`.
struct Run {
  std::size_t first = 0, last = 0;
  Bytes moved = 0;
};

std::uint64_t end_before(const Pieces& pieces, std::size_t index) { return index == 0 ? 0 : pieces[index - 1].end(); }

std::optional<Run> cheapest_run(const Pieces& pieces, Bytes capacity, Bytes wanted) {
  const auto hole_before = [&](std::size_t index) {
    return (index == pieces.size() ? capacity : pieces[index].begin) - end_before(pieces, index);
  };
  std::optional<Run> best;
  std::size_t first = 0;
  Bytes holes = 0, moved = 0;
  for (std::size_t last = 0; last <= pieces.size(); ++last) {
    if (last > 0 && pieces[last - 1].fixed) {
      first = last;
      holes = moved = 0;
    } else if (last > 0) {
      moved += pieces[last - 1].bytes;
    }
    holes += hole_before(last);
    for (; first < last && (hole_before(first) == 0 || holes - hole_before(first) >= wanted); ++first) {
      holes -= hole_before(first);
      moved -= pieces[first].bytes;
    }
    if (holes >= wanted && (!best || moved < best->moved)) best = {first, last, moved};
  }
  return best;
}

// Down, one against the other.
std::vector<Relocation> slide(const Pieces& pieces, const Run& run) {
  std::vector<Relocation> moves;
  std::uint64_t to = end_before(pieces, run.first);
  for (std::size_t i = run.first; i < run.last; ++i) {
    moves.push_back({pieces[i].chunk, pieces[i].begin, to, pieces[i].bytes});
    to += pieces[i].bytes;
  }
  return moves;
}

// A range that becomes the hole: the pieces from `first` up to `last` leave it.
struct Window {
  Bytes moved = 0;
  std::uint64_t begin = 0;
  std::size_t first = 0, last = 0;
};

// In the order in which they are tried.
std::vector<Window> windows(const Pieces& pieces, Bytes capacity, Bytes wanted, Bytes most_moved) {
  std::vector<std::uint64_t> begins = {0, capacity - wanted};
  for (const Piece& piece : pieces) {
    for (const std::uint64_t edge : {piece.begin, piece.end()}) {
      if (edge + wanted <= capacity) begins.push_back(edge);
      if (edge >= wanted) begins.push_back(edge - wanted);
    }
  }
  std::ranges::sort(begins);
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  std::vector<Window> found;
  std::size_t first = 0, last = 0, fixed = 0;
  Bytes moved = 0;
  for (const std::uint64_t begin : begins) {
    for (; last < pieces.size() && pieces[last].begin < begin + wanted; ++last) {
      moved += pieces[last].bytes;
      fixed += pieces[last].fixed ? 1 : 0;
    }
    for (; first < last && pieces[first].end() <= begin; ++first) {
      moved -= pieces[first].bytes;
      fixed -= pieces[first].fixed ? 1 : 0;
    }
    if (fixed == 0 && moved <= most_moved) found.push_back({moved, begin, first, last});
  }
  std::ranges::sort(found, {}, [](const Window& window) { return std::pair(window.moved, window.begin); });
  return found;
}

// The holes outside a window, as they fill up.
class HolesBeside {
 public:
  HolesBeside(const Holes& holes, std::uint64_t begin, std::uint64_t end) : holes_(holes) {
    auto hole = holes.by_offset().lower_bound(begin);
    if (hole != holes.by_offset().begin()) --hole;
    for (; hole != holes.by_offset().end() && hole->first < end; ++hole) {
      const auto [hole_begin, bytes] = *hole;
      if (hole_begin + bytes <= begin) continue;
      changed_.insert(hole_begin);
      if (hole_begin < begin) parts_.emplace(begin - hole_begin, hole_begin);
      if (hole_begin + bytes > end) parts_.emplace(hole_begin + bytes - end, end);
    }
  }

  // At the low end of the smallest that holds it.
  std::optional<std::uint64_t> take(Bytes bytes) {
    auto whole = holes_.by_size().lower_bound({bytes, 0});
    while (whole != holes_.by_size().end() && changed_.contains(whole->second)) ++whole;
    const auto part = parts_.lower_bound({bytes, 0});
    if (whole == holes_.by_size().end() && part == parts_.end()) return std::nullopt;
    std::pair<Bytes, std::uint64_t> taken;
    if (part == parts_.end() || (whole != holes_.by_size().end() && *whole < *part)) {
      taken = *whole;
      changed_.insert(taken.second);
    } else {
      taken = *part;
      parts_.erase(part);
    }
    if (taken.first > bytes) parts_.emplace(taken.first - bytes, taken.second + bytes);
    return taken.second;
  }

 private:
  const Holes& holes_;
  std::set<std::uint64_t> changed_;                  // of the holes: not as they are there
  std::set<std::pair<Bytes, std::uint64_t>> parts_;  // of them, what is left
};

// Empty: somebody finds no hole.
std::vector<Relocation> clear(const Pieces& pieces, const Holes& holes, const Window& window, Bytes wanted) {
  Pieces leaving(pieces.begin() + static_cast<std::ptrdiff_t>(window.first),
                 pieces.begin() + static_cast<std::ptrdiff_t>(window.last));
  std::ranges::stable_sort(leaving, std::greater(), &Piece::bytes);
  HolesBeside beside(holes, window.begin, window.begin + wanted);
  std::vector<Relocation> moves;
  for (const Piece& piece : leaving) {
    const std::optional<std::uint64_t> to = beside.take(piece.bytes);
    if (!to) return {};
    moves.push_back({piece.chunk, piece.begin, *to, piece.bytes});
  }
  return moves;
}

}  // namespace

std::optional<std::uint64_t> MovableAllocator::allocate(Bytes bytes, bool high_end, ChunkId chunk) {
  if (!has_room(bytes)) return std::nullopt;
  const Hole hole = *holes_.first_fit(bytes, high_end);
  const std::uint64_t offset = high_end ? hole.end() - bytes : hole.begin;
  holes_.take(offset, bytes);
  blocks_[offset] = {bytes, chunk};
  used_ += bytes;
  return offset;
}

void MovableAllocator::release(std::uint64_t offset, Bytes bytes) {
  const auto block = blocks_.find(offset);
  TENCACHE_CHECK(block != blocks_.end() && block->second.bytes == bytes);
  blocks_.erase(block);
  holes_.give(offset, bytes);
  used_ -= bytes;
}

std::vector<Relocation> MovableAllocator::make_hole(Bytes bytes, const Immovable& immovable) const {
  if (bytes > free() || bytes <= holes_.largest()) return {};
  Pieces pieces;
  for (const auto& [offset, block] : blocks_)
    pieces.push_back({offset, block.bytes, block.chunk, immovable(block.chunk)});
  const std::optional<Run> run = cheapest_run(pieces, range_, bytes);
  for (const Window& window : windows(pieces, range_, bytes, run ? run->moved : used_)) {
    const std::vector<Relocation> moves = clear(pieces, holes_, window, bytes);
    if (!moves.empty()) return moves;
  }
  return run ? slide(pieces, *run) : std::vector<Relocation>();
}

void MovableAllocator::relocate(const Relocation& move) {
  const auto block = blocks_.find(move.from);
  TENCACHE_CHECK(block != blocks_.end() && block->second.bytes == move.bytes && block->second.chunk == move.chunk);
  holes_.give(move.from, move.bytes);
  holes_.take(move.to, move.bytes);
  blocks_.erase(block);
  blocks_[move.to] = {move.bytes, move.chunk};
}

}  // namespace tencache
