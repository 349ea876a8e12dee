#include "executor/torch/storage_owners.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace tencache::paging {
namespace {

const void* address(std::uintptr_t unit) { return reinterpret_cast<const void*>(unit * 512); }

// Against a map: units side by side, in blocks far apart, and the last one that there is.
TEST(StorageOwners, AreAMapByAddress) {
  static constinit StorageOwners owners;
  std::mt19937_64 random(1);
  std::map<std::uintptr_t, StorageOwner> expected;
  const auto some_unit = [&random] {
    const std::uintptr_t begins[] = {1, (1 << 20) - 8, std::uintptr_t{5} << 31, (std::uintptr_t{1} << 39) - 16};
    return begins[random() % 4] + random() % 16;
  };
  for (std::uint32_t round = 1; round < 60'000; ++round) {
    const std::uintptr_t unit = some_unit();
    if (random() % 2 == 0) {
      const StorageOwner owner = {round, round % 7 == 0 ? 0 : round};
      owners.put(address(unit), owner);
      expected[unit] = owner;
    } else {
      const auto known = expected.find(unit);
      ASSERT_EQ(owners.take(address(unit)), known == expected.end() ? StorageOwner{} : known->second);
      if (known != expected.end()) expected.erase(known);
    }
    const std::uintptr_t asked = some_unit();
    const auto known = expected.find(asked);
    ASSERT_EQ(owners.find(address(asked)), known == expected.end() ? StorageOwner{} : known->second);
  }
}

TEST(StorageOwners, KnowNothingOfOtherAddresses) {
  static constinit StorageOwners owners;
  owners.put(address(7), {1, 11});
  const auto* const inside = static_cast<const std::byte*>(address(7)) + 64;
  const auto* const beyond = reinterpret_cast<const void*>((std::uintptr_t{1} << 48) + 7 * 512);
  for (const void* nobodys : {static_cast<const void*>(nullptr), static_cast<const void*>(inside), beyond}) {
    EXPECT_EQ(owners.find(nobodys), StorageOwner{});
    EXPECT_EQ(owners.take(nobodys), StorageOwner{});
  }
  EXPECT_EQ(owners.find(address(7)), (StorageOwner{1, 11}));
}

// Each thread's own addresses are its own whatever the others do, also where all of them make the same block.
TEST(StorageOwners, AreForAllThreads) {
  static constinit StorageOwners owners;
  constexpr std::uint32_t thread_count = 4, rounds = 20'000;
  std::atomic<std::uint32_t> waiting = thread_count;
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 1; thread <= thread_count; ++thread) {
    threads.emplace_back([thread, &waiting] {
      --waiting;
      while (waiting != 0) std::this_thread::yield();
      for (std::uint32_t round = 0; round < rounds; ++round) {
        const void* const mine = address((std::uintptr_t{round / 100} << 20) + thread);
        owners.put(mine, {thread, round});
        ASSERT_EQ(owners.find(mine), (StorageOwner{thread, round}));
        ASSERT_EQ(owners.take(mine), (StorageOwner{thread, round}));
        ASSERT_EQ(owners.find(mine), StorageOwner{});
      }
    });
  }
  for (std::thread& each : threads) each.join();
}

}  // namespace
}  // namespace tencache::paging
