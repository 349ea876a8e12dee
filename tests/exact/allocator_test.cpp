#include "core/allocator.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tencache {
namespace {

TEST(AllocatorTest, ExactKnowsOnlyTheSum) {
  const auto allocator = make_allocator({AllocatorKind::exact, {}}, 100);
  EXPECT_EQ(allocator->allocate(60, false), 0U);
  EXPECT_FALSE(allocator->has_room(41));
  EXPECT_FALSE(allocator->allocate(41, false));
  EXPECT_TRUE(allocator->allocate(40, false));
  allocator->release(0, 60);
  EXPECT_EQ(allocator->free(), 60U);
}

// Holes of 30 at 0 and of 20 at 50: the smaller one that fits is taken; freed neighbours become one hole.
TEST(AllocatorTest, BestFitTakesTheSmallestHole) {
  const auto allocator = make_allocator({AllocatorKind::best_fit, {}}, 100);
  for (const Bytes bytes : {30U, 20U, 20U, 30U}) ASSERT_TRUE(allocator->allocate(bytes, false));
  EXPECT_EQ(allocator->largest_free(), 0U);
  allocator->release(0, 30);
  allocator->release(50, 20);
  EXPECT_FALSE(allocator->has_room(31));
  EXPECT_EQ(allocator->largest_free(), 30U);
  EXPECT_EQ(allocator->padding(), 0U);
  EXPECT_EQ(allocator->allocate(20, false), 50U);
  EXPECT_EQ(allocator->allocate(25, false), 0U);
  allocator->release(50, 20);
  allocator->release(30, 20);
  EXPECT_EQ(allocator->allocate(45, false), 25U);
}

TEST(AllocatorTest, TwoEndedGrowsFromBothEnds) {
  const auto allocator = make_allocator({AllocatorKind::two_ended, {}}, 100);
  EXPECT_EQ(allocator->allocate(10, false), 0U);
  EXPECT_EQ(allocator->allocate(10, true), 90U);
  EXPECT_EQ(allocator->allocate(10, true), 80U);
}

TEST(AllocatorTest, SizeClassesTakeTheSmallestClassThatHolds) {
  const auto allocator = make_allocator({AllocatorKind::size_classes, {{40, 1}, {10, 2}}}, 100);
  EXPECT_EQ(allocator->capacity(), 60U);
  EXPECT_EQ(allocator->footprint(7), 10U);
  EXPECT_EQ(allocator->footprint(11), 40U);
  ASSERT_TRUE(allocator->allocate(7, false));
  ASSERT_TRUE(allocator->allocate(7, false));
  EXPECT_FALSE(allocator->has_room(7)) << "the larger class is not for small ones";
  EXPECT_TRUE(allocator->has_room(11));
  EXPECT_EQ(allocator->padding(), 6U);
  EXPECT_EQ(allocator->largest_free(), 40U);
  EXPECT_FALSE(allocator->could_hold(41));
  EXPECT_THROW(make_allocator({AllocatorKind::fixed_buffers, {{40, 3}}}, 100), Error);
}

// Segments of 20 MiB for requests of 1 to 10, of their own size above. A remainder of 1 MiB or less stays with its
// block.
TEST(AllocatorTest, CachingKeepsItsSegments) {
  const auto allocator = make_allocator({AllocatorKind::caching, {}}, 60 * MiB);
  EXPECT_TRUE(allocator->could_hold(60 * MiB));
  EXPECT_FALSE(allocator->could_hold(61 * MiB));
  EXPECT_EQ(allocator->footprint(1000), 1024U);
  const auto small = allocator->allocate(3 * MiB, false);
  ASSERT_TRUE(small);
  EXPECT_EQ(allocator->free(), 57 * MiB);
  EXPECT_EQ(allocator->largest_free(), 40 * MiB) << "what the device has left";
  EXPECT_FALSE(allocator->has_room(41 * MiB)) << "the segment of 20 is in use";
  EXPECT_FALSE(allocator->allocate(41 * MiB, false));
  const auto whole = allocator->allocate(16 * MiB + MiB / 2, false);
  ASSERT_TRUE(whole);
  EXPECT_EQ(allocator->padding(), MiB / 2);
  EXPECT_EQ(allocator->used(), 20 * MiB);
  allocator->release(*small, 3 * MiB);
  allocator->release(*whole, 16 * MiB + MiB / 2);
  EXPECT_EQ(allocator->used(), 0U);
  EXPECT_TRUE(allocator->has_room(60 * MiB)) << "a segment that is free goes back to the device";
  EXPECT_TRUE(allocator->allocate(60 * MiB, false));
}

}  // namespace
}  // namespace tencache
