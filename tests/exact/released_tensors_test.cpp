// Threads let go of tensors while one hears of them: each is heard once, after all that was done with it.
#include "executor/live/released_tensors.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace tencache {
namespace {

TEST(ReleasedTensors, ComeInTheirOrder) {
  ReleasedTensors released;
  std::vector<TensorId> taken = {7};
  EXPECT_FALSE(released.any());
  for (const TensorId tensor : {5u, 3u, 9u}) released.add(tensor);
  EXPECT_TRUE(released.any());
  released.take(taken);
  EXPECT_EQ(taken, (std::vector<TensorId>{5, 3, 9}));
  EXPECT_FALSE(released.any());
  released.take(taken);
  EXPECT_TRUE(taken.empty());
  released.add(4);
  released.take(taken);
  EXPECT_EQ(taken, std::vector<TensorId>{4});
}

TEST(ReleasedTensors, NoneIsLostOrHeardTwice) {
  constexpr std::size_t threads = 3;
  constexpr TensorId each = 20'000;
  ReleasedTensors released;
  std::vector<int> content(threads * each, 0), heard(threads * each, 0);
  std::atomic<std::size_t> running = threads;
  std::vector<std::thread> owners;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    owners.emplace_back([&, first = static_cast<TensorId>(thread * each)] {
      for (TensorId tensor = first; tensor < first + each; ++tensor) {
        content[tensor] = 1;
        released.add(tensor);
        if (tensor % 5 == 0) std::this_thread::yield();  // one alone, and several at once
      }
      --running;
    });
  }
  std::vector<TensorId> taken;
  for (bool more = true; more || released.any();) {
    more = running > 0;
    released.take(taken);
    for (const TensorId tensor : taken) {
      EXPECT_EQ(content[tensor], 1);
      content[tensor] = 0;
      ++heard[tensor];
    }
    if (taken.empty()) std::this_thread::yield();
  }
  for (std::thread& owner : owners) owner.join();
  EXPECT_EQ(heard, std::vector<int>(threads * each, 1));
}

}  // namespace
}  // namespace tencache
