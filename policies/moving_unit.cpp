#include "policies/moving_unit.h"

#include "policies/footprint.h"

namespace tencache {

Bytes unit_that_moves(const MachineSpec& machine, Bytes chunk_bytes) {
  for (TierId tier = 1; chunk_bytes == 0 && tier < machine.tiers.size(); ++tier) {
    if (machine.path_between(0, tier).size() > 1 || machine.path_between(tier, 0).size() > 1) {
      return machine.staging.bytes;
    }
  }
  return chunk_bytes;
}

Bytes unit_of_whole_tensors(const MachineSpec& machine, const Program* program, Bytes chunk_bytes) {
  const TierId cpu = machine.tier_of(Device::cpu);
  if (chunk_bytes != 0 || program == nullptr || cpu == no_tier || unit_that_moves(machine, 0) == 0) return chunk_bytes;
  return persistent_bytes(program->trace) > machine.tiers[cpu].capacity ? machine.staging.all_bytes() : 0;
}

}  // namespace tencache
