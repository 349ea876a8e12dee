// Hand-made machines and traces whose times can be worked out on paper: links of 1 GB/s move a byte in a nanosecond.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/machine.h"
#include "sim/sim_machine.h"

namespace tencache {

inline constexpr BytesPerSecond byte_per_ns = 1'000'000'000;

// GPU, CPU and, if wanted, NVMe; every direct link at 1 GB/s, nothing shared, no latency. Persistent tensors start on
// the CPU.
inline MachineSpec small_machine(Bytes gpu_bytes, bool nvme = false) {
  MachineSpec machine;
  machine.name = "small";
  machine.tiers = {{"gpu", TierKind::gpu, gpu_bytes, 1, {}}, {"cpu", TierKind::cpu, 1'000'000, 1, {}}};
  machine.links = {{"h2d", 1, 0, byte_per_ns, 0, {}}, {"d2h", 0, 1, byte_per_ns, 0, {}}};
  if (nvme) {
    machine.tiers.push_back({"nvme", TierKind::nvme, 1'000'000, 1, {}});
    machine.links.push_back({"read", 2, 0, byte_per_ns, 0, {}});
    machine.links.push_back({"write", 0, 2, byte_per_ns, 0, {}});
  }
  machine.initial_tier = 1;
  return machine;
}

// With an SSD of a quarter of the links' bandwidth, where persistent tensors start.
inline MachineSpec small_machine_with_slow_storage(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes, true);
  machine.links[2].bandwidth = machine.links[3].bandwidth = byte_per_ns / 4;
  machine.initial_tier = 2;
  machine.validate();
  return machine;
}

// A link of 1 GB/s or other, nothing shared.
inline Link make_link(const char* name, TierId from, TierId to, BytesPerSecond bandwidth = byte_per_ns) {
  Link link;
  link.name = name;
  link.from = from;
  link.to = to;
  link.bandwidth = bandwidth;
  return link;
}

// The same tiers in sizes of models, without links: GPU, CPU memory, storage. Persistent tensors start on the CPU.
inline MachineSpec three_tiers(Bytes gpu, Bytes cpu, Bytes nvme) {
  MachineSpec machine;
  machine.name = "box";
  machine.tiers = {
      {"gpu", TierKind::gpu, gpu, 1, {}}, {"cpu", TierKind::cpu, cpu, 1, {}}, {"nvme", TierKind::nvme, nvme, 1, {}}};
  machine.initial_tier = 1;
  return machine;
}

// Of a module; placeable if it is the optimizer's.
inline Op make_op(Trace& trace, const std::string& name, const std::string& module, Phase phase,
                  Nanoseconds duration_ns) {
  Op op;
  op.name = trace.names.intern(name);
  op.module = trace.names.intern(module);
  op.phase = phase;
  op.placeable = phase == Phase::optimizer;
  op.duration_ns = duration_ns;
  return op;
}

// An op of so many nanoseconds.
inline OpIndex add_op(Trace& trace, Nanoseconds duration_ns, std::vector<TensorId> reads, std::vector<TensorId> writes,
                      Device device = Device::gpu, Nanoseconds gap_ns = 0) {
  Op op;
  op.name = trace.names.intern(std::string("op").append(std::to_string(trace.ops.size())));
  op.duration_ns = duration_ns;
  op.gap_before_ns = gap_ns;
  op.device = device;
  return trace.add_op(op, reads, writes);
}

// Ten kernels: f0 … f4, b4 … b0. f(i) reads a(i-1) and writes a(i), b(i) reads a(i): a(i) is alive from f(i)
// to b(i), and not used from f(i+2) until then. Periods: a0 kernels [2, 9), a1 [3, 8), a2 [4, 7), a3 [5, 6).
inline Trace five_layers(Nanoseconds kernel_ns, Bytes tensor_bytes) {
  Trace trace;
  std::vector<TensorId> a;
  for (int i = 0; i < 5; ++i) {
    a.push_back(trace.add_tensor(std::string("a").append(std::to_string(i)), tensor_bytes, Role::activation, false));
  }
  for (std::size_t i = 0; i < 5; ++i) {
    add_op(trace, kernel_ns, i == 0 ? std::vector<TensorId>{} : std::vector{a[i - 1]}, {a[i]});
  }
  for (std::size_t i = 5; i-- > 0;) add_op(trace, kernel_ns, {a[i]}, {});
  return trace;
}

// A policy that is a layout and a function.
class ScriptedPolicy final : public Policy {
 public:
  using Script = std::function<void(const Event&, const View&, Actions&)>;
  explicit ScriptedPolicy(Layout layout, Script script = {}) : layout_(std::move(layout)), script_(std::move(script)) {}
  Layout layout(const MachineSpec&, const Program*) const override { return layout_; }
  void on(const Event& event, const View& view, Actions& actions) override {
    if (script_) script_(event, view, actions);
  }

 private:
  Layout layout_;
  Script script_;
};

inline Layout whole_tensors() {
  Layout layout;
  layout.chunk_bytes = 0;
  return layout;
}

struct SmallRun {
  RunResult result;
  std::vector<Span> ops;  // in order of their end
  std::vector<Span> transfers;
};

inline SmallRun run_small(const MachineSpec& machine, const Trace& trace, std::uint64_t iterations = 1,
                          Layout layout = whole_tensors(), ScriptedPolicy::Script script = {}) {
  machine.validate();
  trace.validate();
  const Program program{trace, {}};
  ScriptedPolicy policy(std::move(layout), std::move(script));
  SimMachine simulated(machine);
  Timeline timeline;
  Engine engine(machine, simulated, policy, &program, {.timeline = &timeline, .log = nullptr, .on_iteration = {}});
  SmallRun run;
  run.result = engine.run({.max_iterations = iterations, .until_steady = false});
  for (const Span& span : timeline.spans) {
    if (span.kind == SpanKind::op) run.ops.push_back(span);
    if (span.kind == SpanKind::transfer) run.transfers.push_back(span);
  }
  return run;
}

// To derive machines from that do one thing differently.
class OtherMachine : public Machine {
 public:
  explicit OtherMachine(Machine& inner) : inner_(inner) {}
  Fence submit(const CopyCommand& copy, Tag tag) override { return inner_.submit(copy, tag); }
  Fence execute(const OpCommand& op, Tag tag) override { return inner_.execute(op, tag); }
  void cancel(Fence fence) override { inner_.cancel(fence); }
  Nanoseconds now() const override { return inner_.now(); }
  bool wait(Completion& completion) override { return inner_.wait(completion); }
  Nanoseconds move(const MoveCommand& move) override { return inner_.move(move); }
  bool moves() const override { return inner_.moves(); }

 private:
  Machine& inner_;
};

}  // namespace tencache
