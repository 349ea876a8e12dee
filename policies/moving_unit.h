// The unit in which tensors move between tiers.
#pragma once

#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"

namespace tencache {

// The unit in which tensors of any size can move: `chunk_bytes`, or, where that is 0 (whole tensors) and some tier is
// reached through staging buffers, one buffer.
Bytes unit_that_moves(const MachineSpec& machine, Bytes chunk_bytes);

// The same for policies that move whole tensors wherever they can: `chunk_bytes`, or, where that is 0, some tier is
// reached through staging buffers and the program's persistent tensors are more than CPU memory holds, all staging
// buffers together. So what passes them in one piece does, and a larger tensor moves in parts that fill them, one after
// the other. `program` may be null (not known yet): whole tensors.
Bytes unit_of_whole_tensors(const MachineSpec& machine, const Program* program, Bytes chunk_bytes);

// The engine moves whole tensors there, whatever the layout's unit is.
inline bool moves_whole_tensors(const MachineSpec& machine) {
  return machine.tiers[0].allocator == AllocatorKind::movable;
}

// What policies have in common that move whole tensors by a plan: what it missed is fetched on demand, and only that
// evicts, the coldest.
class SwapPolicy : public Policy {
 public:
  Layout layout(const MachineSpec& machine, const Program*) const override {
    Layout layout = layout_;
    layout.chunk_bytes = unit_that_moves(machine, layout.chunk_bytes);
    return layout;
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!request.prefetch) coldest_victims(request, view, victims);
  }

 protected:
  SwapPolicy() { layout_.chunk_bytes = 0; }
  Layout layout_;
};

}  // namespace tencache
