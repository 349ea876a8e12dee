// The occupancy of a timeline: every change is somebody's, and what is cut off at the front is carried over.
#include "core/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

// Twelve parameters of 100 bytes, read twice each, and room for three on the GPU.
Timeline simulate_a_tight_case(Trace& trace) {
  std::vector<TensorId> parameters;
  for (int i = 0; i < 12; ++i) parameters.push_back(trace.add_tensor("p", 100, Role::parameter, true));
  const TensorId gradient = trace.add_tensor("g", 50, Role::gradient, false);
  for (const TensorId parameter : parameters) add_op(trace, 50, {parameter}, {});
  add_op(trace, 50, {}, {gradient});
  for (const TensorId parameter : parameters) add_op(trace, 50, {parameter, gradient}, {});
  Timeline timeline;
  const MadePolicy made = make_policy("on-demand");
  EngineOptions options;
  options.timeline = &timeline;
  const RunResult result = simulate({trace, {}}, small_machine(350), *made.policy,
                                    {.max_iterations = 4, .until_steady = false}, std::move(options));
  EXPECT_TRUE(result.fits) << result.misfit;
  return timeline;
}

// Returns what each tensor holds of each tier at the end.
std::map<std::tuple<TierId, TensorId>, std::int64_t> check_sums(const Timeline& timeline, const Trace& trace) {
  std::map<TierId, std::int64_t> used;
  std::map<std::tuple<TierId, TensorId>, std::int64_t> held;
  Nanoseconds before = 0;
  for (const OccupancySample& sample : timeline.occupancy) {
    EXPECT_GE(sample.time_ns, before);
    before = sample.time_ns;
    used[sample.tier] += sample.change;
    EXPECT_EQ(used[sample.tier], static_cast<std::int64_t>(sample.used));
    EXPECT_EQ(sample.role, trace.tensors.at(sample.tensor).role);
    std::int64_t& bytes = held[{sample.tier, sample.tensor}];
    bytes += sample.change;
    EXPECT_GE(bytes, 0);
    EXPECT_LE(bytes, static_cast<std::int64_t>(trace.tensors[sample.tensor].bytes));
  }
  return held;
}

TEST(Occupancy, EveryChangeIsATensors) {
  Trace trace;
  const Timeline timeline = simulate_a_tight_case(trace);
  ASSERT_GT(timeline.occupancy.size(), 40u);
  check_sums(timeline, trace);
}

TEST(Occupancy, ALaterPartBeginsWithWhatWasThere) {
  Trace trace;
  const Timeline timeline = simulate_a_tight_case(trace);
  const Timeline part = from_iteration(timeline, 2);
  ASSERT_FALSE(part.spans.empty());
  for (const Span& span : part.spans) EXPECT_GE(span.iteration, 2u);
  EXPECT_LT(part.occupancy.size(), timeline.occupancy.size());
  EXPECT_EQ(check_sums(part, trace), check_sums(timeline, trace));
  EXPECT_TRUE(from_iteration(timeline, 99).spans.empty());
}

// A live program's tensor is an activation until it is marked: what it gave back as a parameter was taken before.
TEST(Occupancy, ARoleThatBecameKnownLateIsThatOfAll) {
  Timeline timeline;
  timeline.spans = {{.start_ns = 100, .end_ns = 200, .kind = SpanKind::op, .iteration = 2}};
  timeline.occupancy = {{0, 0, Role::activation, 7, 300, 300}, {50, 0, Role::parameter, 7, 200, -100}};
  const Timeline part = from_iteration(timeline, 2);
  ASSERT_EQ(part.occupancy.size(), 1u);
  EXPECT_EQ(part.occupancy[0].role, Role::parameter);
  EXPECT_EQ(part.occupancy[0].change, 200);
  EXPECT_EQ(part.occupancy[0].used, 200u);
}

}  // namespace
}  // namespace tencache
