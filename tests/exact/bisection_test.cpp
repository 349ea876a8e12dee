#include "studies/bisection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tencache {
namespace {

TEST(Bisection, FindsTheLastThatFitsBelowAndAbove) {
  for (std::uint64_t border = 0; border < 20; ++border) {
    EXPECT_EQ(last_that_fits(0, 20, [&](std::uint64_t value) { return value <= border; }), border);
    EXPECT_EQ(last_that_fits(20, 0, [&](std::uint64_t value) { return value > border; }), border + 1);
  }
}

// Whatever is said to be missing, the answer is the same; where it is the truth, two trials are enough.
TEST(Bisection, FollowsWhatWasMissing) {
  for (std::uint64_t least = 1; least < 999'000; least += 997) {
    for (const std::uint64_t percent : {0u, 40u, 100u, 250u}) {
      std::uint64_t trials = 0;
      const auto missing = [&](std::uint64_t value) -> std::optional<std::uint64_t> {
        EXPECT_GT(value, 0u);
        EXPECT_LT(value, 1'000'000u);
        ++trials;
        if (value >= least) return std::nullopt;
        return (least - value) * percent / 100;
      };
      EXPECT_EQ(least_that_fits(1'000'000, 0, missing), least) << percent;
      EXPECT_LE(trials, 60u) << percent << "; three times as many as bisection takes";
      trials = 0;
      const std::uint64_t nearly = least_that_fits(1'000'000, 0, missing, 100);
      EXPECT_GE(nearly, least) << percent;
      EXPECT_LE(nearly, least + least / 100) << percent;
      EXPECT_LE(trials, 60u) << percent;
    }
  }
  std::uint64_t trials = 0;
  const auto missing = [&](std::uint64_t value) -> std::optional<std::uint64_t> {
    ++trials;
    return value >= 600'000 ? std::nullopt : std::optional(600'000 - value);
  };
  EXPECT_EQ(least_that_fits(1'000'000, 0, missing), 600'000u);
  EXPECT_EQ(trials, 3u) << "the middle, what was missing there, and just below";
}

TEST(Bisection, GoesUpInGrowingStepsWhereTheAnswerIsNear) {
  for (std::uint64_t least = 101; least <= 1'000'000; least += 1 + least / 7) {
    std::uint64_t trials = 0, tried_most = 0;
    const auto missing = [&](std::uint64_t value) -> std::optional<std::uint64_t> {
      ++trials;
      tried_most = std::max(tried_most, value);
      return value >= least ? std::nullopt : std::optional<std::uint64_t>(0);
    };
    EXPECT_EQ(least_that_fits_near(1'000'000, 100, missing), least);
    EXPECT_LE(tried_most, std::min<std::uint64_t>(100 + 5 * (least - 100), 1'000'000)) << "nothing far beyond it";
    EXPECT_LE(trials, 60u);
  }
}

}  // namespace
}  // namespace tencache
