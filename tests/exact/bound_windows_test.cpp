// The best windows of the lower bound: against every cut there is, and how much work they take.
#include "studies/bound_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "studies/bound.h"
#include "tests/property/random_case.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

struct RandomNeed {
  std::vector<double> compute_ns = {}, movable_ns = {};
  std::vector<DemandChange> changes = {};
  double held = 0, bytes_per_second = 1;

  WindowNeed need() const {
    return {.compute_ns = compute_ns,
            .movable_ns = movable_ns,
            .changes = changes,
            .held = held,
            .bytes_per_second = bytes_per_second};
  }
  double bytes(std::size_t begin, std::size_t end) const {
    double sum = 0;
    for (const DemandChange& change : changes) {
      if (change.end > end || begin >= change.end) continue;
      if (change.later && begin >= change.begin) sum += change.bytes;
      if (!change.later && begin < change.begin) sum -= change.bytes;
    }
    return sum;
  }
  double ns(std::size_t begin, std::size_t end, double gpu_weight) const {
    const double compute = compute_ns.empty() ? 0 : compute_ns[end] - compute_ns[begin];
    return gpu_weight * (compute + (bytes(begin, end) - held) * 1e9 / bytes_per_second) + movable_ns[end] -
           movable_ns[begin];
  }
};

std::vector<double> rising(Random& random, std::size_t parts, std::uint64_t most) {
  std::vector<double> sums = {0};
  while (sums.size() <= parts) sums.push_back(sums.back() + static_cast<double>(random.below(most + 1)));
  return sums;
}

// The compute, and two needs for memory. Half of the changes are of tensors that are made and read again.
std::vector<RandomNeed> random_needs(Random& random, std::size_t parts) {
  std::vector<RandomNeed> needs = {{.compute_ns = rising(random, parts, 100), .movable_ns = rising(random, parts, 10)}};
  for (const double bytes_per_second : {1e9, 0.5e9}) {
    RandomNeed need{.movable_ns = rising(random, parts, 10),
                    .held = static_cast<double>(random.between(1, 600)),
                    .bytes_per_second = bytes_per_second};
    for (std::size_t i = 0; i < 2 * parts; ++i) {
      const auto end = static_cast<std::uint32_t>(random.between(1, parts));
      const auto begin = static_cast<std::uint32_t>(random.below(end));
      need.changes.push_back(
          {.end = end, .begin = begin, .later = random.one_in(2), .bytes = static_cast<double>(random.below(100))});
    }
    need.changes = in_order(std::move(need.changes));
    needs.push_back(std::move(need));
  }
  return needs;
}

BestWindows best_of(const std::vector<RandomNeed>& needs, double gpu_weight) {
  std::vector<WindowNeed> all;
  for (const RandomNeed& need : needs) all.push_back(need.need());
  return best_windows(all, gpu_weight);
}

TEST(BoundWindows, AreTheBestOfAllCuts) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::size_t parts = random.between(1, 30);
    const std::vector<RandomNeed> needs = random_needs(random, parts);
    const double gpu_weight = random.one_in(2) ? 1 : 0.7;
    std::vector<double> most(parts + 1, 0);
    for (std::size_t end = 1; end <= parts; ++end) {
      for (std::size_t begin = 0; begin < end; ++begin) {
        for (const RandomNeed& need : needs)
          most[end] = std::max(most[end], most[begin] + need.ns(begin, end, gpu_weight));
      }
    }
    const BestWindows best = best_of(needs, gpu_weight);
    EXPECT_NEAR(best.ns, most[parts], 1e-9 * most[parts]);
    double sum = 0;
    std::size_t at = 0;
    for (const NeededWindow& window : best.windows) {
      EXPECT_EQ(window.begin, at);
      const RandomNeed& need = needs[window.need];
      EXPECT_EQ(window.bytes, need.bytes(window.begin, window.end) - need.held);
      EXPECT_NEAR(window.ns, need.ns(window.begin, window.end, gpu_weight), 1e-9 * (1 + window.ns));
      sum += window.ns;
      at = window.end;
    }
    EXPECT_EQ(at, parts);
    EXPECT_NEAR(sum, best.ns, 1e-9 * best.ns);
  }
}

TEST(BoundWindows, TakeNoMoreThanAFewStepsAPartAndChange) {
  for (const std::size_t parts : {100, 1000, 10'000}) {
    Random random(parts);
    const std::vector<RandomNeed> needs = random_needs(random, parts);
    std::size_t changes = 0;
    for (const RandomNeed& need : needs) changes += need.changes.size();
    EXPECT_LE(best_of(needs, 1).steps, 4 * (3 * parts + changes)) << parts << " parts";
  }
}

// Layers whose updates follow each one's backward pass, so that the phase changes at nearly every op of it; the GPU
// holds a tenth of them. Eight times as many layers may take eight times as many steps, and a little more.
TEST(BoundWindows, TheWholeBoundGrowsWithTheOpsNotWithTheirSquare) {
  const auto steps = [](std::size_t layers) {
    Trace trace;
    std::vector<TensorId> weights, activations;
    for (std::size_t i = 0; i < layers; ++i) {
      const std::string name = std::to_string(i);
      weights.push_back(trace.add_tensor("w" + name, 100, Role::parameter, true));
      activations.push_back(trace.add_tensor("a" + name, 100, Role::activation, false));
      trace.add_op(make_op(trace, "f", name, Phase::forward, 10), std::vector{weights[i]}, std::vector{activations[i]});
    }
    for (std::size_t i = layers; i-- > 0;) {
      const std::string name = std::to_string(i);
      const TensorId gradient = trace.add_tensor("g" + name, 100, Role::gradient, false);
      trace.add_op(make_op(trace, "b", name, Phase::backward, 10), std::vector{weights[i], activations[i]},
                   std::vector{gradient});
      trace.add_op(make_op(trace, "u", name, Phase::optimizer, 10), std::vector{weights[i], gradient},
                   std::vector{weights[i]});
    }
    MachineSpec machine = small_machine(20 * layers);
    machine.cpu.adam_parameters_per_second = 1'000'000'000;
    const Bound bound = lower_bound_of(trace, machine);
    EXPECT_GT(bound.seconds, 1.2 * bound.compute_seconds);
    return static_cast<double>(bound.steps);
  };
  const double few = steps(25);
  EXPECT_GT(few, 1000);
  EXPECT_LE(steps(200), 12 * few);
}

}  // namespace
}  // namespace tencache
