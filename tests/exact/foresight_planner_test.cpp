// How foresight's planning searches (policies/foresight/planner.h, trials.h), where the times that rehearsals tell are
// written down here instead of being simulated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "policies/foresight/placement.h"
#include "policies/foresight/planner.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "tests/golden/golden_run.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One op that reads one tensor: what is planned for it is up to `tell`.
struct Told {
  using Tell = std::function<Rehearsal(const ForesightPlan& plan, const RehearsalLimits& limits)>;

  explicit Told(Tell told, Bytes bytes = 100) : tell(std::move(told)) {
    trace.add_tensor("w", bytes, Role::parameter, true);
    add_op(trace, 10, {0}, {});
    traces.emplace_back(trace, machine, 0, 100);
  }
  ForesightTrials::Make make() {
    return [this](const ForesightPlan& plan, Bytes) {
      asked.push_back(plan);
      return make_policy("on-demand").policy;
    };
  }
  ForesightPlan plan(double cpu_share, PlanningLimits limits = {.events = 1'000'000}) {
    ForesightPlanner planner(rehearse, make(), traces, limits, 0);
    const ForesightPlan best = planner.plan({.cpu_share = cpu_share, .knobs = {}});
    notes = planner.notes();
    return best;
  }
  std::vector<double> shares() const {
    std::vector<double> shares;
    for (const ForesightPlan& plan : asked) shares.push_back(*plan.cpu_share);
    return shares;
  }

  Tell tell;
  Trace trace;
  MachineSpec machine = small_machine(1'000);
  std::vector<CoarseTrace> traces;
  std::vector<ForesightPlan> asked;  // of which a rehearsal was made
  std::vector<std::string> notes;
  RehearseTrace rehearse = [this](const Trace&, const MachineSpec&, Policy&, const RehearsalLimits& limits) {
    return tell(asked.back(), limits);
  };
};

Rehearsal takes(Nanoseconds ns, std::uint64_t events = 100) {
  Rehearsal told;
  told.fits = told.complete = true;
  told.iteration_ns = ns;
  told.events = events;
  told.tiers = {1};
  return told;
}

// The best share is 0.9; each 1/16 away from it costs a tenth.
Rehearsal by_share(const ForesightPlan& plan, const RehearsalLimits& limits) {
  const Nanoseconds ns = 100'000 + static_cast<Nanoseconds>(160'000 * std::abs(*plan.cpu_share - 0.9));
  Rehearsal told = takes(ns);
  told.complete = ns <= limits.hopeless_ns;
  return told;
}

TEST(ForesightPlannerTest, StepsGrowAsLongAsTheShareGetsBetter) {
  Told told(by_share);
  EXPECT_NEAR(*told.plan(0.25).cpu_share, 0.9, 1.0 / 64);
  // From 0.25 (rehearsed first) up by 1/16, 2/16, 4/16, all better; by 8/16, out of range, so no rehearsal; by 1/16.
  const std::vector<double> shares = told.shares();
  ASSERT_GE(shares.size(), 5U);
  EXPECT_THAT(std::vector(shares.begin(), shares.begin() + 5), ElementsAre(0.25, 0.3125, 0.4375, 0.6875, 0.75));
  const std::size_t rehearsals = shares.size();
  Told slowly(by_share);
  EXPECT_NEAR(*slowly.plan(0.25, {.events = 1'000'000, .careful = true}).cpu_share, 0.9, 1.0 / 64);
  EXPECT_GT(slowly.asked.size(), rehearsals);
  const std::vector<double> small = slowly.shares();
  for (std::size_t i = 0; i + 1 < 10; ++i) EXPECT_NEAR(small[i + 1] - small[i], 1.0 / 16, 1e-9) << i;
}

TEST(ForesightPlannerTest, APlanThatWasTooSlowIsNotRehearsedAgain) {
  Told told(by_share);
  ForesightTrials trials(told.rehearse, told.make(), told.traces[0]);
  const ForesightPlan slow{.cpu_share = 0, .knobs = {}, .start = {1}};
  ForesightPlan from_elsewhere = slow;
  from_elsewhere.start.clear();
  EXPECT_TRUE(trials.run(slow, {1, 1}, 0).complete) << "nothing is too slow where there is no best";
  EXPECT_FALSE(trials.run(slow, {1, 1}, 100'000).complete);
  EXPECT_EQ(trials.count(), 2U);
  EXPECT_FALSE(trials.run(slow, {1, 1}, 100'000).complete);
  EXPECT_EQ(trials.count(), 2U) << "known";
  EXPECT_GT(trials.events(), 200U) << "and yet a search that asks for nothing else comes to an end";
  trials.on(told.traces[0]);
  trials.run(slow, {1, 1}, 100'000);
  EXPECT_EQ(trials.count(), 3U) << "another trace may tell otherwise";
  EXPECT_FALSE(trials.run(from_elsewhere, {1, 1}, 100'000).complete);
  EXPECT_EQ(trials.count(), 3U) << "known of the same decisions, wherever tensors start";
}

TEST(ForesightPlannerTest, ARehearsalMayTakeEightTimesTheEventsOfTheFirst) {
  std::vector<std::uint64_t> allowed;
  Told told([&](const ForesightPlan&, const RehearsalLimits& limits) {
    allowed.push_back(limits.events);
    return takes(100, 50);
  });
  ForesightTrials trials(told.rehearse, told.make(), told.traces[0]);
  for (int i = 0; i < 3; ++i) trials.run({}, {4, 2}, 0);
  EXPECT_THAT(allowed, ElementsAre(1'000'000, 400, 400));
}

// Of ten iterations the first four were lucky.
TEST(ForesightPlannerTest, APlanThatDoesNotLastIsNotTaken) {
  Told told([](const ForesightPlan& plan, const RehearsalLimits& limits) {
    const bool lucky = *plan.cpu_share > 0.5 && limits.iterations < 10;
    return takes(*plan.cpu_share == 0.5 ? 100'000 : lucky ? 90'000 : 110'000);
  });
  EXPECT_EQ(*told.plan(0.5).cpu_share, 0.5);
  EXPECT_THAT(told.notes, testing::Contains(HasSubstr("which did not last")));
}

// A schedule that does not settle: after ten iterations the first plan is the better one.
TEST(ForesightPlannerTest, SmallGainsAreLookedAtForLonger) {
  const auto planned = [](Nanoseconds gain, std::uint64_t& longest) {
    Told told([gain, &longest](const ForesightPlan& plan, const RehearsalLimits& limits) {
      longest = std::max(longest, limits.iterations);
      if (*plan.cpu_share != 0.5) return takes(100'000 - gain);
      return takes(limits.iterations > 10 ? 97'000 : 100'000);
    });
    return *told.plan(0.5).cpu_share;
  };
  std::uint64_t longest = 0;
  EXPECT_EQ(planned(2'000, longest), 0.5);
  EXPECT_EQ(longest, 24U);
  EXPECT_NE(planned(4'000, longest), 0.5);
  longest = 0;
  EXPECT_NE(planned(6'000, longest), 0.5);
  EXPECT_EQ(longest, 10U) << "a twentieth is no chance";
}

// A plan may write no more than that to storage, whatever it gains.
TEST(ForesightPlannerTest, APlanMayNotWriteMuchMoreToStorage) {
  const auto written = [](Bytes first, Bytes more, Bytes persistent = 100) {
    Told told(
        [first, more](const ForesightPlan& plan, const RehearsalLimits&) {
          Rehearsal rehearsal = takes(*plan.cpu_share == 0.5 ? 100'000 : 50'000);
          rehearsal.stored = *plan.cpu_share == 0.5 ? first : more;
          return rehearsal;
        },
        persistent);
    return *told.plan(0.5).cpu_share;
  };
  EXPECT_NE(written(1'000, 1'100), 0.5);
  EXPECT_EQ(written(1'000, 1'101), 0.5);
  EXPECT_EQ(written(0, 1), 0.5);
  EXPECT_NE(written(0, 100, 1'000'000), 0.5) << "a ten-thousandth of what persists is nothing";
  EXPECT_EQ(written(0, 101, 1'000'000), 0.5);
}

// With 12,800 chunks or more that are written there are more parts, and the budget is larger in the same measure.
TEST(ForesightPlannerTest, LargeTracesArePlannedForLonger) {
  const auto notes_for = [](Bytes chunks, bool writes = true) {
    Trace trace;
    for (int i = 0; i < 8; ++i) {
      const TensorId tensor = trace.add_tensor("w" + std::to_string(i), chunks / 8 * KiB, Role::parameter, true);
      const std::vector<TensorId> written(writes ? 1 : 0, tensor);
      add_op(trace, 1'000'000, {tensor}, written);
    }
    const MadePolicy made = make_policy("foresight", {{"chunk", "1KiB"}, {"plan_events", "1000"}});
    prepare(trace, *made.policy, small_machine(chunks * KiB / 2), rehearse);
    std::vector<std::string> notes;
    made.policy->notes(notes);
    return notes;
  };
  EXPECT_THAT(notes_for(12'792), testing::Contains(HasSubstr(" of 1000 events")));
  EXPECT_THAT(notes_for(12'800), testing::Contains(HasSubstr(" of 4000 events")));
  EXPECT_THAT(notes_for(16'000), testing::Contains(HasSubstr(" of 5000 events")));
  EXPECT_THAT(notes_for(16'000, false), testing::Contains(HasSubstr(" of 1000 events"))) << "a generation";
}

// Launches take 20 ns, of the large one it is a fifth.
TEST(ForesightPlannerTest, UpdatesOfSmallTensorsAreMostlyLaunch) {
  Trace trace;
  const auto update = [&](Bytes bytes, Nanoseconds duration_ns) {
    const TensorId state = trace.add_tensor("state", bytes, Role::optimizer_state, true);
    trace.add_op(make_op(trace, "adamw", "m", Phase::optimizer, duration_ns), std::vector{state}, std::vector{state});
  };
  add_op(trace, 100, {}, {trace.add_tensor("a", 10, Role::activation, false)});
  update(10'000, 100);
  update(10, 20);
  update(10'000, 100);
  std::vector<Device> devices(4, Device::gpu);
  place_launches(trace, devices);
  EXPECT_THAT(devices, ElementsAre(Device::gpu, Device::gpu, Device::cpu, Device::gpu));
  EXPECT_EQ(gpu_time(trace, devices), 300);
}

// Of two gradients one is updated with on the CPU; its norm is taken there, not the norm of both.
TEST(ForesightPlannerTest, NormsFollowTheirUpdates) {
  Trace trace;
  std::vector<TensorId> gradients, norms;
  for (const char* name : {"a", "b"}) gradients.push_back(trace.add_tensor(name, 1'000, Role::gradient, false));
  const TensorId all = trace.add_tensor("norm", 4, Role::gradient, false);
  const auto add = [&](const std::vector<TensorId>& reads, const std::vector<TensorId>& writes) {
    Op op = make_op(trace, "op", "m", Phase::optimizer, 10);
    op.placeable = true;
    trace.add_op(op, reads, writes);
  };
  add_op(trace, 100, {}, gradients);
  for (const TensorId gradient : gradients) {
    norms.push_back(trace.add_tensor("n", 4, Role::gradient, false));
    add({gradient}, {norms.back()});
  }
  add(norms, {all});
  for (const TensorId gradient : gradients) {
    const TensorId state = trace.add_tensor("state", 4'000, Role::optimizer_state, true);
    add({gradient, state, all}, {state});
  }
  const Device gpu = Device::gpu, cpu = Device::cpu;
  std::vector<Device> devices = {gpu, gpu, gpu, gpu, gpu, cpu};
  place_norms(trace, devices);
  EXPECT_THAT(devices, ElementsAre(gpu, gpu, cpu, gpu, gpu, cpu));
}

// The run follows the plan in that where the GPU never waits and a rehearsal is faster with it, and only there.
TEST(ForesightPlannerTest, SmallUpdatesRunOnTheCpuWhereTheGpuNeverWaits) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 10, Role::gradient, false);
  const TensorId large = trace.add_tensor("large", 10'000, Role::optimizer_state, true),
                 other = trace.add_tensor("other", 10'000, Role::optimizer_state, true),
                 small = trace.add_tensor("small", 10, Role::optimizer_state, true);
  add_op(trace, 50'000, {trace.add_tensor("v", 20'000, Role::parameter, true)}, {});
  add_op(trace, 50'000, {trace.add_tensor("w", 20'000, Role::parameter, true)}, {gradient});
  for (const TensorId state : {small, large, other}) {
    trace.add_op(make_op(trace, "adamw", "m", Phase::optimizer, state == small ? 5'000 : 20'000),
                 std::vector{state, gradient}, std::vector{state});
  }
  const auto where = [&](Bytes gpu_bytes, const Rehearse& told = rehearse) {
    MachineSpec machine = small_machine(gpu_bytes);
    machine.tiers[1].capacity = 100'000;
    machine.cpu.adam_parameters_per_second = 1e9 * 20'020 / 28 / 60'000;  // 60 µs for a large one
    const MadePolicy made = make_policy("foresight");
    prepare(trace, *made.policy, machine, told);
    std::vector<Device> devices;
    for (const Op& op : lower(trace, *made.policy, machine).trace.ops) devices.push_back(op.device);
    return devices;
  };
  const Device gpu = Device::gpu, cpu = Device::cpu;
  EXPECT_THAT(where(100'000), ElementsAre(gpu, gpu, cpu, gpu, cpu)) << "all fits";
  EXPECT_THAT(where(21'000), ElementsAre(gpu, gpu, gpu, gpu, cpu)) << "the weights take turns, and the GPU waits";
  const auto slower = [cpu](const Program& program, const MachineSpec& machine, Policy& candidate,
                            const RehearsalLimits& limits) {
    Rehearsal told = rehearse(program, machine, candidate, limits);
    if (program.trace.ops[2].device == cpu) told.iteration_ns += 6'000;
    return told;
  };
  EXPECT_THAT(where(100'000, slower), ElementsAre(gpu, gpu, gpu, gpu, cpu))
      << "which costs more than the 5'000 ns saved";
}

// Updates that touch more than CPU memory holds, where storage reaches it only by way of the GPU.
TEST(ForesightPlannerTest, IsTightWhereUpdatesExceedMemoryThatStorageDoesNotReach) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 10, Role::gradient, false);
  const TensorId state = trace.add_tensor("state", 1'000, Role::optimizer_state, true);
  add_op(trace, 100, {}, {gradient});
  trace.add_op(make_op(trace, "adamw", "m", Phase::optimizer, 10), std::vector{state, gradient}, std::vector{state});
  MachineSpec machine = small_machine(1'000, true);  // its SSD is the GPU's
  EXPECT_FALSE(is_tight_for_updates(trace, machine));
  machine.tiers[1].capacity = 500;
  EXPECT_TRUE(is_tight_for_updates(trace, machine));
  machine.links.push_back(make_link("read to CPU", 2, 1));
  EXPECT_FALSE(is_tight_for_updates(trace, machine));
}

}  // namespace
}  // namespace tencache
