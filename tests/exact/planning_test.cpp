// The pieces that planners share, each against numbers worked out by hand or an obvious loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "policies/moving_unit.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/best_period.h"
#include "policies/planning/candidates.h"
#include "policies/planning/cyclic_sums.h"
#include "policies/planning/first_covering.h"
#include "policies/planning/index_set.h"
#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"
#include "policies/planning/range_peaks.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> memory_of(const MemoryProfile& memory, KernelIndex kernels) {
  std::vector<std::int64_t> list;
  for (KernelIndex kernel = 0; kernel < kernels; ++kernel) list.push_back(memory.at(kernel));
  return list;
}

// Ops 0, 2, 3, 4 are kernels 0 to 3; op 1 runs on the CPU.
//   w, persistent, is used by kernels 0 and 2; a by 0 and 3; s, persistent, by the CPU alone.
struct Small {
  Trace trace;
  TensorId w, a, s;
  Small() {
    w = trace.add_tensor("w", 100, Role::parameter, true);
    a = trace.add_tensor("a", 30, Role::activation, false);
    s = trace.add_tensor("s", 500, Role::optimizer_state, true);
    add_op(trace, 10, {w}, {a});
    add_op(trace, 1000, {s, w}, {s}, Device::cpu);
    add_op(trace, 20, {}, {}, Device::gpu, 5);
    add_op(trace, 30, {w}, {});
    add_op(trace, 40, {a}, {});
  }
};

// Bounds on both sides of a full word, and of a full word of words.
TEST(PlanningTest, IndexSetFindsNeighbours) {
  std::mt19937 draws(7);
  for (const std::size_t bound : {0U, 1U, 63U, 64U, 65U, 300U, 4095U, 4096U, 70'000U}) {
    IndexSet set(bound);
    std::set<std::size_t> same;
    for (int step = 0; step < 600; ++step) {
      const std::size_t index = draws() % (bound + 1);
      const auto after = same.lower_bound(index);
      EXPECT_EQ(set.at_or_after(index), after == same.end() ? std::nullopt : std::optional(*after)) << bound;
      EXPECT_EQ(set.before(index), after == same.begin() ? std::nullopt : std::optional(*std::prev(after))) << bound;
      EXPECT_EQ(set.empty(), same.empty());
      if (index == bound) continue;
      const bool keep = draws() % 3 != 0;
      keep ? set.insert(index) : set.erase(index);
      keep ? void(same.insert(index)) : void(same.erase(index));
    }
  }
}

TEST(PlanningTest, RangePeaksGoRoundTheIteration) {
  std::mt19937 draws(7);
  for (const std::size_t count : {1U, 2U, 3U, 8U, 13U}) {
    std::vector<std::int64_t> same;
    for (std::size_t i = 0; i < count; ++i) same.push_back(static_cast<std::int64_t>(draws() % 100) - 50);
    RangePeaks peaks(same);
    for (int step = 0; step < 200; ++step) {
      const auto from = static_cast<KernelIndex>(draws() % (2 * count));
      const auto to = from + 1 + static_cast<KernelIndex>(draws() % count);
      const std::int64_t change = static_cast<std::int64_t>(draws() % 21) - 10;
      std::int64_t most = std::numeric_limits<std::int64_t>::min();
      for (KernelIndex k = from; k < to; ++k) most = std::max(most, same[static_cast<std::size_t>(k) % count]);
      EXPECT_EQ(peaks.most(from, to), most) << count;
      peaks.add(from, to, change);
      for (KernelIndex k = from; k < to; ++k) same[static_cast<std::size_t>(k) % count] += change;
    }
  }
}

TEST(PlanningTest, KernelsAreTheOpsOfTheGpu) {
  const Small small;
  const Schedule schedule(small.trace);
  const Kernels kernels(small.trace, schedule);
  EXPECT_THAT(kernels.ops, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(kernels.durations_ns, ElementsAre(10, 25, 30, 40));
  EXPECT_THAT(kernels.uses_of(small.w), ElementsAre(0, 2));
  EXPECT_TRUE(kernels.uses_of(small.s).empty());
  EXPECT_EQ(kernels.start_of(6), 105 + 35);
  EXPECT_EQ(kernels.between(3, 5), 50);
  EXPECT_EQ(kernels.at_time(0), 0);
  EXPECT_EQ(kernels.at_time(34), 1);
  EXPECT_EQ(kernels.at_time(35), 2);
  EXPECT_EQ(kernels.at_time(105 + 35), 6);
}

// w: kernel 1, and from 3 over the end to 0 of the next iteration. a: kernels 1 and 2; dead after 3.
TEST(PlanningTest, PeriodsLieBetweenUses) {
  const Small small;
  const Schedule schedule(small.trace);
  const Kernels kernels(small.trace, schedule);
  const std::vector<InactivePeriod> periods = inactive_periods(kernels, small.trace);
  ASSERT_EQ(periods.size(), 3U);
  const auto expect = [&](std::size_t i, TensorId tensor, KernelIndex begin, KernelIndex end, Nanoseconds length_ns) {
    EXPECT_EQ(periods[i].tensor, tensor);
    EXPECT_EQ(periods[i].begin, begin);
    EXPECT_EQ(periods[i].end, end);
    EXPECT_EQ(periods[i].length_ns, length_ns);
    EXPECT_EQ(periods[i].bytes, small.trace.tensors[tensor].bytes);
  };
  expect(0, small.w, 1, 2, 25);
  expect(1, small.w, 3, 4, 40);
  expect(2, small.a, 1, 3, 55);
}

TEST(PlanningTest, MemoryIsWhatIsAlive) {
  const Small small;
  const Schedule schedule(small.trace);
  const Kernels kernels(small.trace, schedule);
  MemoryProfile memory(kernels, small.trace, 129);
  EXPECT_THAT(memory_of(memory, 4), ElementsAre(130, 130, 130, 130));
  EXPECT_EQ(memory.time_over(0, 4), 105);
  EXPECT_EQ(memory.time_over(3, 5), 50);
  memory.add(3, 5, -100);  // kernels 3 and 0
  EXPECT_THAT(memory_of(memory, 4), ElementsAre(30, 130, 130, 30));
  EXPECT_EQ(memory.time_over(0, 4), 55);
  EXPECT_FALSE(memory.fits());
  memory.add(1, 3, -1);
  EXPECT_TRUE(memory.fits());
}

TEST(PlanningTest, IntermediatesMayBeAllocatedAhead) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 7, Role::activation, false);
  const TensorId b = trace.add_tensor("b", 9, Role::activation, false);
  add_op(trace, 10, {}, {a});
  add_op(trace, 10, {}, {});
  add_op(trace, 10, {}, {b});
  const Schedule schedule(trace);
  const Kernels kernels(trace, schedule);
  EXPECT_THAT(memory_of(MemoryProfile(kernels, trace, 0), 3), ElementsAre(7, 0, 9));
  EXPECT_THAT(memory_of(MemoryProfile(kernels, trace, 0, 1), 3), ElementsAre(7, 9, 9));
}

// Against a list of numbers, with ranges over the iteration's end, and more taken than there is.
TEST(PlanningTest, MemoryChangesByRanges) {
  std::mt19937 random(11);
  for (const std::size_t count : {1U, 2U, 5U, 8U, 33U}) {
    Trace trace;
    for (std::size_t op = 0; op < count; ++op) add_op(trace, static_cast<Nanoseconds>(random() % 4), {}, {});
    const Schedule schedule(trace);
    const Kernels kernels(trace, schedule);
    constexpr std::int64_t limit = 10;
    MemoryProfile memory(kernels, limit);
    std::vector<std::int64_t> bytes(count, 0);
    for (int step = 0; step < 200; ++step) {
      const std::size_t from = random() % count, length = random() % (count + 1), asked = random() % count;
      const std::int64_t change = static_cast<std::int64_t>(random() % 21) - 10, most = 1 + random() % 6;
      memory.add(static_cast<KernelIndex>(from), static_cast<KernelIndex>(from + length), change);
      for (std::size_t k = from; k < from + length; ++k) bytes[k % count] += change;
      Nanoseconds over_ns = 0;
      std::int64_t excess = 0, greatest = bytes[asked];
      for (std::size_t k = asked; k < asked + count; ++k) {
        const Nanoseconds duration_ns = kernels.durations_ns[k % count];
        if (bytes[k % count] > limit) over_ns += duration_ns;
        excess += std::clamp<std::int64_t>(bytes[k % count] - limit, 0, most) * duration_ns;
        greatest = std::max(greatest, bytes[k % count]);
        const KernelIndex from_k = static_cast<KernelIndex>(asked), to_k = static_cast<KernelIndex>(k + 1);
        ASSERT_EQ(memory.at(static_cast<KernelIndex>(k)), bytes[k % count]);
        ASSERT_EQ(memory.time_over(from_k, to_k), over_ns);
        ASSERT_EQ(memory.most(from_k, to_k), greatest);
        ASSERT_TRUE(memory.excess(from_k, to_k, static_cast<Bytes>(most)) == excess);
      }
      ASSERT_EQ(memory.fits(), over_ns == 0);
      ASSERT_EQ(memory.peak(), std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
    }
  }
}

TEST(PlanningTest, MemoryIsTakenInMultiplesOfTheGranularity) {
  const Small small;
  const Schedule schedule(small.trace);
  const Kernels kernels(small.trace, schedule);
  EXPECT_THAT(memory_of(MemoryProfile(kernels, small.trace, 0, 0, 64), 4), ElementsAre(192, 192, 192, 192));
}

// Against a list that is searched for its greatest.
TEST(PlanningTest, CandidatesComeGreatestFirst) {
  std::mt19937 random(3);
  for (const std::size_t count : {0U, 1U, 2U, 6U, 50U}) {
    std::vector<int> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back(static_cast<int>(1000 * (random() % 20) + i));
    Candidates<int> candidates(list);
    while (!list.empty()) {
      const auto greatest = std::max_element(list.begin(), list.end());
      ASSERT_EQ(candidates.top(), *greatest);
      if (const int lower = *greatest - 3000; lower > 0 && random() % 3 > 0) {
        *greatest = lower;
        ASSERT_EQ(candidates.lower_top(lower), *std::max_element(list.begin(), list.end()) == lower);
      } else {
        list.erase(greatest);
        candidates.pop();
      }
    }
    ASSERT_TRUE(candidates.empty());
  }
}

TEST(PlanningTest, WholeTensorsMoveInStagingBuffersWhereAPathIsStaged) {
  MachineSpec machine = small_machine(100, true);
  EXPECT_EQ(unit_that_moves(machine, 0), 0U);
  machine.links[2].to = machine.links[3].from = 1;  // NVMe by way of CPU memory
  machine.staging = {.tier = 1, .count = 4, .bytes = 10};
  EXPECT_EQ(unit_that_moves(machine, 0), 10U);
  EXPECT_EQ(unit_that_moves(machine, 7), 7U);
}

TEST(PlanningTest, WholeTensorsStayWholeAsLongAsTheyCan) {
  MachineSpec machine = small_machine(100, true);
  machine.links[2].to = machine.links[3].from = 1;
  machine.staging = {.tier = 1, .count = 4, .bytes = 10};
  machine.tiers[1].capacity = 80;
  Program program;
  program.trace.add_tensor("small", 30, Role::parameter, true);
  program.trace.add_tensor("large", 50, Role::parameter, true);
  program.trace.add_tensor("born", 500, Role::activation, false);
  EXPECT_EQ(unit_of_whole_tensors(machine, &program, 0), 0U);  // what is persistent has room in CPU memory
  machine.tiers[1].capacity = 79;
  EXPECT_EQ(unit_of_whole_tensors(machine, &program, 0), 40U);  // 30 whole, 50 in two parts
  EXPECT_EQ(unit_of_whole_tensors(machine, &program, 7), 7U);
  EXPECT_EQ(unit_of_whole_tensors(machine, nullptr, 0), 0U);
  machine.links[2].to = machine.links[3].from = 0;
  EXPECT_EQ(unit_of_whole_tensors(machine, &program, 0), 0U);  // no path is staged
}

TEST(PlanningTest, SumsOverACycle) {
  std::mt19937 random(7);
  for (const std::size_t size : {1U, 2U, 5U, 8U, 37U}) {
    std::vector<std::int64_t> values(size);
    for (std::int64_t& value : values) value = static_cast<std::int64_t>(random() % 4);
    CyclicSums sums(values);
    const KernelIndex count = static_cast<KernelIndex>(size);
    for (int step = 0; step < 300; ++step) {
      const std::size_t changed = random() % size;
      values[changed] = static_cast<std::int64_t>(random() % 4);
      sums.set(static_cast<KernelIndex>(changed), values[changed]);
      const auto sum = [&](KernelIndex from, KernelIndex to) {
        std::int64_t total = 0;
        for (KernelIndex k = from; k < to; ++k) total += values[static_cast<std::size_t>(k % count)];
        return total;
      };
      const KernelIndex from = static_cast<KernelIndex>(random() % size);
      const KernelIndex to = from + static_cast<KernelIndex>(random() % (size + 1));
      ASSERT_EQ(sums.between(from, to), sum(from, to));
      ASSERT_EQ(sums.total(), sum(0, count));
      const std::int64_t amount = 1 + static_cast<std::int64_t>(random() % 9);
      KernelIndex forward = -1, backward = -1;
      if (sums.total() > 0) {
        for (forward = from; sum(from, forward) < amount;) ++forward;
        for (backward = to; backward >= 0 && sum(backward, to) < amount;) --backward;
      }
      ASSERT_EQ(sums.forward(from, amount), forward);
      ASSERT_EQ(sums.backward(to, amount), backward);
    }
  }
}

// Kernels of 100 ns. The CPU's link moves 1 byte/ns and the SSD's 0.5, both through a resource of 1.2 bytes/ns.
TEST(PlanningTest, PathsShareWhatTheirLinksShare) {
  Trace trace;
  for (int i = 0; i < 3; ++i) add_op(trace, 100, {}, {});
  const Schedule schedule(trace);
  const Kernels kernels(trace, schedule);
  MachineSpec machine = small_machine(100, true);
  machine.resources = {{"pcie", 1'200'000'000}};
  machine.links[1].uses = machine.links[3].uses = {0};
  machine.links[3].bandwidth = byte_per_ns / 2;
  machine.links[3].latency_ns = 7;
  BandwidthPlan plan(kernels, machine);
  EXPECT_TRUE(plan.exists(0, 2));
  EXPECT_FALSE(plan.exists(1, 2)) << "no link, no staging";
  EXPECT_EQ(plan.trip_ns(0, 2, 30), 67);
  const auto left = [&](TierId to) {
    return std::vector{plan.left(0, to).at(0), plan.left(0, to).at(1), plan.left(0, to).at(2)};
  };
  EXPECT_THAT(left(1), ElementsAre(100, 100, 100));
  EXPECT_THAT(left(2), ElementsAre(50, 50, 50));
  plan.take_earliest(0, 2, 0, 3, 70);  // 50 and 20: the resource has 70 and 100 left
  EXPECT_THAT(left(1), ElementsAre(70, 100, 100));
  EXPECT_THAT(left(2), ElementsAre(0, 30, 50));
  plan.take_earliest(0, 1, 2, 3, 100);
  EXPECT_THAT(left(1), ElementsAre(70, 100, 0));
  EXPECT_THAT(left(2), ElementsAre(0, 30, 20));
}

// Kernels of 2 s, in which a link without a limit would move 2^63 bytes: each has its part of 2^61.
TEST(PlanningTest, LinksWithoutALimit) {
  Trace trace;
  for (int i = 0; i < 4; ++i) add_op(trace, 2 * second_ns, {}, {});
  const Schedule schedule(trace);
  const Kernels kernels(trace, schedule);
  MachineSpec machine = small_machine(100);
  for (Link& link : machine.links) link.bandwidth = unlimited;
  const BandwidthPlan plan(kernels, machine);
  const CyclicSums& left = plan.left(0, 1);
  constexpr std::int64_t each = std::int64_t{1} << 59;
  EXPECT_EQ(left.total(), 4 * each);
  EXPECT_EQ(left.between(2, 5), 3 * each);
  EXPECT_EQ(left.between(5, 2), -3 * each);
  EXPECT_EQ(left.between(0, 400), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(left.forward(399, 1), 400);
  EXPECT_EQ(left.forward(0, 1), 1);
  EXPECT_EQ(left.backward(400, 1), 399);
  EXPECT_EQ(left.backward(4, each + 1), 2);
  EXPECT_EQ(plan.trip_ns(0, 1, GiB), 0);
}

// Without a direct link the path goes through staging: both links are taken.
TEST(PlanningTest, StagedPathsTakeBothLinks) {
  Trace trace;
  add_op(trace, 100, {}, {});
  const Schedule schedule(trace);
  const Kernels kernels(trace, schedule);
  MachineSpec machine = small_machine(100);
  machine.tiers.push_back({"nvme", TierKind::nvme, 1'000'000, 1, {}});
  machine.links.push_back({"write", 1, 2, byte_per_ns / 4, 3, {}});
  machine.staging = {1, 4, 10};
  BandwidthPlan plan(kernels, machine);
  ASSERT_TRUE(plan.exists(0, 2));
  EXPECT_FALSE(plan.exists(2, 0));
  EXPECT_EQ(plan.bandwidth(0, 2), byte_per_ns / 4);
  EXPECT_EQ(plan.trip_ns(0, 2, 10), 43);
  plan.take_earliest(0, 2, 0, 1, 20);
  EXPECT_EQ(plan.left(0, 2).at(0), 5);
  EXPECT_EQ(plan.left(0, 1).at(0), 80);
  EXPECT_EQ(plan.left(1, 2).at(0), 5);
}

// Against a loop over all items, with ranges that wrap, become narrower, and go.
TEST(PlanningTest, FirstCoveringFindsTheFirstThatCovers) {
  std::mt19937 draws(3);
  const auto below = [&draws](KernelIndex bound) { return static_cast<KernelIndex>(draws()) % bound; };
  for (const KernelIndex kernels : {1, 2, 7, 64, 100}) {
    FirstCovering covering(kernels);
    std::vector<std::pair<KernelIndex, KernelIndex>> ranges;
    for (int item = 0; item < 60; ++item) {
      const KernelIndex from = below(kernels), to = from + 1 + below(kernels);
      ranges.emplace_back(from, to);
      covering.put(from, to);
    }
    std::set<std::size_t> taken;
    KernelIndex kernel = 0;
    for (int step = 0; step < 2000; ++step) {
      if (taken.empty()) kernel = below(kernels);
      std::optional<FirstCovering::Item> expected;
      for (std::size_t item = ranges.size(); item-- > 0;) {
        const auto& [from, to] = ranges[item];
        const bool covers = (from <= kernel && kernel < to) || (from <= kernel + kernels && kernel + kernels < to);
        if (covers && !taken.contains(item)) expected = static_cast<FirstCovering::Item>(item);
      }
      const auto item = covering.take(kernel);
      ASSERT_EQ(item, expected) << kernel << " of " << kernels;
      if (item) taken.insert(*item);
      if (item && step % 3 == 0) {
        auto& [from, to] = ranges[*item];
        from += below(to - from);
        to -= below(to - from);
        if (step % 30 == 0) from = to = 0;
        covering.narrow(*item, from, to);
        covering.end_round();
        taken.clear();
      } else if (step % 5 == 0) {
        covering.end_round();
        taken.clear();
      }
    }
  }
}

TEST(PlanningTest, MemoryProfileFindsTheLastKernelAbove) {
  std::mt19937 draws(5);
  Trace trace;
  constexpr KernelIndex count = 13;
  for (KernelIndex kernel = 0; kernel < count; ++kernel) add_op(trace, 1, {}, {});
  const Schedule schedule(trace);
  const Kernels kernels(trace, schedule);
  MemoryProfile memory(kernels, 20);
  for (int step = 0; step < 2000; ++step) {
    const KernelIndex from = static_cast<KernelIndex>(draws() % count),
                      to = from + static_cast<KernelIndex>(draws() % (count + 1));
    memory.add(from, to, static_cast<std::int64_t>(draws() % 21) - 10);
    const std::int64_t bytes = static_cast<std::int64_t>(draws() % 60) - 30;
    KernelIndex expected = to - 1;
    while (expected >= from && memory.at(expected) <= bytes) --expected;
    ASSERT_EQ(memory.last_above(from, to, bytes), expected);
  }
}

// Against a look at all, while memory and what periods have of it are taken. Sizes, lengths and places are few, so that
// many are equal.
TEST(PlanningTest, BestPeriodIsTheBestOfAll) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const std::size_t count = 3 + random() % 40;
    const auto kernel = [](std::size_t index) { return static_cast<KernelIndex>(index); };
    Trace trace;
    for (std::size_t op = 0; op < count; ++op) add_op(trace, static_cast<Nanoseconds>(random() % 4), {}, {});
    const Schedule schedule(trace);
    const Kernels kernels(trace, schedule);
    MemoryProfile counted(kernels, 30), needed(kernels, 25);
    for (std::size_t k = 0; k < count; ++k) {
      const std::int64_t bytes = static_cast<std::int64_t>(random() % 60);
      for (MemoryProfile* memory : {&counted, &needed}) memory->add(kernel(k), kernel(k) + 1, bytes);
    }
    std::vector<InactivePeriod> periods;
    for (std::size_t i = 0; i < 3 * count; ++i) {
      const KernelIndex begin = kernel(random() % count), end = begin + 1 + kernel(random() % count);
      periods.push_back({0, 1 + random() % 4, begin, end, kernels.between(begin, end)});
    }
    KernelIndex late = 0, early = 0;  // what is taken of each at its ends, where it does not run over the iteration's
    const auto away = [&](const InactivePeriod& period) -> BestPeriod::Range {
      if (period.end > kernel(count)) return {period.begin, period.end};
      const KernelIndex size = static_cast<KernelIndex>(period.bytes / 2);
      return {std::max(period.begin, late) + size, std::min(period.end, kernel(count) - early) - size};
    };
    BestPeriod best(periods, kernel(count), counted, needed, away);
    std::vector<bool> left(periods.size(), true);
    for (std::size_t step = 0; step <= periods.size(); ++step) {
      std::optional<std::size_t> expected;
      std::pair<Nanoseconds, Nanoseconds> greatest{-1, -1};
      for (std::size_t i = 0; i < periods.size(); ++i) {
        const BestPeriod::Range range = away(periods[i]);
        if (!left[i] || range.empty() || needed.time_over(range.from, range.to) == 0) continue;
        const auto bytes = static_cast<Nanoseconds>(periods[i].bytes);
        const std::pair worth(bytes * counted.time_over(range.from, range.to), bytes * periods[i].length_ns);
        if (worth <= greatest) continue;
        greatest = worth;
        expected = i;
      }
      ASSERT_EQ(best.take(), expected);
      if (!expected) break;
      left[*expected] = false;
      const BestPeriod::Range range = away(periods[*expected]);
      for (MemoryProfile* memory : {&counted, &needed}) {
        memory->add(range.from, range.to, -static_cast<std::int64_t>(periods[*expected].bytes));
      }
      if (random() % 4 == 0) ++(random() % 2 == 0 ? late : early);
    }
  }
}

}  // namespace
}  // namespace tencache
