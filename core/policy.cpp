#include "core/policy.h"

namespace tencache {

void Policy::prepare(const Trace&, const MachineSpec&, const RehearseTrace&) {}
Layout Policy::layout(const MachineSpec&, const Program*) const { return {}; }
void Policy::on(const Event&, const View&, Actions&) {}
void Policy::place(const Trace&, const MachineSpec&, std::vector<Device>&) const {}
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
