// The lower bound: its terms on traces worked by hand, and that no simulated run is ever faster.
#include "sim/bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "sim/simulate.h"
#include "tests/random_case.h"
#include "tests/small_cases.h"
#include "traces/lower.h"

namespace tencache {
namespace {

// TENCACHE_CASES=50 runs fifty times as many.
std::uint64_t factor() {
  const char* text = std::getenv("TENCACHE_CASES");
  return text == nullptr ? 1 : std::max<std::uint64_t>(1, std::strtoull(text, nullptr, 10));
}

struct Tally {
  std::uint64_t runs = 0, beyond_compute = 0, steady = 0, moved = 0, tight = 0;
};

void check(std::uint64_t seed, const CaseOptions& options, Tally& tally) {
  const SeedOnAbort at_abort(seed);
  RandomCase made = random_case(seed, options);
  const Trace recorded = made.program.trace;
  const Bound bound = lower_bound_of(recorded, made.machine);
  const std::unique_ptr<Policy> policy = made.make();
  made.program = lower(recorded, *policy, made.machine);
  if (seed % 3 == 0) made.limits = {.max_iterations = 12, .until_steady = true};
  RunResult result;
  try {
    result = simulate(made.program, made.machine, *policy, made.limits);
  } catch (const Error&) {
    return;  // the policy refuses the machine, or the optimizer took every GPU op
  }
  if (!result.fits) return;
  const bool unlimited_gpu = policy->layout(made.machine, &made.program).unlimited_gpu;
  if (!unlimited_gpu) {
    ASSERT_EQ(bound.misfit, "") << made.describe();
  }
  const double least = unlimited_gpu ? bound.compute_seconds : bound.seconds;
  ASSERT_GE(result.iteration_seconds(), least * (1 - 1e-9))
      << "faster than " << (unlimited_gpu ? bound.compute_term : bound.term) << " allows, window of " << result.period
      << (result.steady ? ", steady\n" : "\n") << made.describe();
  ++tally.runs;
  tally.beyond_compute += bound.seconds > bound.compute_seconds * 1.001 ? 1 : 0;
  tally.steady += result.steady ? 1 : 0;
  tally.moved += made.program.changes.empty() ? 0 : 1;
  tally.tight += result.iteration_seconds() < least * 1.05 ? 1 : 0;
}

void check_all(std::uint64_t first_seed, std::uint64_t count, const CaseOptions& options, Tally& tally) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count * factor(); ++seed) {
    check(seed, options, tally);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(BoundTest, NoRunIsFaster) {
  Tally tally;
  check_all(20'000'000, 6000, {.optimizer = true}, tally);
  check_all(21'000'000, 3000, {.policy = "random", .optimizer = true}, tally);
  // Else it would prove little.
  EXPECT_GT(tally.runs, 5000 * factor());
  EXPECT_GT(tally.beyond_compute, tally.runs / 5);
  EXPECT_GT(tally.steady, tally.runs / 20);
  EXPECT_GT(tally.moved, tally.runs / 50);
  EXPECT_GT(tally.tight, tally.runs / 50);
}

}  // namespace
}  // namespace tencache
