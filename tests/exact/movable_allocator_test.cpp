#include "core/movable_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace tencache {
namespace {

const Immovable nobody_stays = [](ChunkId) { return false; };

Immovable stays(std::set<ChunkId> chunks) {
  return [chunks = std::move(chunks)](ChunkId chunk) { return chunks.contains(chunk); };
}

// Chunks 0, 1, 2, … of these sizes, one behind the other from the high end down; those named are then freed.
MovableAllocator arena(Bytes capacity, const std::vector<Bytes>& sizes, const std::set<ChunkId>& freed) {
  MovableAllocator made(capacity);
  std::vector<std::uint64_t> at;
  for (ChunkId chunk = 0; chunk < sizes.size(); ++chunk) at.push_back(*made.allocate(sizes[chunk], true, chunk));
  for (const ChunkId chunk : freed) made.release(at[chunk], sizes[chunk]);
  return made;
}

TEST(MovableAllocatorTest, WhatLastsLiesAtTheLowEndAndTheRestAtTheHigh) {
  MovableAllocator made(8192);
  EXPECT_EQ(made.allocate(7, false, 1), 0U);
  EXPECT_EQ(made.allocate(8, true, 2), 8184U);
  EXPECT_EQ(made.allocate(70, false, 3), 7U);
  EXPECT_EQ(made.allocate(1, true, 4), 8183U);
}

TEST(MovableAllocatorTest, ALittleStaysFree) {
  MovableAllocator made(1280);
  EXPECT_EQ(made.capacity(), 1270U);
  EXPECT_TRUE(made.allocate(1000, false, 1));
  EXPECT_FALSE(made.allocate(271, false, 2));
  EXPECT_EQ(made.largest_free(), 270U);
  EXPECT_TRUE(made.allocate(270, false, 2));
  EXPECT_FALSE(made.could_hold(1271));
}

// Holes of 10 at 10 and 30, of 20 at 50.
TEST(MovableAllocatorTest, TheFirstHoleFromTheChunksEndIsTaken) {
  MovableAllocator made = arena(100, {30, 20, 10, 10, 10, 10, 10}, {1, 3, 5});
  EXPECT_EQ(made.largest_free(), 20U);
  EXPECT_FALSE(made.has_room(21));
  EXPECT_EQ(made.allocate(5, true, 9), 65U);
  EXPECT_EQ(made.allocate(8, false, 10), 10U);
  EXPECT_EQ(made.allocate(8, false, 11), 30U);
  EXPECT_EQ(made.allocate(15, false, 12), 50U);
}

// 0..10 hole, 10..20 chunk 4, 20..30 hole, 30..50 chunk 2, 50..60 hole, 60..100 chunk 0. A hole of 20: chunk 4 leaves
// for the lower of the two holes beside the window.
TEST(MovableAllocatorTest, AWindowIsCleared) {
  const MovableAllocator made = arena(100, {40, 10, 20, 10, 10, 10}, {1, 3, 5});
  const std::vector<Relocation> expected = {{4, 10, 20, 10}};
  EXPECT_EQ(made.make_hole(20, nobody_stays), expected) << "the window 0..20 is the lowest of those that move 10";
  EXPECT_TRUE(made.make_hole(10, nobody_stays).empty()) << "the hole is there";
  EXPECT_TRUE(made.make_hole(31, nobody_stays).empty()) << "more than is free";
}

// The same without a hole that chunk 2 fits into: it slides.
TEST(MovableAllocatorTest, ARunSlides) {
  const MovableAllocator made = arena(100, {40, 10, 20, 10, 20}, {1, 3});
  const std::vector<Relocation> expected = {{2, 30, 20, 20}};
  EXPECT_EQ(made.make_hole(20, nobody_stays), expected);
  EXPECT_TRUE(made.make_hole(20, stays({2})).empty());
}

TEST(MovableAllocatorTest, WhatHasMovedLiesElsewhere) {
  MovableAllocator made = arena(100, {40, 10, 20, 10, 20}, {1, 3});
  for (const Relocation& move : made.make_hole(20, nobody_stays)) made.relocate(move);
  EXPECT_EQ(made.used(), 80U);
  EXPECT_EQ(made.allocate(20, false, 9), 40U);
  made.release(20, 20);
  EXPECT_EQ(made.largest_free(), 20U);
}

// ---- Random arenas, a number for each unit --------------------------------------------------------------------------

constexpr int hole = -1, window = -2;
using Units = std::vector<int>;

struct Span {
  std::size_t begin = 0, end = 0;
  int chunk = hole;
  std::size_t size() const { return end - begin; }
};

std::vector<Span> spans(const Units& units) {
  std::vector<Span> list;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (list.empty() || list.back().chunk != units[i]) list.push_back({i, i, units[i]});
    ++list.back().end;
  }
  return list;
}

std::size_t largest_hole(const Units& units) {
  std::size_t largest = 0;
  for (const Span& span : spans(units)) largest = span.chunk == hole ? std::max(largest, span.size()) : largest;
  return largest;
}

// Whether these find holes, in any order and each in any of them.
bool packs(Units& units, std::vector<Span>& leaving) {
  if (leaving.empty()) return true;
  const Span last = leaving.back();
  leaving.pop_back();
  for (const Span& span : spans(units)) {
    if (span.chunk != hole || span.size() < last.size()) continue;
    const auto begin = units.begin() + static_cast<std::ptrdiff_t>(span.begin);
    std::fill_n(begin, last.size(), window);
    const bool fits = packs(units, leaving);
    std::fill_n(begin, last.size(), hole);
    if (fits) return true;
  }
  leaving.push_back(last);
  return false;
}

// The least that clearing any window or sliding any run moves; nothing if neither is possible.
std::optional<std::size_t> least_moved(const Units& units, std::size_t wanted, const std::set<ChunkId>& fixed) {
  std::optional<std::size_t> least;
  const auto consider = [&least](std::size_t moved) { least = std::min(least.value_or(moved), moved); };
  const std::vector<Span> all = spans(units);
  for (std::size_t begin = 0; begin + wanted <= units.size(); ++begin) {
    Units rest = units;
    std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(begin), wanted, window);
    std::vector<Span> leaving;
    std::size_t moved = 0;
    bool possible = true;
    for (const Span& span : all) {
      if (span.chunk == hole || span.begin >= begin + wanted || span.end <= begin) continue;
      possible = possible && !fixed.contains(static_cast<ChunkId>(span.chunk));
      leaving.push_back(span);
      moved += span.size();
    }
    if (possible && packs(rest, leaving)) consider(moved);
  }
  for (std::size_t first = 0; first < all.size(); ++first) {
    std::size_t moved = 0, free = 0;
    for (std::size_t last = first; last < all.size() && all[first].chunk == hole; ++last) {
      if (all[last].chunk == hole) {
        free += all[last].size();
        if (free >= wanted) consider(moved);
      } else if (fixed.contains(static_cast<ChunkId>(all[last].chunk))) {
        break;
      } else {
        moved += all[last].size();
      }
    }
  }
  return least;
}

struct RandomArena {
  MovableAllocator allocator;
  Units units;
  std::set<ChunkId> fixed;
};

RandomArena random_arena(std::mt19937& random) {
  const auto below = [&random](std::uint32_t end) { return random() % end; };
  const std::size_t capacity = 12 + below(30);
  RandomArena made{MovableAllocator(capacity), Units(capacity, hole), {}};
  std::vector<Span> held;
  for (ChunkId chunk = 0; made.allocator.free() > 0; ++chunk) {
    const Bytes bytes = std::min<Bytes>(1 + below(8), made.allocator.free());
    const std::optional<std::uint64_t> at = made.allocator.allocate(bytes, false, chunk);
    if (!at) break;
    held.push_back({*at, *at + bytes, static_cast<int>(chunk)});
  }
  for (const Span& span : held) {
    if (below(2) == 0) {
      made.allocator.release(span.begin, span.size());
      continue;
    }
    std::fill(made.units.begin() + static_cast<std::ptrdiff_t>(span.begin),
              made.units.begin() + static_cast<std::ptrdiff_t>(span.end), span.chunk);
    if (below(5) == 0) made.fixed.insert(static_cast<ChunkId>(span.chunk));
  }
  return made;
}

// One after the other, as memmove would: the chunk's units come to where only its own lay.
void carry_out(const Relocation& move, Units& units) {
  for (std::size_t i = 0; i < move.bytes; ++i) {
    ASSERT_EQ(units[move.from + i], static_cast<int>(move.chunk));
    units[move.from + i] = hole;
  }
  for (std::size_t i = 0; i < move.bytes; ++i) {
    ASSERT_EQ(units[move.to + i], hole);
    units[move.to + i] = static_cast<int>(move.chunk);
  }
}

// The largest chunk goes first, into the smallest hole: hardly ever does another order find a cheaper window.
TEST(MovableAllocatorTest, NothingCheaperIsFoundByTryingEverything) {
  std::mt19937 random(17);
  std::uint64_t made = 0, none_possible = 0, cheapest = 0;
  for (int i = 0; i < 20'000; ++i) {
    RandomArena random_case = random_arena(random);
    const std::size_t largest = largest_hole(random_case.units), free = random_case.allocator.free();
    ASSERT_EQ(random_case.allocator.largest_free(), largest);
    if (free <= largest) continue;
    const std::size_t wanted = largest + 1 + random() % (free - largest);
    const std::optional<std::size_t> least = least_moved(random_case.units, wanted, random_case.fixed);
    const std::vector<Relocation> moves = random_case.allocator.make_hole(wanted, stays(random_case.fixed));
    std::size_t moved = 0;
    for (const Relocation& move : moves) {
      ASSERT_FALSE(random_case.fixed.contains(move.chunk));
      carry_out(move, random_case.units);
      random_case.allocator.relocate(move);
      moved += move.bytes;
    }
    if (moves.empty()) {
      none_possible += least ? 0 : 1;
      cheapest += least ? 0 : 1;
      ++made;
      continue;
    }
    ASSERT_TRUE(least);
    ASSERT_GE(largest_hole(random_case.units), wanted);
    ASSERT_TRUE(random_case.allocator.allocate(wanted, false, 1000));
    ASSERT_GE(moved, *least);
    cheapest += moved == *least ? 1 : 0;
    ++made;
  }
  EXPECT_GT(made, 10'000U);
  EXPECT_GT(none_possible, 100U);
  EXPECT_GE(cheapest * 1000, made * 995) << cheapest << " of " << made;
}

}  // namespace
}  // namespace tencache
