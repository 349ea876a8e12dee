// deep-optimizer-states and mlp-offload on small traces; what they do, and when, follows from the rules at the head of
// their files. What several of them share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "policies/updates.h"
#include "sim/simulate.h"
#include "tests/golden/golden_run.h"
#include "tests/property/random_case.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using Tensors = std::vector<TensorId>;

constexpr Bytes tensor_bytes = 100;  // of a parameter, a gradient, a state: 100 ns over a link of 1 byte/ns

Nanoseconds phase(const GoldenRun& run, Phase phase) {
  return run.result.window.phase_ns[static_cast<std::size_t>(phase)];
}

// "u0 1550-1750" of each op in the last iteration, from its beginning, in order of their ends.
std::vector<std::string> ops_of(const GoldenRun& run, const Trace& trace) {
  const std::size_t last = run.result.iteration_ns.size() - 1;
  const Nanoseconds begin_ns = run.begin_of(last);
  std::vector<std::string> list;
  for (const Span& span : run.timeline.spans) {
    if (span.kind != SpanKind::op || span.iteration != last) continue;
    list.push_back(trace.name(trace.ops[span.op]) + (" " + std::to_string(span.start_ns - begin_ns)) + "-" +
                   std::to_string(span.end_ns - begin_ns));
  }
  return list;
}

// The same of transfers that began in it: "nvme_read s2 1201-1301".
std::vector<std::string> copies_of(const GoldenRun& run, const Trace& trace, const MachineSpec& machine) {
  const Nanoseconds begin_ns = run.begin_of(run.result.iteration_ns.size() - 1);
  std::vector<std::string> list;
  for (const Span& span : run.timeline.spans) {
    if (span.kind != SpanKind::transfer || span.start_ns < begin_ns) continue;
    list.push_back(machine.links[span.lane - first_link_lane].name + " " + trace.name(trace.tensors[span.tensor]) +
                   " " + std::to_string(span.start_ns - begin_ns) + "-" + std::to_string(span.end_ns - begin_ns));
  }
  return list;
}

// ---- deep-optimizer-states ------------------------------------------------------------------------------------------

// Nine ops: f reads p0 … p3 (150 ns); b3 … b0 read p(i), write g(i) (300); u0 … u3, sub-groups 0 to 3, read g(i), s(i)
// and write s(i), p(i) (50 on the GPU).
Trace four_sub_groups() {
  Trace trace;
  std::array<TensorId, 4> p{}, g{}, s{};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string number = std::to_string(i);
    p[i] = trace.add_tensor("p" + number, tensor_bytes, Role::parameter, true);
    g[i] = trace.add_tensor("g" + number, tensor_bytes, Role::gradient, false);
    s[i] = trace.add_tensor("s" + number, tensor_bytes, Role::optimizer_state, true);
  }
  trace.add_op(make_op(trace, "f", "m", Phase::forward, 150), Tensors(p.begin(), p.end()), {});
  for (std::size_t i = 4; i-- > 0;) {
    trace.add_op(make_op(trace, "b" + std::to_string(i), "m", Phase::backward, 300), Tensors{p[i]}, Tensors{g[i]});
  }
  for (std::size_t i = 0; i < 4; ++i) {
    Op op = make_op(trace, "u" + std::to_string(i), "", Phase::optimizer, 50);
    op.group = static_cast<std::int32_t>(i);
    op.reorderable = true;
    trace.add_op(op, Tensors{g[i], s[i]}, Tensors{s[i], p[i]});
  }
  return trace;
}

// The CPU updates at 2 bytes/ns: the 400 bytes of an update take 200 ns, as 400 / (28 x 0.071428571) = 200.
MachineSpec offloading_machine(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.cpu.adam_parameters_per_second = 71'428'571;
  machine.validate();
  return machine;
}

std::string devices_with(const char* gap) {
  const MadePolicy made = make_policy("deep-optimizer-states", {{"gap", gap}});
  const Program program = lower(four_sub_groups(), *made.policy, offloading_machine(1000));
  std::string devices;
  for (const Op& op : program.trace.ops) {
    if (op.phase == Phase::optimizer) devices += op.device == Device::gpu ? 'G' : 'C';
  }
  return devices;
}

TEST(DeepOptimizerStatesTest, EveryGapthSubGroupIsTheGpus) {
  EXPECT_EQ(devices_with("0"), "CCCC");
  EXPECT_EQ(devices_with("1"), "GGGG");
  EXPECT_EQ(devices_with("2"), "CGCG");
  EXPECT_EQ(devices_with("3"), "CCGC");
}

// Gap 2: u1 and u3 are the GPU's, g1 and g3 stay there; u0 and u2 the CPU's, g0 and g2 leave, g2 while b1 runs. When b0
// is over, at 1450, s1 comes in (100); u1 is issued and asks for s3, which comes behind it. u1 runs from 1550 to 1600
// and s1 goes home; u3 waits for s3 until 1650. The CPU has g0 at 1550: u0 until 1750, u2 until 1950, and p0 comes back
// at 1750. p2 comes back when the step is over, and f, which reads it, waits for it: 100 ns.
TEST(DeepOptimizerStatesTest, BothDevicesUpdateAtOnce) {
  const Trace trace = four_sub_groups();
  const MachineSpec machine = offloading_machine(1000);
  const GoldenRun run = run_golden("deep-optimizer-states", {}, trace, machine);
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.window.time_ns, 1950);
  EXPECT_THAT(ops_of(run, trace), ElementsAre("f 100-250", "b3 250-550", "b2 550-850", "b1 850-1150", "b0 1150-1450",
                                              "u1 1550-1600", "u3 1650-1700", "u0 1550-1750", "u2 1750-1950"));
  EXPECT_THAT(copies_of(run, trace, machine),
              ElementsAre("h2d p2 0-100", "d2h g2 850-950", "h2d s1 1450-1550", "d2h g0 1450-1550", "h2d s3 1550-1650",
                          "d2h s1 1600-1700", "d2h s3 1700-1800", "h2d p0 1750-1850"));
  EXPECT_EQ(phase(run, Phase::forward), 100 + 150);
  EXPECT_EQ(phase(run, Phase::backward), 4 * 300);
  EXPECT_EQ(phase(run, Phase::optimizer), 500);  // u1's wait and u1, u3's and u3, then until u2 is done
  expect_golden("deep_optimizer_states", run.text);
}

// As the artifact's code copies gradients: g3 and g1 go out and come back, g2 goes out again, one copy after the other.
// g0, complete at 1450, is on its way back behind s1 and s3 until 1750; u0, the step's first op, waits for that, and
// keeps what it has in CPU memory. Then u0 and u2 run until 2150.
TEST(DeepOptimizerStatesTest, TheArtifactCopiesGradientsOutBackAndOut) {
  const Trace trace = four_sub_groups();
  const MachineSpec machine = offloading_machine(1000);
  const GoldenRun run = run_golden("deep-optimizer-states", {{"gradient_copies", "artifact"}}, trace, machine);
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_TRUE(run.result.steady);
  EXPECT_THAT(ops_of(run, trace), ElementsAre("f 100-250", "b3 250-550", "b2 550-850", "b1 850-1150", "b0 1150-1450",
                                              "u1 1550-1600", "u3 1650-1700", "u0 1750-1950", "u2 1950-2150"));
  EXPECT_THAT(copies_of(run, trace, machine),
              IsSupersetOf({"d2h g3 550-650", "h2d g3 650-750", "d2h g2 850-950", "h2d g2 950-1050", "d2h g2 1050-1150",
                            "d2h g1 1150-1250", "h2d g1 1250-1350", "d2h g0 1450-1550", "h2d g0 1650-1750"}));
}

// Gradients of the GPU's sub-groups may be driven out, parameters not: b3 needs 100 bytes for g3 beside all four.
TEST(DeepOptimizerStatesTest, ParametersMustFit) {
  const auto run = [](Bytes gpu_bytes, const char* overflow) {
    return run_golden("deep-optimizer-states", {{"overflow", overflow}}, four_sub_groups(),
                      offloading_machine(gpu_bytes))
        .result;
  };
  EXPECT_TRUE(run(500, "oom").fits);
  EXPECT_FALSE(run(499, "oom").fits);
  EXPECT_EQ(run(499, "oom").misfit_op, "b3");
  EXPECT_TRUE(run(499, "evict").fits);
}

// ---- mlp-offload ----------------------------------------------------------------------------------------------------

// Nine ops: f0 reads p0 and p1, f1 p2 to p4 (150 ns); b1 writes g4, g3, g2, b0 g1, g0 and the coefficient c that all
// updates wait for (300); u0 … u4, sub-groups 0 to 4, read c, g(i), s(i) and write s(i), p(i).
Trace five_sub_groups() {
  Trace trace;
  std::array<TensorId, 5> p{}, g{}, s{};
  for (std::size_t i = 0; i < 5; ++i) {
    const std::string number = std::to_string(i);
    p[i] = trace.add_tensor("p" + number, tensor_bytes, Role::parameter, true);
    g[i] = trace.add_tensor("g" + number, tensor_bytes, Role::gradient, false);
    s[i] = trace.add_tensor("s" + number, tensor_bytes, Role::optimizer_state, true);
  }
  const TensorId c = trace.add_tensor("c", 1, Role::workspace, false);
  trace.add_op(make_op(trace, "f0", "a", Phase::forward, 150), Tensors{p[0], p[1]}, {});
  trace.add_op(make_op(trace, "f1", "b", Phase::forward, 150), Tensors{p[2], p[3], p[4]}, {});
  trace.add_op(make_op(trace, "b1", "b", Phase::backward, 300), Tensors{p[2], p[3], p[4]}, Tensors{g[4], g[3], g[2]});
  trace.add_op(make_op(trace, "b0", "a", Phase::backward, 300), Tensors{p[0], p[1]}, Tensors{g[1], g[0], c});
  for (std::size_t i = 0; i < 5; ++i) {
    Op op = make_op(trace, "u" + std::to_string(i), "", Phase::optimizer, 50);
    op.group = static_cast<std::int32_t>(i);
    op.reorderable = true;
    trace.add_op(op, Tensors{c, g[i], s[i]}, Tensors{s[i], p[i]});
  }
  return trace;
}

// Two storage tiers beside the CPU: nvme at 1 byte/ns, pfs at half of that, each way. An update touches 402 bytes at
// 2.01 bytes/ns: 200 ns.
MachineSpec storage_machine(Bytes cpu_bytes = 1'000'000) {
  MachineSpec machine = small_machine(1200);
  machine.tiers[1].capacity = cpu_bytes;
  machine.tiers.push_back({"nvme", TierKind::nvme, 1'000'000, 1, {}});
  machine.tiers.push_back({"pfs", TierKind::nvme, 1'000'000, 1, {}});
  machine.links.push_back({"nvme_read", 2, 1, byte_per_ns, 0, {}});
  machine.links.push_back({"nvme_write", 1, 2, byte_per_ns, 0, {}});
  machine.links.push_back({"pfs_read", 3, 1, byte_per_ns / 2, 0, {}});
  machine.links.push_back({"pfs_write", 1, 3, byte_per_ns / 2, 0, {}});
  machine.staging = {.tier = 1, .count = 4, .bytes = 100};
  machine.cpu.adam_parameters_per_second = 71'607'142;
  machine.validate();
  return machine;
}

const Settings one_kept = {{"buffers", "4"}, {"in_flight", "3"}};

// Updated in the order 4 3 2 1 0. Four buffers, three in flight: one sub-group, 4, stays in CPU memory, and one is read
// ahead. Ratio 3: 0 and 3 live in pfs, the others in nvme.
// b0 is over at 1000. c goes first, since u4 waits for it, then g1 and g0: the step begins when they are there, at
// 1201. u4 needs no read, and s3 has been read meanwhile, 200 ns from pfs; then, as each update is issued, the next
// one's states: s2 from nvme, s1 from nvme, s0 from pfs. Each is there when it is wanted, so the CPU never waits: five
// updates of 200 until 2201. Written are s3, s2, s1, s0, each after its update; s0's write goes on for 200 ns in the
// next iteration. Gradients and parameters see no storage. f0 waits for p0, which comes back when the step is over.
TEST(MlpOffloadTest, StatesAreSpreadOverStorageTiersAndTheLastStay) {
  const Trace trace = five_sub_groups();
  const MachineSpec machine = storage_machine();
  const GoldenRun run = run_golden("mlp-offload", one_kept, trace, machine);
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_TRUE(run.result.steady);
  const Program program = lower(trace, *make_policy("mlp-offload").policy, machine);
  EXPECT_THAT(ops_of(run, program.trace),
              ElementsAre("f0 100-250", "f1 250-400", "b1 400-700", "b0 700-1000", "u4 1201-1401", "u3 1401-1601",
                          "u2 1601-1801", "u1 1801-2001", "u0 2001-2201"));
  EXPECT_THAT(copies_of(run, trace, machine),
              ElementsAre("h2d p0 0-100", "pfs_write s0 0-200", "d2h g4 700-800", "d2h g3 800-900", "d2h g2 900-1000",
                          "d2h c 1000-1001", "d2h g1 1001-1101", "pfs_read s3 1000-1200", "d2h g0 1101-1201",
                          "h2d p4 1401-1501", "nvme_read s2 1401-1501", "h2d p3 1601-1701", "nvme_read s1 1601-1701",
                          "pfs_write s3 1601-1801", "h2d p2 1801-1901", "nvme_write s2 1801-1901",
                          "pfs_read s0 1801-2001", "h2d p1 2001-2101", "nvme_write s1 2001-2101"));
  EXPECT_EQ(phase(run, Phase::forward), 100 + 300);
  EXPECT_EQ(phase(run, Phase::backward), 600 + 201);  // until the last gradient is there
  EXPECT_EQ(phase(run, Phase::optimizer), 5 * 200);
  EXPECT_THAT(run.result.policy_notes, ElementsAre(HasSubstr("1 of 5 sub-groups, 100 B of states, stay")));
  expect_golden("mlp_offload", run.text);
}

// With one in flight nothing is read ahead, and each update waits for the write of the one before it: u3's own read,
// 200 from pfs, then for u2 the write of s3, 200, and so on. u4, kept, waits for nothing.
TEST(MlpOffloadTest, WithoutRoomInFlightReadsAndWritesAreWaitedFor) {
  const Trace trace = five_sub_groups();
  const GoldenRun run = run_golden("mlp-offload", {{"buffers", "2"}, {"in_flight", "1"}}, trace, storage_machine());
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  // Reads: s3 200. Then the slower of the write before and the own read: s3's 200, s2's 100 or s1's 100, s0's 200.
  EXPECT_EQ(phase(run, Phase::optimizer), 5 * 200 + 200 + 200 + 100 + 200);
}

// CPU memory is divided where nobody says how: gradients and parameters take 1000, in_flight 3 of the largest 300.
TEST(MlpOffloadTest, WhatFitsIsKept) {
  const auto note = [](Bytes cpu_bytes, const char* in_flight) {
    return run_golden("mlp-offload", {{"in_flight", in_flight}}, five_sub_groups(), storage_machine(cpu_bytes))
        .result.policy_notes;
  };
  EXPECT_THAT(note(1399, "3"), ElementsAre(HasSubstr("0 of 5")));
  EXPECT_THAT(note(1400, "3"), ElementsAre(HasSubstr("1 of 5")));
  EXPECT_THAT(note(1600, "3"), ElementsAre(HasSubstr("3 of 5")));
  EXPECT_THAT(note(1'000'000, "9"), ElementsAre(HasSubstr("5 of 5")));
}

// Without storage, or with some that only the GPU reaches, all states stay in CPU memory and nothing but gradients and
// parameters moves.
TEST(MlpOffloadTest, WithoutStorageAllStay) {
  MachineSpec of_the_gpu = small_machine(1200, true);
  of_the_gpu.cpu.adam_parameters_per_second = 71'428'571;
  for (const MachineSpec& machine : {offloading_machine(1200), of_the_gpu}) {
    const GoldenRun run = run_golden("mlp-offload", {}, five_sub_groups(), machine);
    ASSERT_TRUE(run.result.fits) << run.result.misfit;
    EXPECT_EQ(run.result.window.links[h2d].bytes, 5 * tensor_bytes);
    EXPECT_EQ(run.result.window.links[d2h].bytes, 5 * tensor_bytes + 1);
  }
}

// A policy that asks for anything, whose victims are found in both ways.
class BothWays final : public Policy {
 public:
  explicit BothWays(std::unique_ptr<Policy> inner) : inner_(std::move(inner)) {}
  Requirements requirements() const override { return inner_->requirements(); }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    return inner_->layout(machine, program);
  }
  void on(const Event& event, const View& view, Actions& actions) override {
    victims_.on(event, view);
    inner_->on(event, view, actions);
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) return coldest_victims(request, view, victims);
    const auto may_leave = [](Role role) { return role == Role::activation || role == Role::gradient; };
    const Residency& memory = view.memory;
    Bytes bytes = 0;
    for (ChunkId chunk = memory.coldest(0); chunk != none && bytes < request.bytes; chunk = memory.warmer(chunk, 0)) {
      if (!memory.evictable(chunk, 0) || !may_leave(memory.role(memory.tensor_of(chunk)))) continue;
      victims.push_back(chunk);
      bytes += memory.footprint(chunk, 0);
    }
    std::vector<ChunkId> found;
    victims_.find(+may_leave, request, view, found);
    EXPECT_EQ(found, victims);
    ++asked;
  }
  std::uint64_t fingerprint() const override { return inner_->fingerprint(); }

  std::uint64_t asked = 0;

 private:
  std::unique_ptr<Policy> inner_;
  ColdestVictims victims_;
};

TEST(ColdestVictimsTest, AreThoseOfALoopOverAll) {
  std::uint64_t asked = 0;
  for (std::uint64_t seed = 0; seed < case_count(400); ++seed) {
    const RandomCase random = random_case(seed, {.policy = "random"});
    BothWays policy(random.make());
    try {
      simulate(random.program, random.machine, policy, random.limits);
    } catch (const Error&) {  // of the machine, or of what the random policy insists on
    }
    ASSERT_FALSE(HasFailure()) << random.describe();
    asked += policy.asked;
  }
  EXPECT_GT(asked, 1000u);
}

}  // namespace
}  // namespace tencache
