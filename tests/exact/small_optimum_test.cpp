// Exact optima of small steps, between the lower bound and what policies reach.
#include "tests/exact/small_optimum.h"

#include <gtest/gtest.h>

#include <memory>

#include "policies/registry.h"
#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "studies/bound.h"
#include "tests/exact/small_step.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

// A is read and then B, in turn, and the GPU holds one: each op waits for its copy, 2 x (1 + 1) units.
TEST(SmallOptimum, WaitsForEachCopy) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true),
                 b = trace.add_tensor("b", 100, Role::parameter, true);
  add_op(trace, 100, {a}, {});
  add_op(trace, 100, {b}, {});
  EXPECT_EQ(small_optimum(trace, 100, 1).units, 4);
  EXPECT_EQ(small_optimum(trace, 100, 2).units, 2);
}

// Three weights in turn on a GPU for two: while an op runs the next one's weight comes in, unless both places are
// taken: two of the three ops find theirs.
TEST(SmallOptimum, FetchesAhead) {
  Trace trace;
  for (const char* name : {"a", "b", "c"}) {
    const TensorId tensor = trace.add_tensor(name, 100, Role::parameter, true);
    add_op(trace, 100, {tensor}, {});
  }
  EXPECT_EQ(small_optimum(trace, 100, 2).units, 3);
}

// What is updated must go out before another can come in: a unit in, one to compute, one out, twice.
TEST(SmallOptimum, WritesBackWhatChanged) {
  Trace trace;
  for (const char* name : {"a", "b"}) {
    const TensorId tensor = trace.add_tensor(name, 100, Role::optimizer_state, true);
    add_op(trace, 100, {tensor}, {tensor});
  }
  EXPECT_EQ(small_optimum(trace, 100, 1).units, 6);
}

TEST(SmallOptimum, LiesBetweenTheBoundAndFortyPlans) {
  double tight = 0, reached = 0;
  constexpr int cases = 48;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    SCOPED_TRACE(seed);
    const SmallStep step = small_step(seed);
    const MachineSpec machine = small_step_machine(step);
    const double unit_seconds = static_cast<double>(small_unit_ns) * 1e-9;
    const double optimum = small_optimum(step.trace, small_unit_ns, step.gpu_tensors).units * unit_seconds;
    const double bound = lower_bound_of(step.trace, machine).seconds;
    EXPECT_LE(bound, optimum * (1 + 1e-9));
    tight += bound >= 0.999 * optimum ? 1 : 0;
    for (const char* name : {"foresight", "belady", "lru", "deepum"}) {
      const MadePolicy made = make_policy(name, {{"chunk", "100"}});
      prepare(step.trace, *made.policy, machine, rehearse);
      const RunResult result = simulate(lower(step.trace, *made.policy, machine), machine, *made.policy);
      if (!result.fits || !result.steady) continue;
      EXPECT_GE(result.iteration_seconds(), optimum * (1 - 1e-9)) << name;
      if (std::string(name) == "foresight") reached += result.iteration_seconds() <= 1.001 * optimum ? 1 : 0;
    }
  }
  EXPECT_GT(tight, cases / 4);
  EXPECT_GT(reached, cases / 4);
}

}  // namespace
}  // namespace tencache
