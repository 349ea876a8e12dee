#include "core/policy.h"

namespace tencache {

std::vector<AllocatorSpec> allocators_of(const MachineSpec& machine, const Layout& layout) {
  std::vector<AllocatorSpec> allocators = layout.allocators;
  allocators.resize(machine.tiers.size());
  for (TierId tier = 0; tier < allocators.size(); ++tier) {
    AllocatorKind& kind = allocators[tier].kind;
    if (kind == AllocatorKind::exact) kind = machine.tiers[tier].allocator;
    if (kind == AllocatorKind::movable && layout.unlimited_gpu) kind = AllocatorKind::exact;
  }
  return allocators;
}

void Policy::prepare(const Trace&, const MachineSpec&, const RehearseTrace&) {}
void Policy::recompute(const Trace&, const MachineSpec&, std::vector<RecomputeLevel>&) const {}
Layout Policy::layout(const MachineSpec&, const Program*) const { return {}; }
void Policy::on(const Event&, const View&, Actions&) {}
void Policy::place(const Trace&, const MachineSpec&, std::vector<Device>&) const {}
std::unique_ptr<DecidedPlaces> Policy::place_decided(const Trace&, const MachineSpec&) const { return nullptr; }
void Policy::read_in_place(const Trace&, const MachineSpec&, std::vector<bool>&) const {}
void Policy::order(const Trace&, const MachineSpec&, std::vector<std::int32_t>&) const {}
void Policy::notes(std::vector<std::string>&) const {}

void Policy::make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) {
  coldest_victims(request, view, victims);
}

void coldest_victims(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) {
  const Residency& memory = view.memory;
  Bytes found = 0;
  for (ChunkId chunk = memory.coldest(request.tier); chunk != none && found < request.bytes;
       chunk = memory.warmer(chunk, request.tier)) {
    if (!memory.evictable(chunk, request.tier)) continue;
    victims.push_back(chunk);
    found += memory.footprint(chunk, request.tier);
  }
}

}  // namespace tencache
