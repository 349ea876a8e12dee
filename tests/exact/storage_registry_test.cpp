#include "executor/torch/storage_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace tencache::paging {
namespace {

const void* address(std::uintptr_t number) { return reinterpret_cast<const void*>(number * 4096); }

// Against a map, through growth and through every kind of hole.
TEST(OwnerTable, IsAMapByAddress) {
  std::mt19937_64 random(1);
  const tencache_live live{};
  OwnerTable table;
  std::map<std::uintptr_t, std::uint32_t> expected;
  for (int round = 0; round < 60'000; ++round) {
    const std::uintptr_t number = 1 + random() % (round < 30'000 ? 300 : 50);
    if (random() % 2 == 0) {
      table.put({address(number), &live, static_cast<std::uint32_t>(round)});
      expected[number] = static_cast<std::uint32_t>(round);
    } else if (expected.erase(number) != 0) {
      table.erase(address(number));
    }
    const std::uintptr_t asked = 1 + random() % 300;
    const auto known = expected.find(asked);
    const Owner found = table.find(address(asked));
    ASSERT_EQ(found.address, known == expected.end() ? nullptr : address(asked));
    if (known != expected.end()) {
      ASSERT_EQ(found.tensor, known->second);
    }
  }
  std::size_t count = 0;
  table.visit([&](const Owner& owner) {
    ++count;
    EXPECT_EQ(owner.tensor, expected.at(reinterpret_cast<std::uintptr_t>(owner.address) / 4096));
  });
  EXPECT_EQ(count, expected.size());
  EXPECT_EQ(table.find(nullptr).address, nullptr);
}

// Each thread's own addresses are there for it whatever the others put and erase meanwhile.
TEST(OwnerTable, IsReadWhileItChanges) {
  const tencache_live live{};
  OwnerTable table;
  constexpr std::uintptr_t kept = 40;
  for (std::uintptr_t i = 1; i <= kept; ++i) table.put({address(i), &live, static_cast<std::uint32_t>(i)});
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (int round = 0; round < 200; ++round) {
      for (std::uintptr_t i = 0; i < 64; ++i) table.put({address(1000 + i), &live, 7});
      for (std::uintptr_t i = 0; i < 64; ++i) table.erase(address(1000 + i * 29 % 64));
      table.put({address(5000 + static_cast<std::uintptr_t>(round)), &live, 8});  // it grows
    }
    over = true;
  });
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      while (!over) {
        for (std::uintptr_t i = 1; i <= kept; ++i) {
          const Owner found = table.find(address(i));
          ASSERT_EQ(found.address, address(i));
          ASSERT_EQ(found.tensor, i);
        }
      }
    });
  }
  writer.join();
  for (std::thread& reader : readers) reader.join();
}

TEST(StorageRegistry, KnowsWhoseStoragesAre) {
  static std::vector<std::uint32_t> released;
  tencache_live live{}, other{};
  for (tencache_live* one : {&live, &other}) {
    one->release = [](void*, std::uint32_t tensor) { released.push_back(tensor); };
  }
  StorageRegistry registry;
  registry.add(address(1), live, 11);
  registry.add(address(2), other, 12);
  registry.add(address(3), live, 13);
  EXPECT_EQ(registry.find(address(1), &live), 11u);
  EXPECT_EQ(registry.find(address(2), &live), tencache_no_tensor);
  EXPECT_EQ(registry.find(address(9), &live), tencache_no_tensor);
  EXPECT_EQ(registry.find(address(9), nullptr), tencache_no_tensor);
  EXPECT_EQ(registry.tensors_of(live), (std::vector<std::uint32_t>{11, 13}));
  EXPECT_TRUE(registry.let_go(address(1)));
  EXPECT_FALSE(registry.let_go(address(1)));
  registry.orphan(live);
  EXPECT_EQ(registry.find(address(3), &live), tencache_no_tensor);
  EXPECT_EQ(registry.find(address(3), nullptr), 13u);
  EXPECT_TRUE(registry.let_go(address(3))) << "its runtime need not hear of it";
  EXPECT_TRUE(registry.let_go(address(2)));
  EXPECT_EQ(released, (std::vector<std::uint32_t>{11, 12}));
}

}  // namespace
}  // namespace tencache::paging
