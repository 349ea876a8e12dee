// patrickstar on small traces, worked out by hand from the rules at the head of policies/patrickstar.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/registry.h"
#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;

const Settings chunks_of_100 = {{"chunk_size", "100"}};

// Nine kernels of 100 ns, each reading one parameter of 50 bytes: a0 a1 b0 b1 c0 c1 a0 b0 c0. Chunks of 100: A = {a0,
// a1}, B, C. Two of them fit; a copy takes 50 ns a parameter, and both ways go at once.
Trace nine_kernels() {
  Trace trace;
  std::vector<TensorId> parameters;
  for (const char* name : {"a0", "a1", "b0", "b1", "c0", "c1"}) {
    parameters.push_back(trace.add_tensor(name, 50, Role::parameter, true));
  }
  for (const std::size_t i : {0U, 1U, 2U, 3U, 4U, 5U, 0U, 2U, 4U}) add_op(trace, 100, {parameters[i]}, {});
  return trace;
}

// A chunk that comes into free room makes its op wait 100; into the room of another, 150: the first half comes while
// the second half of the other leaves. First iteration, the least recently used leaves: op 0 fetches A (100), op 2 B
// (100), op 4 C for A (150), op 6 A for B
//   (150), op 7 B for C (150), op 8 C for A (150).
// Second, the farthest next use leaves; B and C are there. op 0 needs A: B is used next by op 2, C by op 4: C leaves.
//   op 4 needs C: A is used by op 6, B by op 7: B leaves. op 7 needs B: A is used by op 0 of the next iteration, C by
//   op 8: A leaves. Ops 2, 6 and 8 find what they need.
TEST(PatrickStarTest, Golden) {
  const GoldenRun run = run_golden("patrickstar", chunks_of_100, nine_kernels(), small_machine(200));
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 100, 0, 150, 0, 150, 150, 150));
  EXPECT_THAT(run.waits(1), ElementsAre(150, 0, 0, 0, 150, 0, 0, 150, 0));
  EXPECT_EQ(run.transfers(1, h2d), 6U);
  EXPECT_EQ(run.transfers(1, d2h), 6U);  // chunks are in one place only
  EXPECT_TRUE(run.result.steady);
  expect_golden("patrickstar", run.text);
}

// Each tensor is a chunk: op 0 waits for a0 alone.
TEST(PatrickStarTest, AChunkMayBeATensor) {
  const GoldenRun run = run_golden("patrickstar", {{"chunk_size", "tensor"}}, nine_kernels(), small_machine(300));
  EXPECT_THAT(run.waits(0), ElementsAre(50, 50, 50, 50, 50, 50, 0, 0, 0));
}

// Two layers with parameter, gradient and state of 100 each: at most two gradients are alive, so 400 are taken by
// parameters and gradients. Of 550 that leaves a margin for the first state, of 650 for both, of 450 for none.
TEST(PatrickStarTest, TheFirstUpdatesStayOnTheGpuWhereThereIsMargin) {
  Trace trace;
  std::vector<TensorId> p, g, s;
  for (const char* layer : {"0", "1"}) {
    p.push_back(trace.add_tensor(std::string("p") + layer, 100, Role::parameter, true));
    g.push_back(trace.add_tensor(std::string("g") + layer, 100, Role::gradient, false));
    s.push_back(trace.add_tensor(std::string("s") + layer, 100, Role::optimizer_state, true));
  }
  using Tensors = std::vector<TensorId>;
  for (const std::size_t i : {0U, 1U}) {
    trace.add_op(make_op(trace, "b" + std::to_string(i), "", Phase::backward, 100), Tensors{p[i]}, Tensors{g[i]});
  }
  for (const std::size_t i : {0U, 1U}) {
    trace.add_op(make_op(trace, "u" + std::to_string(i), "", Phase::optimizer, 100), Tensors{p[i], g[i], s[i]},
                 Tensors{p[i], s[i]});
  }
  const auto updates_on_cpu = [&trace](Bytes gpu_bytes, const Settings& settings) {
    MachineSpec machine = small_machine(gpu_bytes);
    machine.cpu.adam_parameters_per_second = 1e9;
    std::vector<std::string> names;
    const Program program = lower(trace, *make_policy("patrickstar", settings).policy, machine);
    for (const Op& op : program.trace.ops) {
      if (op.device == Device::cpu) names.emplace_back(program.trace.name(op));
    }
    return names;
  };
  EXPECT_THAT(updates_on_cpu(450, {}), ElementsAre("u0", "u1"));
  EXPECT_THAT(updates_on_cpu(550, {}), ElementsAre("u1"));
  EXPECT_THAT(updates_on_cpu(650, {}), ElementsAre());
  EXPECT_THAT(updates_on_cpu(650, {{"updates", "cpu"}}), ElementsAre("u0", "u1"));
  EXPECT_THAT(updates_on_cpu(450, {{"updates", "recorded"}}), ElementsAre());
}

}  // namespace
}  // namespace tencache
