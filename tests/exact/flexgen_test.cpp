// flexgen: its cost model and linear program against FlexGen's own figures, its homes and schedule on small blocks, which
// follow from the rules at the head of its file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/block_slots.h"
#include "policies/flexgen/cost_model.h"
#include "policies/planning/linear_program.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_block.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// ---- The linear program ---------------------------------------------------------------------------------------------

// Dantzig's example: 3x + 5y at most, x <= 4, 2y <= 12, 3x + 2y <= 18, is 36 at (2, 6).
TEST(LinearProgram, FindsTheBestCorner) {
  const auto x = solve({.cost = {-3, -5}, .rows = {{1, 0}, {0, 2}, {3, 2}}, .limits = {4, 12, 18}});
  ASSERT_TRUE(x);
  EXPECT_THAT(*x, ElementsAre(DoubleNear(2, 1e-9), DoubleNear(6, 1e-9)));
}

// x + y >= 2 excludes the origin; the least of 2x + y is 2 at (0, 2).
TEST(LinearProgram, StartsFromWhereItMay) {
  const auto x = solve({.cost = {2, 1}, .rows = {{-1, -1}, {1, 0}, {0, 1}}, .limits = {-2, 5, 5}});
  ASSERT_TRUE(x);
  EXPECT_THAT(*x, ElementsAre(DoubleNear(0, 1e-9), DoubleNear(2, 1e-9)));
}

TEST(LinearProgram, SaysWhereThereIsNone) {
  EXPECT_FALSE(solve({.cost = {1}, .rows = {{-1}, {1}}, .limits = {-2, 1}}));  // 2 <= x <= 1
  EXPECT_FALSE(solve({.cost = {-1}, .rows = {{-1}}, .limits = {0}}));          // no end
}

// Against all corners of small programs.
TEST(LinearProgram, EqualsTheBestOfAllCorners) {
  std::mt19937 random(7);
  const auto number = [&](int below) { return static_cast<double>(random() % static_cast<unsigned>(below)); };
  int solved = 0;
  for (int i = 0; i < 300; ++i) {
    LinearProgram program;
    program.cost = {number(9) - 4, number(9) - 4};
    for (int row = 0; row < 4; ++row) {
      program.rows.push_back({number(9) - 3, number(9) - 3});
      program.limits.push_back(number(12) - 2);
    }
    program.rows.push_back({1, 1});  // bounded
    program.limits.push_back(20);
    // Corners: where two of all rows and axes meet.
    std::vector<std::vector<double>> lines = program.rows;
    std::vector<double> limits = program.limits;
    lines.insert(lines.end(), {{1, 0}, {0, 1}});
    limits.insert(limits.end(), {0, 0});
    double best = 1e9;
    for (std::size_t a = 0; a < lines.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const double det = lines[a][0] * lines[b][1] - lines[a][1] * lines[b][0];
        if (std::abs(det) < 1e-9) continue;
        const double x = (limits[a] * lines[b][1] - lines[a][1] * limits[b]) / det;
        const double y = (lines[a][0] * limits[b] - limits[a] * lines[b][0]) / det;
        bool holds = x > -1e-9 && y > -1e-9;
        for (std::size_t row = 0; row < program.rows.size(); ++row) {
          holds &= program.rows[row][0] * x + program.rows[row][1] * y <= program.limits[row] + 1e-9;
        }
        if (holds) best = std::min(best, program.cost[0] * x + program.cost[1] * y);
      }
    }
    const auto found = solve(program);
    ASSERT_EQ(found.has_value(), best < 1e8) << i;
    if (!found) continue;
    ++solved;
    EXPECT_NEAR(program.cost[0] * (*found)[0] + program.cost[1] * (*found)[1], best, 1e-6) << i;
  }
  EXPECT_GT(solved, 100);
}

// ---- The cost model -------------------------------------------------------------------------------------------------

const FlexgenModel opt_30b{
    .layers = 48, .hidden = 7168, .feed_forward = 28672, .heads = 56, .prompt = 512, .new_tokens = 32};
const FlexgenModel opt_175b{
    .layers = 96, .hidden = 12288, .feed_forward = 49152, .heads = 96, .prompt = 512, .new_tokens = 32};

double tokens_per_second(const FlexgenModel& model, const FlexgenBlock& block, const FlexgenShares& shares) {
  return block.requests() * model.new_tokens / flexgen_seconds(model, {}, block, shares);
}

// With the constants that FlexGen ships, at its published policies.
TEST(FlexgenCostModel, IsFlexgensToTheDigit) {
  const FlexgenShares published{.weights_gpu = 0.2, .weights_cpu = 0.8};
  EXPECT_NEAR(tokens_per_second(opt_30b, {48, 3}, published), 7.14, 0.005);
  FlexgenModel shorter = opt_30b;
  shorter.prompt = 256;
  EXPECT_NEAR(tokens_per_second(shorter, {160, 2}, {.weights_gpu = 0.1, .weights_cpu = 0.9}), 12.97, 0.005);
  const FlexgenShares storage{.weights_gpu = 0, .weights_cpu = 0.5, .cache_gpu = 0, .cache_cpu = 0};
  EXPECT_NEAR(tokens_per_second(opt_175b, {32, 8}, storage), 0.154, 0.0005);
  EXPECT_NEAR(flexgen_memory(opt_30b, {48, 3}, published).gpu / FlexgenRates::gib, 18.8, 0.05);
}

// Never slower than a policy that fits, and within the memory that it was given.
TEST(FlexgenCostModel, TheProgramIsNotWorseThanThePublishedPolicy) {
  const FlexgenMemory memory{.gpu = 20.2e9, .cpu = 0.8 * 208e9, .storage = 0.8 * 1.5e12};
  const FlexgenBlock block{48, 3};
  const FlexgenShares published{.weights_gpu = 0.2, .weights_cpu = 0.8};
  const auto found = solve_flexgen(opt_30b, {}, block, memory);
  ASSERT_TRUE(found);
  EXPECT_LE(flexgen_seconds(opt_30b, {}, block, *found), flexgen_seconds(opt_30b, {}, block, published) * 1.000001);
  const FlexgenMemory used = flexgen_memory(opt_30b, block, *found);
  EXPECT_LE(used.gpu, memory.gpu * 1.000001);
  EXPECT_LE(used.cpu, memory.cpu * 1.000001);
  EXPECT_LE(used.storage, memory.storage * 1.000001);
  EXPECT_FALSE(solve_flexgen(opt_30b, {}, {48, 300}, memory));
}

// ---- Slots and homes ------------------------------------------------------------------------------------------------

TEST(BlockSlots, AreMicroBatchesInLayers) {
  const SmallBlock block(2, 3);
  const BlockSlots slots(block.trace, Schedule(block.trace));
  ASSERT_EQ(slots.slots.size(), 2u * 2 * 3);  // steps, layers, micro-batches
  ASSERT_EQ(slots.layers.size(), 2u);
  EXPECT_EQ(slots.layers[1].weights.size(), 6u);
  EXPECT_EQ(slots.layers[1].attention_end, 4u);
  EXPECT_EQ(slots.slots[4].layer, 1u);
  EXPECT_EQ(slots.slots[4].micro_batch, 1u);
  EXPECT_FALSE(slots.slots[4].ends_run);
  EXPECT_TRUE(slots.slots[5].ends_run);
  EXPECT_EQ(slots.slots[4].hidden_read.size(), 1u);  // of the layer before
  EXPECT_TRUE(slots.slots[4].cache_read.empty());    // its own
  EXPECT_EQ(slots.slots[10].cache_read.size(), 1u);  // of the prompt
  EXPECT_EQ(slots.slots[10].cache_written.size(), 1u);
}

RunResult run(const Settings& settings, const MachineSpec& machine, const Trace& trace) {
  const MadePolicy made = make_policy("flexgen", settings);
  return simulate(lower(trace, *made.policy, machine), machine, *made.policy,
                  {.max_iterations = 4, .until_steady = false});
}

// The last quarter of the attention's part, d, is the first to be the GPU's; of the rest, g from 25 % on.
TEST(Flexgen, PercentagesAreStepFunctions) {
  const SmallBlock block(3, 1);
  const auto moved = [&](const char* gpu, const char* cpu) {
    const RunResult result = run({{"weights_gpu", gpu},
                                  {"weights_cpu", cpu},
                                  {"cache_gpu", "100"},
                                  {"cache_cpu", "0"},
                                  {"hidden_gpu", "100"},
                                  {"hidden_cpu", "0"}},
                                 small_machine(10'000), block.trace);
    EXPECT_TRUE(result.fits) << result.misfit;
    return result.window.links[0].bytes / result.period;
  };
  const Bytes layer = 800, passes = 3 * 2;
  EXPECT_EQ(moved("0", "100"), passes * layer);
  EXPECT_EQ(moved("12", "88"), passes * layer);
  EXPECT_EQ(moved("13", "87"), passes * (layer - 100));
  EXPECT_EQ(moved("24", "76"), passes * (layer - 100));
  EXPECT_EQ(moved("26", "74"), passes * (layer - 300));
  EXPECT_EQ(moved("100", "0"), 0u);
}

// Weights of 800 bytes take 800 ns on the link; a slot's five kernels take 50. With three micro-batches the copy of the
// next layer is asked for in the first slot, which waits for it: 800 + 2 × 50 a layer. Without a barrier its copy goes
// on beside all three, and the link never rests.
TEST(Flexgen, SlotsWaitForTheNextWeights) {
  const SmallBlock block(4, 3);
  Settings settings{{"cache_gpu", "100"}, {"cache_cpu", "0"}, {"hidden_gpu", "100"}, {"hidden_cpu", "0"}};
  EXPECT_EQ(run(settings, small_machine(10'000), block.trace).iteration_ns.back(), 4 * 2 * (800 + 2 * 50));
  settings["barrier"] = "none";
  EXPECT_EQ(run(settings, small_machine(10'000), block.trace).iteration_ns.back(), 4 * 2 * 800);
}

// With attention on the CPU the next weights are asked for after it, unless they overlap. The slot: q 10, its copy down
// 4, kv and attention on the CPU 20 (beside the copy down of nothing else), context up 4, out and ff 20, in the first
// slot of a step with the CPU; the weights' 800 ns begin after the attention, or with the slot.
TEST(Flexgen, WeightsWaitForAttentionOnTheCpu) {
  const SmallBlock block(4, 1, Device::cpu);
  Settings settings{{"cache_cpu", "100"}, {"hidden_gpu", "100"}, {"hidden_cpu", "0"}};
  const MachineSpec machine = small_machine(10'000);
  const Nanoseconds serial = run(settings, machine, block.trace).iteration_ns.back();
  settings["cpu_attention"] = "overlapped";
  const Nanoseconds overlapped = run(settings, machine, block.trace).iteration_ns.back();
  EXPECT_EQ(serial - overlapped, 4 * (10 + 4 + 20));  // a slot with attention on the CPU each
}

TEST(Flexgen, CachesGoHome) {
  const SmallBlock block(2, 2);
  const MachineSpec machine = small_machine(10'000, true);
  const RunResult kept = run({{"cache_gpu", "100"}, {"cache_cpu", "0"}}, machine, block.trace);
  const RunResult down = run({{"cache_gpu", "0"}, {"cache_cpu", "100"}}, machine, block.trace);
  const RunResult stored = run({{"cache_gpu", "0"}, {"cache_cpu", "0"}}, machine, block.trace);
  // Each of the 4 caches: 50 bytes of the prompt go down and come back for the step, whose own 5 nobody reads again.
  EXPECT_EQ(down.window.links[1].bytes - kept.window.links[1].bytes, down.period * 4u * 50);
  EXPECT_EQ(down.window.links[0].bytes - kept.window.links[0].bytes, down.period * 4u * 50);
  EXPECT_EQ(stored.window.links[3].bytes, stored.period * 4u * 50);
  EXPECT_EQ(stored.window.links[2].bytes, stored.period * 4u * 50);
}

TEST(Flexgen, RefusesPercentagesAbove100) {
  const auto made = [](const Settings& settings) { return [settings] { make_policy("flexgen", settings); }; };
  EXPECT_THAT(made({{"weights_gpu", "60"}, {"weights_cpu", "50"}}),
              ThrowsMessage<Error>(HasSubstr("more than 100 together")));
  EXPECT_THAT(made({{"hidden_gpu", "0"}, {"hidden_cpu", "50"}}), ThrowsMessage<Error>(HasSubstr("hidden")));
  EXPECT_THAT(
      [] {
        run({{"attention", "cpu"}}, small_machine(10'000), SmallBlock(1, 1).trace);
      },
      ThrowsMessage<Error>(HasSubstr("--placeable attention")));
  EXPECT_THAT(
      [] {
        run({{"weights_cpu", "0"}}, small_machine(10'000), SmallBlock(1, 1).trace);
      },
      ThrowsMessage<Error>(HasSubstr("flexgen")));  // no storage
}

}  // namespace
}  // namespace tencache
