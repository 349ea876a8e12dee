#include "core/engine/engine_state.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace tencache {
namespace {

// Of a tensor's chunks in parts of `chunk_bytes`: where all of them start.
std::vector<std::uint8_t> start_of_whole_tensors(const std::vector<Tensor>& tensors, const Layout& layout) {
  std::vector<std::uint8_t> start;
  std::size_t chunk = 0;
  for (const Tensor& tensor : tensors) {
    std::uint8_t all = 0xff;
    for (Bytes begin = 0; begin < tensor.bytes; begin += layout.chunk_bytes, ++chunk) {
      all &= chunk < layout.start.size() ? layout.start[chunk] : std::uint8_t{0};
    }
    start.push_back(all);
  }
  return start;
}

// A chunk lies in one piece of tier 0 and can be moved there.
void lay_out_movable(const MachineSpec& spec, const Machine& machine, const Program* program, Layout& layout) {
  const std::string tier =
      "machine '" + spec.name + "': tier '" + spec.tiers[0].name + "' has the allocator 'movable', ";
  if (!machine.moves()) {
    throw Error(tier + "whose chunks this run cannot move; simulations can, and `run replay`");
  }
  if (machine.pretends() && spec.tiers[0].bandwidth == 0) {
    throw Error(tier + "and how long moving a chunk takes is not known: give the tier its memory's `bandwidth`");
  }
  if (layout.chunk_bytes != 0 && !layout.start.empty() && program != nullptr) {
    layout.start = start_of_whole_tensors(program->trace.tensors, layout);
  }
  layout.chunk_bytes = 0;
}

void check_second_copies(const MachineSpec& spec, const Machine& machine, TierId tier, const Layout& layout) {
  const std::string of = "machine '" + spec.name + "': tier '" + spec.tiers[tier].name + "' has capacity_over_time, ";
  if (!machine.pretends()) throw Error(of + "which only simulations follow; leave the key out");
  if (layout.exclusive_copies) {
    throw Error(of + "and under this policy a value has one copy, which must not lie there; take another policy");
  }
  if (layout.allocators[tier].kind != AllocatorKind::exact) {
    throw Error(of + "where the policy lays out buffers; take another policy, or a tier that stays as it is");
  }
}

Layout checked_layout(const MachineSpec& spec, const Machine& machine, Policy& policy, const Program* program) {
  Layout layout = policy.layout(spec, program);
  if (!layout.allocators.empty() && layout.allocators.size() != spec.tiers.size()) {
    throw Error("the policy lays out " + std::to_string(layout.allocators.size()) + " tiers, machine '" + spec.name +
                "' has " + std::to_string(spec.tiers.size()));
  }
  layout.allocators = allocators_of(spec, layout);
  for (TierId tier = 0; tier < spec.tiers.size(); ++tier) {
    if (spec.tiers[tier].allocator == AllocatorKind::caching && !machine.pretends()) {
      throw Error("machine '" + spec.name + "': tier '" + spec.tiers[tier].name +
                  "' has the allocator 'caching', which is for simulations: on hardware memory is mapped page by page; "
                  "leave the key out");
    }
    if (spec.tiers[tier].over_time.any()) check_second_copies(spec, machine, tier, layout);
    if (layout.allocators[tier].kind != AllocatorKind::movable) continue;
    if (tier != 0)
      throw Error("tier '" + spec.tiers[tier].name + "' is laid out as movable, which only a GPU's can be");
    lay_out_movable(spec, machine, program, layout);
  }
  if (layout.overlap_faults && machine.completes() == Completes::ordered) {
    throw Error(
        "machine '" + spec.name +
        "': overlap_faults lets an op run beside arrivals that it waits for, and a machine that runs ahead does "
        "not wait for arrivals; leave run_ahead or the option off");
  }
  if (layout.overlap_faults && (program == nullptr || !machine.pretends() || spec.issue_ahead != 1)) {
    throw Error("machine '" + spec.name +
                "': overlap_faults lets an op run before its data is there, which only a simulation that issues one op "
                "at a time can do; leave the option off");
  }
  return layout;
}

std::unique_ptr<const Program> seal(const Program* program, const Policy& policy) {
  if (program == nullptr || policy.oracle() || !has_gates(program->trace)) return nullptr;
  return std::make_unique<const Program>(Program{sealed(program->trace), program->changes});
}

std::unique_ptr<ProgramSource> source_of(const Program* program, const Program* sealed, const MachineSpec& spec,
                                         const Machine& machine, const Policy& policy, const Layout& layout) {
  if (program == nullptr) return std::make_unique<LiveProgram>(!policy.oracle());
  return std::make_unique<OwnedProgram>(*program, sealed != nullptr ? *sealed : *program, spec, machine,
                                        policy.requirements().governed, layout);
}

Route route_of(const MachineSpec& spec, TierId from, TierId to) {
  Route route;
  for (const LinkId link : spec.path_between(from, to)) {
    const BytesPerSecond bandwidth = spec.links[link].bandwidth;
    route.bandwidth = route.hops == 0 ? bandwidth : std::min(route.bandwidth, bandwidth);
    route.links[route.hops++] = link;
  }
  return route;
}

}  // namespace

EngineState::EngineState(const MachineSpec& spec_of_machine, Machine& machine_below, Policy& policy,
                         const Program* owned, Timeline* timeline)
    : spec(spec_of_machine),
      machine(machine_below),
      sealed(seal(owned, policy)),
      layout(checked_layout(spec, machine, policy, sealed ? sealed.get() : owned)),
      memory(spec, layout.allocators, layout.chunk_bytes, layout.unlimited_gpu),
      program(source_of(owned, sealed.get(), spec, machine, policy, layout)),
      transfers(spec),
      lanes(spec),
      ledger(moment, timeline, owned == nullptr, machine.completes()),
      copies(spec, machine, memory, *program, moment, timeline) {
  for (TierId from = 0; from < spec.tiers.size(); ++from) {
    for (TierId to = 0; to < spec.tiers.size(); ++to) routes[from][to] = route_of(spec, from, to);
  }
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) lanes[lane].used = program->uses(lane);
  if (owned == nullptr) return;
  ledger.follow(owned);
  memory.reserve(owned->trace.tensors);
  lives.reserve(owned->trace.tensors.size());
  for (const Tensor& tensor : owned->trace.tensors) {
    // A machine that moves real bytes moves them as they are.
    const Bytes stored = machine.pretends() ? tensor.stored_bytes : 0;
    lives.begin(memory.add_tensor(tensor.bytes, tensor.role, tensor.persistent, stored));
  }
  transfers.follow(memory.chunk_total());
}

}  // namespace tencache
