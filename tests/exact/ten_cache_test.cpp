// 10Cache: the rule for buffers on numbers worked out by hand, and the active tensor window on a small trace.
#include "policies/ten_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/golden/golden_run.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// BLOOM-7B1 in fp16: hidden 4096, 30 layers. 14.137 GB of parameters, of which 30.2 GB / 2.5 = 12.08 GB is 85.4 %:
// 157.2 of 184 vectors, 25.6 of 30 of each kind a layer has once, 51.3 of 60 of the two large ones, and the embedding,
// which is alone in its class. 313 of 365, 85.8 %; the paper counts 306, which 29.7 GB gives.
TEST(TenCacheBuffersTest, BloomOnThePapersMachine) {
  constexpr Bytes hidden = 4096, fp16 = 2;
  const std::array<TensorClass, 7> bloom = {{{fp16 * hidden, 184},
                                             {fp16 * 3 * hidden, 30},
                                             {fp16 * 4 * hidden, 30},
                                             {fp16 * hidden * hidden, 30},
                                             {fp16 * 3 * hidden * hidden, 30},
                                             {fp16 * 4 * hidden * hidden, 60},
                                             {fp16 * 250'880 * hidden, 1}}};
  EXPECT_THAT(ten_cache_buffers(bloom, {.memory_bytes = 30.2e9 / 2.5, .at_least = 20, .cap = {}}),
              ElementsAre(157, 26, 26, 26, 26, 51, 1));
  EXPECT_THAT(ten_cache_buffers(bloom, {.memory_bytes = 29.7e9 / 2.5, .at_least = 20, .cap = {}}),
              ElementsAre(155, 25, 25, 25, 25, 50, 1));
}

// Half of all bytes fit: 12 of 24 and 50 of 100. The first is lifted to 20: eight buffers of 100 are two of 400.
TEST(TenCacheBuffersTest, ALargeBufferBecomesSeveralSmallOnes) {
  const std::array<TensorClass, 2> classes = {{{100, 24}, {400, 100}}};
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 21'200, .at_least = 0, .cap = {}}), ElementsAre(12, 50));
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 21'200, .at_least = 20, .cap = {}}), ElementsAre(20, 48));
}

// The other way round: eight buffers of 400 are 32 of 100. Nothing is taken where no size divides the other.
TEST(TenCacheBuffersTest, SeveralSmallBuffersBecomeALargeOne) {
  const std::array<TensorClass, 2> classes = {{{100, 400}, {400, 24}}};
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 24'800, .at_least = 20, .cap = {}}), ElementsAre(168, 20));
  const std::array<TensorClass, 2> odd = {{{300, 400}, {400, 24}}};
  EXPECT_THAT(ten_cache_buffers(odd, {.memory_bytes = 64'800, .at_least = 20, .cap = {}}), ElementsAre(200, 12));
}

// Caps, four fp32 tensors a buffer, and small classes.
TEST(TenCacheBuffersTest, CapsAndScale) {
  const std::array<TensorClass, 2> classes = {{{100, 2}, {400, 12}}};
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 2'500, .cap = {2, 3}}), ElementsAre(2, 3));
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 10'000, .buffer_scale = 4, .all_up_to = 0, .cap = {}}),
              ElementsAre(1, 6));
}

// More memory than a uint64 counts buffers of.
TEST(TenCacheBuffersTest, ASmallDivisorIsNoOverflow) {
  const std::array<TensorClass, 1> classes = {{{100, 24}}};
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 1e300, .cap = {}}), ElementsAre(24));
  EXPECT_THAT(ten_cache_buffers(classes, {.memory_bytes = 1e300, .cap = {36}}), ElementsAre(36));
}

TEST(TenCacheTest, SharesOutOfRangeAreNamed) {
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
           {"gpu_share", "0"}, {"cpu_share", "0"}, {"states_share", "0"}, {"states_share", "1.01"}}) {
    EXPECT_THAT(([&, option = option, value = value] {
                  make_policy("10cache", {{option, value}});
                }),
                ThrowsMessage<Error>(AllOf(HasSubstr("option " + option), HasSubstr("above 0"))));
  }
}

constexpr Nanoseconds forward_ns = 150, backward_ns = 300;
constexpr Bytes parameter_bytes = 200;  // gradients and states too
constexpr Nanoseconds copy_ns = 200;    // 1 byte/ns

// f0 f1 … b1 b0 u0 u1 …: layer i has parameter p, activation a of 50 bytes, gradient g and state s.
//   f(i) reads p(i) and a(i-1), writes a(i);  b(i) reads p(i) and a(i), writes g(i);  u(i) updates p(i) and s(i) by
//   g(i).
Trace layers(std::size_t count, Nanoseconds forward_time_ns = forward_ns) {
  Trace trace;
  std::vector<TensorId> p, a, g, s;
  const auto name = [](const char* letter, std::size_t i) { return letter + std::to_string(i); };
  for (std::size_t i = 0; i < count; ++i) {
    p.push_back(trace.add_tensor(name("p", i), parameter_bytes, Role::parameter, true));
    a.push_back(trace.add_tensor(name("a", i), 50, Role::activation, false));
    g.push_back(trace.add_tensor(name("g", i), parameter_bytes, Role::gradient, false));
    s.push_back(trace.add_tensor(name("s", i), parameter_bytes, Role::optimizer_state, true));
  }
  using Tensors = std::vector<TensorId>;
  for (std::size_t i = 0; i < count; ++i) {
    trace.add_op(make_op(trace, name("f", i), name("layer", i), Phase::forward, forward_time_ns),
                 i == 0 ? Tensors{p[i]} : Tensors{p[i], a[i - 1]}, Tensors{a[i]});
  }
  for (std::size_t i = count; i-- > 0;) {
    trace.add_op(make_op(trace, name("b", i), name("layer", i), Phase::backward, backward_ns), Tensors{p[i], a[i]},
                 Tensors{g[i]});
  }
  for (std::size_t i = 0; i < count; ++i) {
    trace.add_op(make_op(trace, name("u", i), "", Phase::optimizer, 50), Tensors{p[i], g[i], s[i]},
                 Tensors{p[i], s[i]});
  }
  return trace;
}

// The CPU updates at 2.5 bytes/ns: the 1000 bytes of an update take 400 ns. NVMe, if there is one, is behind the CPU's
// memory, at 1 byte/ns too.
constexpr Nanoseconds update_ns = 400;
MachineSpec machine_of(Bytes cpu_bytes, bool nvme) {
  MachineSpec machine = small_machine(10'000);
  machine.cpu.adam_parameters_per_second = 89'285'000;
  machine.tiers[1].capacity = cpu_bytes;
  if (nvme) {
    machine.tiers.push_back({"nvme", TierKind::nvme, 1'000'000, 1, {}});
    machine.links.push_back({"read", 2, 1, byte_per_ns, 0, {}});
    machine.links.push_back({"write", 1, 2, byte_per_ns, 0, {}});
    machine.staging = {.tier = 1, .count = 4, .bytes = 1000};
  }
  machine.validate();
  return machine;
}
constexpr LinkId read = 2, write = 3;

// Four layers; free_gpu 1000 / 2.5 gives two buffers. Table: p0 p1 p2 p3 | p3 p2 p1 p0. The window begins as {p0, p1}.
// A steady iteration, from its beginning:
//   f0    0 to  150  p0 is released, p2 comes in its place: 150 to 350.
//   f1  150 to  300  p1 is released, p3 comes in its place: 350 to 550.
//   f2  350 to  500  50 late. Nothing of this pass is left to come in: p2 stays.
//   f3  550 to  700  50 late. p3 stays.
//   b3  700 to 1000  g3 goes out. p3 is released; p3 and p2 are in the window, so p1 comes in: 1000 to 1200.
//   b2 1000 to 1300  g2 goes out. p2 is released, p0 comes in: 1300 to 1500.
//   b1 1300 to 1600  Nothing is left: p1 stays, and p0 after
//   b0 1600 to 1900, so the window is {p0, p1} again. g0 is on the CPU at 2100: u0 to 2500, u1, u2, u3 to 3700.
// p0 and p1 return to the GPU after their updates; p2 and p3 stay where they were updated. The step blocks: f0 begins
// at 3700. In the first iteration p0 and p1 come in first: f0 200 late, and f1, f2, f3 50 each.
TEST(TenCacheTest, ActiveTensorWindow) {
  const GoldenRun run =
      run_golden("10cache", {{"free_gpu", "1000"}, {"window_reserve", "0"}}, layers(4), machine_of(100'000, false));
  const Nanoseconds step_ns = copy_ns + 4 * update_ns;
  EXPECT_THAT(run.waits(0), ElementsAre(copy_ns, 50, 50, 50, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(step_ns, 0, 50, 50, 0, 0, 0, 0));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[1], 4 * forward_ns + 4 * backward_ns + 2 * 50 + step_ns);
  EXPECT_EQ(run.stall(StallCause::h2d), 2 * 50);
  EXPECT_EQ(run.stall(StallCause::cpu_optimizer), step_ns);
  EXPECT_EQ(run.transfers(1, h2d), 6U);  // p2 p3, p1 p0, and p0 p1 after their updates
  EXPECT_EQ(run.transfers(1, d2h), 4U);  // the gradients: a clean parameter is dropped
  EXPECT_EQ(run.result.window.all_accesses().accesses, 8 * run.result.period);
  EXPECT_EQ(run.result.window.all_accesses().hits, 6 * run.result.period);
  EXPECT_EQ(run.result.window.tensors_held, 2 * run.result.period);
  EXPECT_EQ(run.result.window.tensors, 4 * run.result.period);
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.period, 1U);
  expect_golden("ten_cache", run.text);
}

// When a tensor's copies over a link were asked for, in that iteration: the ops.
std::vector<OpIndex> asked_at(const GoldenRun& run, const Trace& trace, const std::string& name, LinkId link,
                              std::uint64_t iteration) {
  std::vector<OpIndex> ops;
  for (const Span& span : run.timeline.spans) {
    if (span.kind != SpanKind::transfer || span.lane != first_link_lane + link || span.iteration != iteration) continue;
    if (trace.name(trace.tensors[span.tensor]) == name) ops.push_back(span.op);
  }
  return ops;
}

// Six buffers for eight layers, one of them in reserve. f0 releases p0, and its buffer is the reserve: nothing comes.
// f1 releases p1: p6 comes in; behind it the pass has only p7, which may use the reserve. In the backward pass the same
// with p1 and p0.
TEST(TenCacheTest, ReserveIsFreeUntilTheEndOfAPass) {
  const Trace trace = layers(8);
  const GoldenRun run =
      run_golden("10cache", {{"free_gpu", "3000"}, {"window_reserve", "1"}}, trace, machine_of(100'000, false));
  constexpr OpIndex f1 = 1, b6 = 9;
  EXPECT_THAT(asked_at(run, trace, "p6", h2d, 1), ElementsAre(f1));
  EXPECT_THAT(asked_at(run, trace, "p7", h2d, 1), ElementsAre(f1));
  EXPECT_EQ(asked_at(run, trace, "p1", h2d, 1).front(), b6);
  EXPECT_EQ(asked_at(run, trace, "p0", h2d, 1).front(), b6);
  EXPECT_EQ(run.result.window.tensors_held, 6 * run.result.period);
}

// Everything fits: nothing of a parameter moves but the updates.
TEST(TenCacheTest, NothingIsReleasedWhenAllFit) {
  const GoldenRun run = run_golden("10cache", {{"free_gpu", "2000"}}, layers(4), machine_of(100'000, false));
  EXPECT_EQ(run.transfers(1, h2d), 4U);
  EXPECT_EQ(run.result.window.all_accesses().hits, run.result.window.all_accesses().accesses);
}

// Two buffers on the GPU and two in CPU memory for eight layers. When an iteration begins the GPU holds p0 and p1, CPU
// memory p6 and p7, which were updated last; the others are on NVMe alone. f0 releases p0: p2 comes next and is read,
// 500 to 700; at the next release, f1's at 1000, it goes on to the GPU.
TEST(TenCacheTest, TwoStagesFromNvme) {
  const Trace trace = layers(8, 500);
  const GoldenRun run = run_golden(
      "10cache", {{"free_gpu", "1000"}, {"free_cpu", "80000"}, {"cpu_share", "200"}, {"window_reserve", "0"}}, trace,
      machine_of(100'000, true));
  constexpr OpIndex f0 = 0, f1 = 1;
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(asked_at(run, trace, "p2", read, 1).front(), f0);
  EXPECT_EQ(asked_at(run, trace, "p2", h2d, 1).front(), f1);
  EXPECT_TRUE(run.result.steady);
}

// Six states, CPU buffers for three: 4000 bytes (16000 less two parameters' 12000 and more) … two of them slide. s0
// lives there for good. After u1, s1 is written and s3 read, 200 ns while u2 runs 400; and so on, around to s1 and s2
// for the next iteration. So the step takes as long as without NVMe.
TEST(TenCacheTest, StatesSlide) {
  const Trace trace = layers(6);
  const Settings settings = {
      {"free_gpu", "100000"}, {"free_cpu", "6000"}, {"states_share", "0.67"}, {"states_window", "2"}};
  const GoldenRun run = run_golden("10cache", settings, trace, machine_of(100'000, true));
  const GoldenRun without = run_golden("10cache", settings, trace, machine_of(100'000, false));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[1], without.result.iteration_ns[1]);
  EXPECT_THAT(asked_at(run, trace, "s0", write, 1), ElementsAre());
  EXPECT_EQ(run.result.window.links[read].bytes, 5 * parameter_bytes * run.result.period);
  EXPECT_EQ(run.result.window.links[write].bytes, 5 * parameter_bytes * run.result.period);
  EXPECT_TRUE(run.result.steady);

  Settings fp16 = settings;
  fp16["optimizer_states"] = "false";
  const GoldenRun all = run_golden("10cache", fp16, trace, machine_of(100'000, true));
  EXPECT_EQ(all.result.window.links[read].bytes, 6 * parameter_bytes * all.result.period);
}

// SC: each of the eight visits fetches its parameter, which is dropped after it; the four gradients leave to fresh
// memory. SC+P: p0 and p1, which live on the GPU, leave in the forward pass, and come for their updates; p3 and p2 have
// their place in CPU memory. Here that costs SC+P more than SC's waits, which the paper's pageable copies make longer
// (ten_cache_paper_test).
TEST(TenCacheTest, AblationSwitches) {
  const auto run = [](const char* prefetch, const char* buffers) {
    return run_golden("10cache", {{"free_gpu", "1000"}, {"prefetch", prefetch}, {"buffers", buffers}}, layers(4),
                      machine_of(100'000, false));
  };
  const GoldenRun sc = run("false", "allocate"), sc_p = run("true", "allocate"), sc_p_m = run("true", "reuse");
  EXPECT_EQ(sc.result.window.all_accesses().hits, 0U);
  EXPECT_EQ(sc.transfers(1, h2d), 8U);
  EXPECT_EQ(sc.transfers(1, d2h), 4U);
  EXPECT_EQ(sc_p.transfers(1, d2h), 2U + 2U + 4U);
  EXPECT_EQ(sc_p_m.transfers(1, d2h), 4U);
  EXPECT_GT(sc.result.iteration_seconds(), sc_p.result.iteration_seconds());
  EXPECT_GT(sc_p.result.iteration_seconds(), sc_p_m.result.iteration_seconds());
}

// Fresh memory at 1 byte/ns and 10 ns a call: each of b3's and b2's gradients leaves in 200 + 200 + 10 ns, and the next
// op waits for it. Nothing else leaves: all parameters fit.
TEST(TenCacheTest, FreshMemoryBlocks) {
  MachineSpec machine = machine_of(100'000, false);
  machine.tiers[1].allocation = {.per_call_ns = 10, .bandwidth = byte_per_ns, .power_of_two = false};
  const GoldenRun run = run_golden("10cache", {{"free_gpu", "2000"}, {"buffers", "allocate"}}, layers(4), machine);
  const Nanoseconds leaves_ns = 2 * copy_ns + 10;
  EXPECT_EQ(run.waits(0)[5], leaves_ns);
  EXPECT_EQ(run.waits(0)[6], leaves_ns);
  machine.tiers[1].allocation.power_of_two = true;  // 256
  const GoldenRun rounded = run_golden("10cache", {{"free_gpu", "2000"}, {"buffers", "allocate"}}, layers(4), machine);
  EXPECT_EQ(rounded.waits(0)[5], leaves_ns + 56);
}

// A parameter that is used first and last, as a tied embedding, with two buffers: it is in the window when the
// iteration begins, leaves after the first op and comes back as the last row; it is not brought back before.
TEST(TenCacheTest, WhatIsBehindIsNotBroughtBack) {
  Trace trace = layers(4);
  Op head = make_op(trace, "head", "head", Phase::forward, forward_ns);
  Trace tied;
  tied.names = trace.names;
  for (const Tensor& tensor : trace.tensors) {
    tied.add_tensor(trace.name(tensor), tensor.bytes, tensor.role, tensor.persistent);
  }
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (op == 4) tied.add_op(head, std::vector<TensorId>{0}, std::vector<TensorId>{});
    tied.add_op(trace.ops[op], trace.reads(trace.ops[op]), trace.writes(trace.ops[op]));
  }
  const GoldenRun run =
      run_golden("10cache", {{"free_gpu", "1000"}, {"window_reserve", "0"}}, tied, machine_of(100'000, false));
  constexpr OpIndex f2 = 2;
  EXPECT_EQ(asked_at(run, tied, "p0", h2d, 1).front(), f2);
  EXPECT_TRUE(run.result.steady);
}

}  // namespace
}  // namespace tencache
