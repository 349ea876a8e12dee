// What is known of evictable copies without looking at them (core/residency.h).
#include "core/residency.h"

#include <gtest/gtest.h>

#include "tests/small_cases.h"

namespace tencache {
namespace {

struct Tiers {
  MachineSpec machine = small_machine(1'000);
  Residency memory{machine, std::vector<AllocatorSpec>(machine.tiers.size()), 0, false};
  // A chunk of that size, pinned on the GPU.
  ChunkId pinned(Bytes bytes) {
    const ChunkId chunk = memory.first_chunk(memory.add_tensor(bytes, Role::parameter, true));
    memory.pin(chunk, 0);
    put(chunk, 0);
    return chunk;
  }
  void put(ChunkId chunk, TierId tier) {
    EXPECT_TRUE(memory.reserve(chunk, tier));
    memory.commit(chunk, tier);
  }
};

TEST(ResidencyTest, AtFirstNothingIsKnownOfWhatIsEvictable) {
  const Evictable known = Tiers().memory.take_evictable(0);
  EXPECT_EQ(known.least, 0U);
  EXPECT_TRUE(known.shared);
}

TEST(ResidencyTest, WhatBecomesEvictableIsKnownAfterASearch) {
  Tiers tiers;
  const ChunkId large = tiers.pinned(100), small = tiers.pinned(10);
  tiers.memory.take_evictable(0);
  EXPECT_GT(tiers.memory.take_evictable(0).least, 1'000U) << "nothing since then";
  tiers.memory.unpin(large, 0);
  Evictable known = tiers.memory.take_evictable(0);
  EXPECT_EQ(known.least, 100U);
  EXPECT_FALSE(known.shared);
  tiers.memory.add_evictable(0, known);  // it is still there
  tiers.memory.unpin(small, 0);
  EXPECT_EQ(tiers.memory.take_evictable(0).least, 10U);
}

TEST(ResidencyTest, ASecondCopyMakesTheFirstOneShared) {
  Tiers tiers;
  const ChunkId chunk = tiers.pinned(100);
  tiers.memory.unpin(chunk, 0);
  tiers.memory.take_evictable(0);
  tiers.put(chunk, 1);
  const Evictable known = tiers.memory.take_evictable(0);
  EXPECT_EQ(known.least, 100U);
  EXPECT_TRUE(known.shared);
}

TEST(ResidencyTest, AnEvictionThatIsGivenUpAndACopyThatIsWrittenCountToo) {
  Tiers tiers;
  const ChunkId chunk = tiers.pinned(100);
  tiers.memory.unpin(chunk, 0);
  tiers.memory.set_evicting(chunk, 0, true);
  tiers.memory.take_evictable(0);
  tiers.memory.set_evicting(chunk, 0, false);
  EXPECT_EQ(tiers.memory.take_evictable(0).least, 100U);
  EXPECT_TRUE(tiers.memory.reserve(chunk, 1));
  tiers.memory.set_unwritten(chunk, 1, true);
  tiers.memory.commit(chunk, 1);
  EXPECT_FALSE(tiers.memory.take_evictable(0).shared) << "no value is there yet";
  tiers.memory.set_unwritten(chunk, 1, false);
  EXPECT_TRUE(tiers.memory.take_evictable(0).shared);
}

}  // namespace
}  // namespace tencache
