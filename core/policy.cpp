#include "core/policy.h"

namespace tencache {

std::string_view to_string(EventKind kind) {
  constexpr std::string_view texts[] = {"profile_ready",    "iteration_begin", "iteration_end",  "module_begin",
                                        "module_end",       "op_issued",       "op_ready",       "op_done",
                                        "transfer_done",    "refused",         "tensor_created", "tensor_freed",
                                        "schedule_deviated"};
  return texts[static_cast<std::size_t>(kind)];
}

std::string_view to_string(Refusal refusal) {
  constexpr std::string_view texts[] = {"none", "stale", "no_room", "io_error"};
  return texts[static_cast<std::size_t>(refusal)];
}

std::string_view to_string(Verb verb) {
  constexpr std::string_view texts[] = {"fetch", "evict", "clean", "drop", "cancel", "hold"};
  return texts[static_cast<std::size_t>(verb)];
}

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
