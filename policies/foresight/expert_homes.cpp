#include "policies/foresight/expert_homes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "core/cpu_op.h"
#include "policies/footprint.h"

namespace tencache {
namespace {

// What is copied, and leaves for it.
Bytes on_its_way(const Trace& trace, const MachineSpec& machine, const Experts& experts) {
  return largest_expert(trace, experts) + std::min<Bytes>(64 * MiB, machine.tiers[0].capacity / 64);
}

std::size_t home_count(const Trace& trace, const MachineSpec& machine, const Experts& experts) {
  return experts_that_fit(trace, machine, experts, on_its_way(trace, machine, experts));
}

// Else what is at home on the GPU has no copy below.
bool cpu_has_all(const Trace& trace, const MachineSpec& machine) {
  return persistent_bytes(trace) <= machine.tiers[machine.tier_of(Device::cpu)].capacity;
}

class PlacesByHomes final : public DecidedPlaces {
 public:
  PlacesByHomes(const Trace& trace, const MachineSpec& machine)
      : trace_(trace),
        machine_(machine),
        experts_(trace),
        homes_(trace, machine, experts_),
        cpu_has_all_(cpu_has_all(trace, machine)) {
    const TierId cpu = machine.tier_of(Device::cpu);
    BytesPerSecond rate = unlimited;
    for (const LinkId link : machine.path_between(cpu, 0)) {
      rate = std::min(rate, machine.links[link].bandwidth);
      there_and_back_ns_ += machine.links[link].latency_ns;
    }
    for (const LinkId link : machine.path_between(0, cpu)) there_and_back_ns_ += machine.links[link].latency_ns;
    bytes_per_ns_ = static_cast<double>(rate) * 1e-9;
  }

  void place(OpIndex gate, std::span<const DecidedOp> decided, std::span<Device> devices) override {
    std::vector<Chosen> chosen = chosen_of(decided);
    place(chosen);
    std::vector<ExpertHomes::Run> runs;
    for (const Chosen& one : chosen) {
      for (std::size_t i = one.ops.begin; i < one.ops.end; ++i) {
        if (one.on_cpu) devices[i] = Device::cpu;
        for (const TensorId weight : decided[i].experts) {
          runs.push_back({weight, trace_.ops[decided[i].op].flops, !one.on_cpu});
        }
      }
    }
    homes_.chosen(gate, runs, experts_);
  }

 private:
  struct Chosen {
    ExpertOps ops;
    bool movable = true;  // to the CPU
    bool on_cpu = false;
    Nanoseconds copied_ns = 0;  // 0: the GPU has it
    Nanoseconds gpu_ns = 0, cpu_ns = 0;
  };

  std::vector<Chosen> chosen_of(std::span<const DecidedOp> decided) const {
    std::vector<Chosen> chosen;
    for (const ExpertOps& ops : experts_of(decided, trace_, experts_)) {
      Chosen one{.ops = ops, .movable = ops.place.layer != none};
      if (one.movable && !homes_.has(ops.place)) {
        const Bytes bytes = bytes_of(trace_, experts_.weights_in(ops.place.layer, ops.place.expert));
        one.copied_ns = std::max<Nanoseconds>(1, static_cast<Nanoseconds>(static_cast<double>(bytes) / bytes_per_ns_));
      }
      for (std::size_t i = ops.begin; i < ops.end; ++i) {
        const Op& op = trace_.ops[decided[i].op];
        const auto on_cpu = duration_on_cpu(trace_, op, machine_);
        one.movable &= on_cpu.has_value();
        one.gpu_ns += op.duration_ns;
        one.cpu_ns += on_cpu.value_or(0);
      }
      chosen.push_back(one);
    }
    return chosen;
  }

  // The gate's experts run in their order on each device, those that are copied arrive in theirs.
  Nanoseconds end_of(std::span<const Chosen> chosen) const {
    Nanoseconds link = 0, gpu = 0, cpu = 0;
    for (const Chosen& one : chosen) {
      if (one.on_cpu) {
        cpu += one.cpu_ns;
      } else {
        link += one.copied_ns;
        gpu = std::max(gpu, one.copied_ns == 0 ? 0 : link) + one.gpu_ns;
      }
    }
    return std::max(gpu, cpu == 0 ? 0 : cpu + there_and_back_ns_);
  }

  // One after the other changes its device, as long as all that did make the end come before that of fewer.
  void move(std::span<Chosen* const> list, std::span<const Chosen> all) const {
    Nanoseconds least = end_of(all);
    std::size_t moved = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i]->on_cpu ^= true;
      if (const Nanoseconds end = end_of(all); end < least) {
        least = end;
        moved = i + 1;
      }
    }
    for (Chosen* one : list.subspan(moved)) one->on_cpu ^= true;
  }

  void place(std::vector<Chosen>& chosen) const {
    std::vector<Chosen*> missing, there;
    for (Chosen& one : chosen) {
      if (!one.movable) continue;
      one.on_cpu = one.copied_ns != 0;
      if (one.on_cpu || cpu_has_all_) (one.on_cpu ? missing : there).push_back(&one);
    }
    std::ranges::stable_sort(missing, std::ranges::greater{}, &Chosen::cpu_ns);
    std::ranges::stable_sort(there, std::ranges::less{}, &Chosen::cpu_ns);
    move(missing, chosen);
    move(there, chosen);
  }

  const Trace& trace_;
  const MachineSpec& machine_;
  const Experts experts_;
  ExpertHomes homes_;
  const bool cpu_has_all_;
  double bytes_per_ns_ = 0;
  Nanoseconds there_and_back_ns_ = 0;  // latencies
};

}  // namespace

bool ExpertHomes::apply(const Trace& trace, const MachineSpec& machine) {
  const TierId cpu = machine.tier_of(Device::cpu);
  if (cpu == no_tier || machine.path_between(cpu, 0).empty()) return false;
  if (!cpu_has_all(trace, machine)) {
    const Experts experts(trace);
    const Bytes at_home = home_count(trace, machine, experts) * largest_expert(trace, experts);
    if (persistent_bytes(trace) > machine.tiers[cpu].capacity + at_home) return false;
  }
  return std::ranges::any_of(trace.ops, [&](const Op& op) {
    return trace.detail(op).revealed_by != none && op.placeable && forward_duration_on_cpu(trace, op, machine);
  });
}

ExpertHomes::ExpertHomes(const Trace& trace, const MachineSpec& machine, const Experts& experts)
    : at_start_(placed_evenly(experts, home_count(trace, machine, experts))), on_gpu_(at_start_) {
  for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) computed_.emplace_back(experts.count_in(layer), 0);
}

void ExpertHomes::chosen(OpIndex gate, std::span<const Run> runs, const Experts& experts) {
  if (last_gate_ != none && gate <= last_gate_) {
    on_gpu_ = at_start_;
    for (auto& layer : computed_) std::ranges::fill(layer, std::uint64_t{0});
  }
  last_gate_ = gate;
  const std::uint32_t number = experts.layer(gate);
  if (number == none) return;
  std::vector<std::uint64_t>& computed = computed_[number];
  std::vector<std::uint8_t>& on_gpu = on_gpu_[number];
  std::vector<std::uint8_t> there = on_gpu;
  for (const Run& run : runs) {
    const Experts::Place place = experts.place(run.weight);
    if (place.layer != number) continue;
    computed[place.expert] += run.flops;
    if (run.on_gpu) there[place.expert] = 1;
  }
  if (there == on_gpu) return;
  std::vector<std::uint32_t> kept;
  for (std::uint32_t expert = 0; expert < there.size(); ++expert) {
    if (there[expert] != 0) kept.push_back(expert);
  }
  std::ranges::stable_sort(kept, std::ranges::greater{},
                           [&](std::uint32_t expert) { return std::pair(computed[expert], on_gpu[expert]); });
  kept.resize(static_cast<std::size_t>(std::ranges::count(on_gpu, 1)));
  std::ranges::fill(on_gpu, std::uint8_t{0});
  for (const std::uint32_t expert : kept) on_gpu[expert] = 1;
}

void start_in_homes(const Trace& trace, const MachineSpec& machine, Layout& layout) {
  const Experts experts(trace);
  const ExpertHomes homes(trace, machine, experts);
  const bool in_both = cpu_has_all(trace, machine);
  const auto initial = static_cast<std::uint8_t>(machine.initial_tier == 0 ? 0 : 1u << machine.initial_tier);
  std::size_t chunk = 0;
  const bool known = !layout.start.empty();
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const Bytes bytes = trace.tensors[tensor].bytes;
    const std::size_t chunks = layout.chunk_bytes == 0 ? 1 : (bytes + layout.chunk_bytes - 1) / layout.chunk_bytes;
    if (!known) layout.start.insert(layout.start.end(), chunks, std::uint8_t{0});
    const Experts::Place place = experts.place(tensor);
    for (std::size_t i = chunk; place.layer != none && i < chunk + chunks; ++i) {
      std::uint8_t& tiers = layout.start[i];
      if (tiers == 0) tiers = initial;
      if (homes.has(place)) {
        tiers = static_cast<std::uint8_t>(in_both ? tiers | 1u : 1u);
      } else if (tiers != 1) {
        tiers &= static_cast<std::uint8_t>(~1u);
      }
    }
    chunk += chunks;
  }
}

std::unique_ptr<DecidedPlaces> place_by_homes(const Trace& trace, const MachineSpec& machine) {
  if (!has_gates(trace) || !ExpertHomes::apply(trace, machine)) return nullptr;
  return std::make_unique<PlacesByHomes>(trace, machine);
}

void place_drawn(const Trace& sealed, const MachineSpec& machine, Trace& drawn) {
  const std::unique_ptr<DecidedPlaces> places = place_by_homes(sealed, machine);
  if (!places) return;
  std::map<OpIndex, std::vector<DecidedOp>> decided;  // by gate
  std::vector<std::vector<TensorId>> experts(drawn.ops.size());
  for (OpIndex op = 0; op < drawn.ops.size(); ++op) {
    const OpIndex gate = drawn.detail(drawn.ops[op]).revealed_by;
    if (gate == none) continue;
    for (const TensorId tensor : drawn.reads(drawn.ops[op])) {
      if (drawn.tensors[tensor].role == Role::expert) experts[op].push_back(tensor);
    }
    decided[gate].push_back({op, experts[op]});
  }
  std::vector<Device> devices;
  for (const auto& [gate, ops] : decided) {
    devices.assign(ops.size(), Device::gpu);
    places->place(gate, ops, devices);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      Op& op = drawn.ops[ops[i].op];
      if (devices[i] != Device::cpu) continue;
      op.duration_ns = *duration_on_cpu(drawn, op, machine);
      op.device = Device::cpu;
    }
  }
}

}  // namespace tencache
