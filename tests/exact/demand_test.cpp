// What a trace asks of memory, by hand.
#include "traces/demand.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

constexpr auto role = [](Role r) { return static_cast<std::size_t>(r); };

// w and u stay (10 and 5), a lives over ops 0 to 2 (100), b over op 1 only (1000), c over ops 2 and 3 (20).
Trace small_trace() {
  Trace trace;
  const TensorId w = trace.add_tensor("w", 10, Role::parameter, true);
  trace.add_tensor("unused", 5, Role::input, true);
  const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
  const TensorId b = trace.add_tensor("b", 1000, Role::workspace, false);
  const TensorId c = trace.add_tensor("c", 20, Role::gradient, false);
  const auto op = [&](std::vector<TensorId> reads, std::vector<TensorId> writes, Device device = Device::gpu) {
    Op o;
    o.device = device;
    o.duration_ns = 1;
    trace.add_op(o, reads, writes);
  };
  op({w}, {a});
  op({a}, {a, b}, Device::cpu);
  op({a, w}, {c});
  op({c, w}, {w});
  return trace;
}

TEST(Demand, IsWhatIsAliveAtEachOp) {
  const std::vector<Demand> demands = demands_of(small_trace());
  ASSERT_EQ(demands.size(), 1u);
  const Demand& demand = demands[0];
  EXPECT_EQ(demand.alive, (std::vector<Bytes>{115, 1115, 135, 35}));
  EXPECT_EQ(demand.persistent.bytes, 15u);
  EXPECT_EQ(demand.peak.bytes, 1115u);
  EXPECT_EQ(demand.peak.op, 1u);
  EXPECT_EQ(demand.peak.by_role[role(Role::workspace)], 1000u);
  EXPECT_EQ(demand.peak.by_role[role(Role::activation)], 100u);
  EXPECT_EQ(demand.peak.by_role[role(Role::gradient)], 0u);
  // The CPU's op touches more, but not on the GPU.
  EXPECT_EQ(demand.largest_gpu_op.bytes, 130u);
  EXPECT_EQ(demand.largest_gpu_op.op, 2u);
  EXPECT_EQ(demand.first_above(114), 0u);
  EXPECT_EQ(demand.first_above(115), 1u);
  EXPECT_EQ(demand.first_above(1115), none);
  EXPECT_EQ(alive_at(small_trace(), 2).bytes, 135u);
  // In whole pages of 64: w and u 64 each, a 128, b 1024.
  EXPECT_EQ(demands_of(small_trace(), 64)[0].alive, (std::vector<Bytes>{256, 1280, 320, 192}));
}

// a until op 3, b until op 2.
TEST(Demand, WhatIsFreedLaterIsAliveUntilThen) {
  const Trace before = small_trace();
  Trace trace = before;
  trace.ops.clear();
  for (const Op& op : before.ops) {
    const std::size_t index = trace.ops.size();
    const std::vector<TensorId> frees = index == 3 ? std::vector<TensorId>{2} : std::vector<TensorId>{3};
    trace.add_op(op, before.reads(op), before.writes(op), index >= 2 ? frees : std::vector<TensorId>());
  }
  EXPECT_EQ(demands_of(trace)[0].alive, (std::vector<Bytes>{115, 1115, 1135, 135}));
  EXPECT_EQ(demands_of(trace)[0].peak.op, 2u);
  EXPECT_EQ(alive_at(trace, 3).bytes, 135u);
  EXPECT_EQ(trace.deaths(), (std::vector<OpIndex>{3, none, 3, 2, 3}));
}

// A policy may run it on the CPU, so that it bounds no policy's GPU memory.
TEST(Demand, PlaceableOpIsNoLargestGpuOp) {
  Trace trace = small_trace();
  trace.ops[2].placeable = true;  // a, w, c: 130 bytes
  const Demand demand = demands_of(trace).front();
  EXPECT_EQ(demand.largest_gpu_op.bytes, 110u);
  EXPECT_EQ(demand.largest_gpu_op.op, 0u);
  for (Op& op : trace.ops) op.placeable = true;
  EXPECT_EQ(demands_of(trace).front().largest_gpu_op.bytes, 0u);
  EXPECT_EQ(demands_of(trace).front().largest_gpu_op.op, none);
}

TEST(Demand, IsCountedForEachRank) {
  Trace trace = small_trace();
  const TensorId other = trace.add_tensor("other", 7, Role::parameter, true);
  Op op;
  op.rank = 1;
  op.duration_ns = 1;
  trace.add_op(op, std::vector<TensorId>{other}, {});
  const std::vector<Demand> demands = demands_of(trace);
  ASSERT_EQ(demands.size(), 2u);
  EXPECT_EQ(demands[0].peak.bytes, 1115u);
  EXPECT_EQ(demands[1].peak.bytes, 7u);
  EXPECT_EQ(demands[1].peak.op, 4u);
  EXPECT_EQ(demands[1].ops, (std::vector<OpIndex>{4}));
}

}  // namespace
}  // namespace tencache
