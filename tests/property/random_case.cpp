#include "tests/property/random_case.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/schedule.h"
#include "policies/registry.h"

namespace tencache {
namespace {

volatile std::uint64_t current_seed = 0;

void print_seed(int) {
  std::fprintf(stderr, "the random case under way has seed %llu\n", static_cast<unsigned long long>(current_seed));
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
}

// Asks for anything at any time, also for what does not exist.
class RandomPolicy final : public Policy {
 public:
  RandomPolicy(std::uint64_t seed, std::uint64_t op_count) : random_(seed ^ 0x706f6c696379), op_count_(op_count) {
    quiet_ = random_.between(1, 6);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (!random_.one_in(event.kind == EventKind::refused ? 20 : quiet_)) return;
    if (view.memory.tensor_count() == 0) return;  // a live program begins without any
    for (std::uint64_t count = random_.between(1, 3); count > 0; --count) actions.push(action(view));
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (random_.one_in(2)) {
      coldest_victims(request, view, victims);
      return;
    }
    for (std::uint64_t count = random_.below(4); count > 0; --count) {
      victims.push_back(static_cast<ChunkId>(random_.below(view.memory.chunk_total() + 2)));
    }
  }

  std::uint64_t fingerprint() const override { return ++calls_; }  // never in a steady state

 private:
  Action action(const View& view) {
    Action action;
    action.verb = static_cast<Verb>(random_.below(6));
    action.tensor = static_cast<TensorId>(random_.below(view.memory.tensor_count() + (random_.one_in(20) ? 3 : 0)));
    action.tier = random_.one_in(2)
                      ? TierId{0}
                      : static_cast<TierId>(random_.below(view.memory.tier_count() + (random_.one_in(20) ? 2 : 0)));
    if (random_.one_in(2))
      action.destination = static_cast<TierId>(random_.below(view.memory.tier_count() + (random_.one_in(20) ? 2 : 0)));
    action.urgent = random_.one_in(4);
    if (random_.one_in(3)) action.chunk = static_cast<std::uint32_t>(random_.below(4));
    if (random_.one_in(3))
      action.not_before = static_cast<OpIndex>(random_.below(op_count_ + (random_.one_in(20) ? 4 : 0)));
    action.op = static_cast<OpIndex>(random_.below(op_count_ + 1));
    if (action.verb == Verb::hold && !random_.one_in(4)) action.verb = Verb::fetch;
    return action;
  }

  Random random_;
  std::uint64_t op_count_;
  std::uint64_t quiet_ = 1;
  mutable std::uint64_t calls_ = 0;
};

// A policy of the registry with the case's layout.
class WithLayout final : public Policy {
 public:
  WithLayout(std::unique_ptr<Policy> inner, const Layout& layout) : inner_(std::move(inner)), layout_(layout) {}
  Requirements requirements() const override { return inner_->requirements(); }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    const Layout own = inner_->layout(machine, program);
    Layout layout = layout_;
    layout.unlimited_gpu = own.unlimited_gpu;
    if (own.initial != Layout{}.initial) layout.initial = own.initial;
    layout.forgets_overwritten |= own.forgets_overwritten;
    return layout;
  }
  void on(const Event& event, const View& view, Actions& actions) override { inner_->on(event, view, actions); }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    inner_->make_room(request, view, victims);
  }
  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    inner_->place(trace, machine, devices);
  }
  void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const override {
    inner_->order(trace, machine, groups);
  }
  void notes(std::vector<std::string>& notes) const override { inner_->notes(notes); }
  std::uint64_t fingerprint() const override { return inner_->fingerprint(); }

 private:
  std::unique_ptr<Policy> inner_;
  Layout layout_;
};

Trace random_trace(Random& random, Bytes unit) {
  Trace trace;
  for (const char* module : {"first", "second", "third"}) trace.names.intern(module);
  const std::uint64_t tensors = random.between(2, 9);
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const Bytes bytes =
        std::max<Bytes>(1, (random.one_in(4) ? random.between(1, 400) : random.between(20, 120)) * unit);
    const bool persistent = random.one_in(2);
    const auto role = static_cast<Role>(random.below(role_count));  // experts come with gates
    trace.add_tensor(std::string("t").append(std::to_string(i)), bytes, role == Role::expert ? Role::parameter : role,
                     persistent);
  }
  const bool cpu_ops = random.one_in(2);
  const std::uint64_t ops = random.between(2, 11);
  std::vector<bool> written(tensors, false);
  NameId module = 0;
  for (std::uint64_t i = 0; i < ops; ++i) {
    std::vector<TensorId> reads, writes;
    for (std::uint64_t count = random.between(1, 3); count > 0; --count) {
      const TensorId tensor = static_cast<TensorId>(random.below(tensors));
      const bool readable = trace.tensors[tensor].persistent || written[tensor];
      if (readable && !random.one_in(3)) reads.push_back(tensor);
      if (!readable || random.one_in(3)) writes.push_back(tensor);
    }
    for (const TensorId tensor : writes) written[tensor] = true;
    Op op;
    op.name = trace.names.intern(std::string("op").append(std::to_string(i)));
    if (random.one_in(3)) module = static_cast<NameId>(random.below(4));
    op.module = module == 0 ? 0 : module;
    op.device = cpu_ops && i > 0 && random.one_in(3) ? Device::cpu : Device::gpu;
    op.phase = op.device == Device::cpu ? Phase::optimizer : Phase::forward;
    op.duration_ns = static_cast<Nanoseconds>(random.one_in(6) ? 0 : random.between(1, 250));
    op.gap_before_ns = static_cast<Nanoseconds>(random.one_in(4) ? random.between(1, 60) : 0);
    trace.add_op(op, reads, writes);
  }
  trace.validate();
  return trace;
}

// Updates at the end, some in groups that may be reordered; some ops may be ones of the optimizer that run anywhere.
void add_optimizer(Random& random, Trace& trace, Bytes unit) {
  const bool reorderable = random.one_in(2);
  const std::uint64_t count = random.between(1, 6);
  const std::size_t tensors = trace.tensors.size();
  std::vector<bool> written(tensors, false);
  for (const Op& op : trace.ops) {
    for (const TensorId tensor : trace.writes(op)) written[tensor] = true;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const TensorId state = trace.add_tensor(std::string("state").append(std::to_string(i)),
                                            random.between(20, 200) * unit, Role::optimizer_state, true);
    std::vector<TensorId> reads = {state}, writes = {state};
    for (std::uint64_t more = random.below(3); more > 0; --more) {
      const TensorId tensor = static_cast<TensorId>(random.below(tensors));
      const bool readable = trace.tensors[tensor].persistent || written[tensor];
      if (readable) reads.push_back(tensor);
      if (!readable || random.one_in(2)) writes.push_back(tensor);
    }
    Op op;
    op.name = trace.names.intern(std::string("update").append(std::to_string(i)));
    op.phase = Phase::optimizer;
    op.device = random.one_in(5) ? Device::cpu : Device::gpu;
    op.reorderable = reorderable && !random.one_in(6);
    op.group = static_cast<std::int32_t>(op.reorderable ? i / 2 : i);
    op.placeable = random.one_in(2);
    op.duration_ns = static_cast<Nanoseconds>(random.below(120));
    op.gap_before_ns = static_cast<Nanoseconds>(random.one_in(4) ? random.between(1, 30) : 0);
    trace.add_op(op, reads, writes);
  }
  // Half of the cases wait for memory rather than compute.
  const Nanoseconds faster = random.one_in(2) ? 1 : static_cast<Nanoseconds>(random.between(5, 40));
  for (Op& op : trace.ops) op.duration_ns /= faster, op.gap_before_ns /= faster;
  trace.validate();
}

// Ops that decide which experts others read, of one layer or two.
void add_gates(std::uint64_t seed, Trace& trace, Bytes unit) {
  Random random(seed ^ 0x6761746573);
  std::array<std::vector<TensorId>, 2> experts;
  std::array<NameId, 2> layers{};
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    layers[layer] = trace.names.intern(name);
    for (std::uint64_t i = 0, count = random.between(1, 4); i < count; ++i) {
      const std::string expert = name + ".expert." + std::to_string(i);
      experts[layer].push_back(trace.add_tensor(expert + ".up", random.between(10, 90) * unit, Role::expert, true));
      if (random.one_in(2)) {
        experts[layer].push_back(trace.add_tensor(expert + ".down", random.between(10, 90) * unit, Role::expert, true));
      }
    }
  }
  Trace gated = trace;
  gated.ops.clear();
  gated.accesses.clear();
  std::array<OpIndex, 2> gates{none, none};
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    Op op = trace.ops[index];
    std::vector<TensorId> reads(trace.reads(op).begin(), trace.reads(op).end());
    const std::size_t layer = random.below(2);
    if (random.one_in(3) && op.stream == OpStream::compute) {
      gates[layer] = index;
      op.module = layers[layer];
    } else if (gates[layer] != none && !random.one_in(3) && op.stream == OpStream::compute) {
      op.detail = gated.add_detail({.revealed_by = gates[layer]});
      for (std::uint64_t count = random.between(0, 2); count > 0; --count) {
        reads.push_back(experts[layer][random.below(experts[layer].size())]);
      }
    }
    gated.add_op(op, reads, trace.writes(trace.ops[index]), trace.frees(trace.ops[index]));
  }
  trace = std::move(gated);
  trace.validate();
}

// In a quarter of the cases some GPU ops are of the communication stream.
void put_beside(std::uint64_t seed, Trace& trace) {
  Random random(seed ^ 0x636f6d6d756e69);
  if (!random.one_in(4)) return;
  for (Op& op : trace.ops) {
    if (op.device == Device::gpu && !op.placeable && random.one_in(3)) op.stream = OpStream::communication;
  }
}

// In a quarter of the cases the program holds some tensors that it has written, until some op frees them: after their
// last use, or before.
void hold_longer(std::uint64_t seed, Trace& trace) {
  Random random(seed ^ 0x6672656573);
  if (!random.one_in(4)) return;
  std::vector<std::vector<TensorId>> frees(trace.ops.size());
  std::vector<bool> seen(trace.tensors.size(), false);
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    for (const TensorId tensor : trace.writes(trace.ops[op])) {
      if (seen[tensor] || trace.tensors[tensor].persistent || random.one_in(3)) continue;
      seen[tensor] = true;
      const auto by = static_cast<OpIndex>(random.between(op, trace.ops.size() - 1));
      if (trace.ops[by].stream == OpStream::compute) frees[by].push_back(tensor);
    }
  }
  Trace held = trace;
  held.ops.clear();
  held.accesses.clear();
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    const Op& before = trace.ops[op];
    held.add_op(before, trace.reads(before), trace.writes(before), frees[op]);
  }
  held.validate();
  trace = std::move(held);
}

// In an eighth of the cases some tensors are stored in a smaller format.
void store_otherwise(std::uint64_t seed, bool real_pages, Trace& trace) {
  Random random(seed ^ 0x73746f726564);
  if (real_pages || !random.one_in(8)) return;
  for (Tensor& tensor : trace.tensors) {
    if (random.one_in(3)) tensor.stored_bytes = random.between(1, tensor.bytes);
  }
}

// The most that one op needs at once in a tier, and all there is.
std::pair<Bytes, Bytes> demand(const Trace& trace) {
  const Schedule schedule(trace);
  Bytes largest = 0, all = 0;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    Bytes bytes = 0;
    for (const Use& use : schedule.uses(op)) bytes += trace.tensors[use.tensor].bytes;
    largest = std::max(largest, bytes);
  }
  for (const Tensor& tensor : trace.tensors) all += tensor.bytes;
  return {largest, all};
}

void add_link(MachineSpec& machine, Random& random, TierId from, TierId to) {
  Link link;
  link.name = std::to_string(from).append("to").append(std::to_string(to));
  link.from = from;
  link.to = to;
  link.bandwidth = random.between(200, 3000) * 1'000'000 + random.below(1000);
  if (random.one_in(2)) link.latency_ns = static_cast<Nanoseconds>(random.between(1, 40));
  for (std::uint8_t resource = 0; resource < machine.resources.size(); ++resource) {
    if (random.one_in(2)) link.uses.push_back(resource);
  }
  machine.links.push_back(link);
}

MachineSpec random_machine(Random& random, const Trace& trace, Bytes chunk_bytes, const CaseOptions& options) {
  const auto [largest, all] = demand(trace);
  MachineSpec machine;
  machine.name = "random";
  const bool three = random.one_in(2) || needs_nvme(options.policy);
  const Bytes granularity = options.real_pages ? 4 * KiB : Bytes{1} << (random.one_in(2) ? 0 : random.between(0, 5));
  const auto capacity = [&](Bytes least, Bytes most) {
    return (std::max<Bytes>(1, random.between(least, std::max(least, most))) + granularity - 1) / granularity *
               granularity +
           8 * granularity;
  };
  const Bytes tight = random.one_in(8) ? largest / 2 : largest;
  machine.tiers.push_back(
      {"gpu", TierKind::gpu, capacity(tight, random.one_in(2) ? all + granularity : largest * 3 / 2), granularity, {}});
  machine.tiers.push_back(
      {"cpu",
       TierKind::cpu,
       capacity(three ? largest : all, three && random.one_in(2) ? all / 2 : all * 2 + 16 * granularity),
       granularity,
       {}});
  if (three)
    machine.tiers.push_back(
        {"nvme", TierKind::nvme, random.one_in(4) ? capacity(all / 2, all * 2) : Bytes{1} << 30, granularity, {}});
  for (std::uint64_t count = random.below(4); count > 0; --count) {
    machine.resources.push_back({std::string("resource").append(std::to_string(count)),
                                 random.between(200, 3000) * 1'000'000 + random.below(1000)});
  }
  add_link(machine, random, 1, 0);
  add_link(machine, random, 0, 1);
  if (three) {
    const std::uint64_t kind = random.below(4);  // direct, staged, both, or direct and no way between CPU and NVMe
    if (kind != 1) {
      add_link(machine, random, 2, 0);
      add_link(machine, random, 0, 2);
    }
    if (kind != 3) {
      add_link(machine, random, 2, 1);
      add_link(machine, random, 1, 2);
    }
    if (kind == 1 || kind == 2) {
      Bytes chunk = chunk_bytes;
      for (const Tensor& tensor : trace.tensors) chunk = chunk_bytes == 0 ? std::max(chunk, tensor.bytes) : chunk_bytes;
      machine.staging.tier = 1;
      machine.staging.count = static_cast<std::uint32_t>(random.between(1, 4));
      machine.staging.bytes = (chunk + machine.staging.count - 1) / random.between(1, machine.staging.count) + 1;
      machine.staging.bytes =
          std::max<Bytes>(machine.staging.bytes, (chunk + machine.staging.count - 1) / machine.staging.count);
      if (options.real_pages) machine.staging.bytes = (machine.staging.bytes + 4095) / 4096 * 4096;
    }
    if (!options.real_pages && random.one_in(3)) {  // a second storage tier, on the same ways
      machine.tiers.push_back({"storage", TierKind::nvme, Bytes{1} << 30, granularity, {}});
      if (kind != 1) {
        add_link(machine, random, 3, 0);
        add_link(machine, random, 0, 3);
      }
      if (kind != 3) {
        add_link(machine, random, 3, 1);
        add_link(machine, random, 1, 3);
      }
    }
  }
  machine.initial_tier = static_cast<TierId>(random.one_in(5) ? 0 : random.between(1, machine.tiers.size() - 1));
  machine.cpu = {.adam_parameters_per_second = 1e9, .flops_per_second = 1e12, .bandwidth = 2 * byte_per_ns};
  machine.issue_ahead = options.deep_issue && random.one_in(4) ? 2 : 1;
  machine.copies_in_flight = random.one_in(3) ? 2 : 1;
  machine.validate();
  return machine;
}

// Another GPU's memory, the last tier. Without changes where the machine is a real one.
void add_peer(std::uint64_t seed, bool changes, RandomCase& made) {
  Random random(seed ^ 0x70656572);
  MachineSpec& machine = made.machine;
  const auto peer = static_cast<TierId>(machine.tiers.size());
  const Bytes capacity = machine.tiers[0].capacity * random.between(1, 4) / 2 + machine.tiers[0].granularity;
  machine.tiers.push_back({"peer", TierKind::gpu, capacity, machine.tiers[0].granularity, {}});
  add_link(machine, random, peer, 0);
  if (!random.one_in(4)) add_link(machine, random, 0, peer);
  if (!random.one_in(4)) add_link(machine, random, 1, peer);
  if (random.one_in(4)) add_link(machine, random, peer, 1);
  if (!made.layout.allocators.empty()) made.layout.allocators.emplace_back();
  if (changes) {
    CapacityOverTime& over_time = machine.tiers[peer].over_time;
    Nanoseconds at_ns = 0;
    for (std::uint64_t count = random.between(1, 5); count > 0; --count) {
      at_ns += static_cast<Nanoseconds>(random.between(1, 600));
      over_time.changes.push_back({at_ns, random.one_in(4) ? 0 : random.below(capacity + 1)});
    }
    if (random.one_in(2)) over_time.period_ns = at_ns + static_cast<Nanoseconds>(random.between(1, 300));
    made.layout.exclusive_copies = false;
  }
  machine.validate();
}

// A second SSD, and a CPU that may be slow.
void add_second_storage(Random& random, MachineSpec& machine) {
  machine.cpu.adam_parameters_per_second = static_cast<double>(random.between(1, 100)) * 1e7;
  if (machine.tiers.size() != 3 || random.one_in(2)) return;
  machine.tiers.push_back({"second", TierKind::nvme, Bytes{1} << 30, machine.tiers[2].granularity, {}});
  add_link(machine, random, 3, 0);
  add_link(machine, random, 0, 3);
  if (random.one_in(2)) add_link(machine, random, 3, 1);
  if (random.one_in(2)) add_link(machine, random, 1, 3);
  machine.validate();
}

// What only the simulator has: queues, stripes, bursts, ops that occupy resources, memory that is taken afresh.
void add_simulated_features(Random& random, RandomCase& made) {
  MachineSpec& machine = made.machine;
  for (Link& link : machine.links) {
    if (random.one_in(3)) link.queue_depth = static_cast<std::uint32_t>(random.between(2, 5));
    if (random.one_in(4)) {
      link.devices = static_cast<std::uint32_t>(random.between(2, 4));
      link.stripe_bytes = random.between(5, 60);
    }
    if (random.one_in(4)) {
      link.sustained_bandwidth = link.bandwidth / random.between(1, 5) + random.below(3);
      link.burst_bytes = random.below(300);
    }
  }
  for (auto& uses : machine.lane_uses) {
    for (std::uint8_t resource = 0; resource < machine.resources.size(); ++resource) {
      if (random.one_in(2)) uses.push_back(resource);
    }
  }
  for (Op& op : made.program.trace.ops) {
    if (random.one_in(2)) op.bytes = random.between(1, 400);
  }
  for (std::size_t tier = 0; tier < machine.tiers.size(); ++tier) {
    if (!random.one_in(4)) continue;
    made.layout.allocate_each[tier] = true;
    machine.tiers[tier].allocation = {.per_call_ns = static_cast<Nanoseconds>(random.below(30)),
                                      .bandwidth = random.one_in(3) ? 0 : random.between(1, 8) * 1'000'000'000,
                                      .power_of_two = random.one_in(2)};
  }
  if (random.one_in(4)) machine.host.per_transfer_ns = static_cast<Nanoseconds>(random.between(1, 30));
  machine.validate();
}

std::vector<AllocatorSpec> random_allocators(Random& random, const MachineSpec& machine, Bytes largest_chunk) {
  std::vector<AllocatorSpec> allocators;
  for (const Tier& tier : machine.tiers) {
    AllocatorSpec spec;
    spec.kind = static_cast<AllocatorKind>(random.below(5));
    const Bytes buffer = (largest_chunk + tier.granularity - 1) / tier.granularity * tier.granularity;
    const Bytes room = std::min<Bytes>(tier.capacity, Bytes{1} << 24);
    if (spec.kind == AllocatorKind::fixed_buffers) spec.classes = {{buffer, room / buffer}};
    if (spec.kind == AllocatorKind::size_classes) {
      const Bytes half = (buffer / 2 + tier.granularity - 1) / tier.granularity * tier.granularity;
      if (half == buffer || half == 0) {
        spec.classes = {{buffer, room / buffer}};
      } else {
        const std::uint64_t large = room / buffer * 2 / 3;
        spec.classes = {{buffer, large}, {half, (room - large * buffer) / half}};
      }
    }
    allocators.push_back(spec);
  }
  return allocators;
}

// Memory is tight enough that holes matter, and moving takes as long as copies do.
void make_movable(std::uint64_t seed, RandomCase& made) {
  Random random(seed ^ 0x6d6f7661626c65);
  made.layout.allocators.resize(made.machine.tiers.size());
  made.layout.allocators[0].kind = AllocatorKind::movable;
  Tier& gpu = made.machine.tiers[0];
  gpu.granularity = std::max<Bytes>(gpu.granularity, 512 << random.below(2));
  gpu.capacity = (gpu.capacity + gpu.granularity - 1) / gpu.granularity * gpu.granularity;
  for (Op& op : made.program.trace.ops) op.duration_ns *= 512, op.gap_before_ns *= 512;
  gpu.bandwidth = random.between(200, 20000) * 1'000'000 + random.below(1000);
}

}  // namespace

std::unique_ptr<Policy> random_policy(std::uint64_t seed, std::uint64_t op_count) {
  return std::make_unique<RandomPolicy>(seed, op_count);
}

std::unique_ptr<Policy> RandomCase::make() const {
  std::unique_ptr<Policy> inner;
  if (policy == "random") {
    inner = random_policy(seed, program.trace.ops.size());
  } else {
    inner = make_policy(policy, settings).policy;
  }
  return std::make_unique<WithLayout>(std::move(inner), layout);
}

std::string RandomCase::describe() const {
  std::ostringstream text;
  text << "seed " << seed << ", policy " << policy;
  for (const auto& [option, value] : settings) text << " " << option << "=" << value;
  text << ", chunk " << layout.chunk_bytes << (layout.exclusive_copies ? ", exclusive" : "")
       << (layout.promote ? "" : ", no promote") << (layout.use_touches ? "" : ", fifo") << ", free_dead "
       << static_cast<int>(layout.free_dead) << (layout.fallback_eviction ? "" : ", no fallback")
       << (layout.forgets_overwritten ? ", forgets" : "")
       << (layout.allocators.empty() ? std::string() : ", tier 0 " + std::string(to_string(layout.allocators[0].kind)))
       << (layout.start.empty() ? "" : ", start given") << "\n";
  text << "issue_ahead " << machine.issue_ahead << ", copies_in_flight " << machine.copies_in_flight
       << ", initial tier " << int{machine.initial_tier} << ", staging " << machine.staging.count << " x "
       << machine.staging.bytes << ", host " << machine.host.per_transfer_ns << " ns a transfer, runs ahead "
       << machine.run_ahead.ops << " ops " << machine.run_ahead.time_ns << " ns, " << machine.run_ahead.copies
       << " copies " << machine.run_ahead.copies_ns << " ns\n";
  for (const Tier& tier : machine.tiers)
    text << "tier " << tier.name << " " << tier.capacity << " granularity " << tier.granularity << " bandwidth "
         << tier.bandwidth << " allocation " << tier.allocation.per_call_ns << " ns, " << tier.allocation.bandwidth
         << (tier.allocation.power_of_two ? ", power of two\n" : "\n");
  for (std::size_t lane = 0; lane < machine.lane_uses.size(); ++lane) {
    text << "lane " << lane << " uses";
    for (const std::uint8_t resource : machine.lane_uses[lane]) text << " " << int{resource};
    text << "\n";
  }
  for (const Resource& resource : machine.resources)
    text << "resource " << resource.name << " " << resource.bandwidth << "\n";
  for (const Link& link : machine.links) {
    text << "link " << link.name << " " << link.bandwidth << " latency " << link.latency_ns << " uses";
    for (const std::uint8_t resource : link.uses) text << " " << int{resource};
    text << ", queue " << link.queue_depth << ", devices " << link.devices << " x " << link.stripe_bytes
         << ", sustained " << link.sustained_bandwidth << " after " << link.burst_bytes << "\n";
  }
  const Schedule schedule(program.trace);
  for (TensorId i = 0; i < program.trace.tensors.size(); ++i) {
    text << "tensor " << i << " " << program.trace.tensors[i].bytes << " " << to_string(program.trace.tensors[i].role)
         << (program.trace.tensors[i].persistent ? " persistent" : "") << "\n";
  }
  for (OpIndex i = 0; i < program.trace.ops.size(); ++i) {
    const Op& op = program.trace.ops[i];
    const char* const beside = op.stream == OpStream::communication ? " beside" : "";
    text << "op " << i << " " << to_string(op.device) << beside << " " << op.duration_ns << " ns gap "
         << op.gap_before_ns << " bytes " << op.bytes << ":";
    for (const Use& use : schedule.uses(i))
      text << " " << use.tensor << (use.read ? "r" : "") << (use.write ? "w" : "");
    for (const TensorId tensor : program.trace.frees(op)) text << " frees " << tensor;
    text << "\n";
  }
  return text.str();
}

const std::vector<std::string>& registered_policies() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const PolicyInfo& policy : list_policies()) list.push_back(policy.name);
    return list;
  }();
  return names;
}

bool needs_peer(const std::string& policy) { return policy == "harvest"; }

bool needs_nvme(const std::string& policy) { return policy == "flashneuron" || policy == "ssdtrain"; }

RandomCase random_case(std::uint64_t seed, const CaseOptions& options) {
  Random random(seed, options.choices);
  RandomCase made;
  made.seed = seed;
  const Bytes unit = options.real_pages || options.movable ? 512 : 1;
  made.program.trace = random_trace(random, unit);
  Random more(seed ^ 0x6f7074696d697a65);
  if (options.optimizer) add_optimizer(more, made.program.trace, unit);
  put_beside(seed, made.program.trace);
  hold_longer(seed, made.program.trace);
  if (options.gates) add_gates(seed, made.program.trace, unit);
  store_otherwise(seed, options.real_pages, made.program.trace);
  Layout& layout = made.layout;
  layout.chunk_bytes = options.movable || random.one_in(3) ? 0
                       : options.real_pages                ? 4 * KiB * random.between(1, 4)
                                                           : random.between(16, 80);
  layout.exclusive_copies = random.one_in(3);
  layout.promote = !random.one_in(3);
  layout.use_touches = !random.one_in(3);
  layout.free_dead = static_cast<FreeDead>(random.below(3));
  layout.fallback_eviction = !random.one_in(5);
  layout.blocking_step = random.one_in(4);
  made.machine = random_machine(random, made.program.trace, layout.chunk_bytes, options);
  if (options.optimizer) add_second_storage(more, made.machine);
  if (!options.exact_allocators) {
    Bytes largest = 1;
    for (const Tensor& tensor : made.program.trace.tensors) {
      largest = std::max(largest, layout.chunk_bytes == 0 ? tensor.bytes : std::min(tensor.bytes, layout.chunk_bytes));
    }
    layout.allocators = random_allocators(random, made.machine, largest);
  }
  if (options.movable) make_movable(seed, made);
  if (options.pieces) {
    Random pieces(seed ^ 0x706965636573);
    Staging& staging = made.machine.staging;
    staging.bytes = std::max<Bytes>(1, staging.bytes / pieces.between(2, 6));
  }
  // Drawn apart, so that the rest of the case is the same with and without.
  Random starts(seed ^ 0x737461727473);
  layout.forgets_overwritten = starts.one_in(3);
  if (starts.one_in(3)) {
    for (const Tensor& tensor : made.program.trace.tensors) {
      const Bytes chunk = layout.chunk_bytes == 0 ? tensor.bytes : layout.chunk_bytes;
      for (Bytes begin = 0; begin < tensor.bytes; begin += chunk) {
        layout.start.push_back(static_cast<std::uint8_t>(starts.below(1u << made.machine.tiers.size())));
      }
    }
  }
  Random phases(seed ^ 0x706861736573);
  std::vector<Op>& ops = made.program.trace.ops;
  const std::uint64_t first_backward = phases.one_in(3) ? ops.size() : phases.below(ops.size());
  for (std::uint64_t op = first_backward; op < ops.size(); ++op) {
    if (ops[op].device == Device::gpu) ops[op].phase = Phase::backward;
  }
  Random features(seed ^ 0x6665617475726573);
  if (!options.real_pages && features.one_in(2)) add_simulated_features(features, made);
  made.limits = {.max_iterations = random.between(1, 4), .until_steady = false, .ends_as_others = false};
  const std::vector<std::string>& policies = registered_policies();
  made.policy = !options.policy.empty() ? options.policy
                : random.one_in(3)      ? "random"
                                        : policies[random.below(policies.size())];
  if (needs_nvme(made.policy) && made.machine.tiers.size() < 3) made.policy = "random";
  if (needs_peer(made.policy) && options.real_pages) made.policy = "random";
  if (options.changing || needs_peer(made.policy)) add_peer(seed, options.changing || random.one_in(2), made);
  // The two that have a mode for it, and one that acts at the worst moments.
  const bool simulates_g10 = made.policy == "g10" || made.policy == "deepum" || made.policy == "random";
  layout.overlap_faults = options.optimizer && simulates_g10 && made.machine.issue_ahead == 1 && more.one_in(2);
  made.settings = options.settings;
  if (options.run_ahead) {
    Random ahead(seed ^ 0x6168656164);
    const Nanoseconds longer = options.movable ? 512 : 1;
    made.machine.run_ahead = {.ops = static_cast<std::uint32_t>(ahead.between(1, ahead.one_in(2) ? 3 : 20)),
                              .time_ns = static_cast<Nanoseconds>(ahead.between(1, 1000)) * longer,
                              .copies = static_cast<std::uint32_t>(ahead.between(1, 3)),
                              .copies_ns = static_cast<Nanoseconds>(ahead.below(200)) * longer};
    if (ahead.one_in(3)) {
      for (Op& op : ops) op.issue_ns = static_cast<Nanoseconds>(ahead.below(60)) * longer;
    }
  }
  return made;
}

std::uint64_t case_count(std::uint64_t count) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  count = (count + 3) / 4;
#endif
  const char* const factor = std::getenv("TENCACHE_CASES");
  return count * (factor == nullptr ? 1 : std::max<std::uint64_t>(1, std::strtoull(factor, nullptr, 10)));
}

SeedOnAbort::SeedOnAbort(std::uint64_t seed) {
  current_seed = seed;
  std::signal(SIGABRT, print_seed);
}

SeedOnAbort::~SeedOnAbort() { std::signal(SIGABRT, SIG_DFL); }

}  // namespace tencache
