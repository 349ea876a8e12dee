#include "sim/sim_machine.h"

#include "core/error.h"

namespace tencache {

Fence SimMachine::submit_disturbed(const CopyCommand& copy, Tag tag) {
  const MachineSpec& spec = world_.spec(rank_);
  const Link& link = spec.links[copy.link];
  CopyFault fault = faults_->next_copy(copy.link);
  if (fault.in_file == FaultKind::io_error) fault.failure = FaultKind::io_error;
  if (!fault.failure && spec.tiers[link.to].kind == TierKind::nvme) {
    if (fault.in_file == FaultKind::torn_write) {
      torn_.emplace(link.to, copy.chunk);
    } else {
      torn_.erase({link.to, copy.chunk});
    }
  }
  const bool torn = spec.tiers[link.from].checksums && torn_.contains({link.from, copy.chunk});
  if (!fault.failure && torn) fault.failure = FaultKind::torn_write;
  const Fence fence = world_.submit(rank_, copy, tag, fault);
  if (fault.failure) reasons_[fence] = faults_->reason(*fault.failure, copy.link);
  return fence;
}

std::uint64_t SimMachine::state() const {
  const std::uint64_t state = world_.state(rank_);
  return faults_ ? state ^ (faults_->asked() * 0x9e37'79b9'7f4a'7c15) : state;
}

std::string SimMachine::last_error() const {
  const auto reason = reasons_.find(world_.last_failed(rank_));
  return reason == reasons_.end() ? std::string() : reason->second;
}

void SimMachine::map(TensorId /*tensor*/, ChunkId /*chunk*/, Bytes /*begin*/, Bytes bytes, Place place,
                     MappedFor /*what*/) {
  if (!faults_) return;
  const Tier& tier = world_.spec(rank_).tiers[place.tier];
  if (tier.kind != TierKind::nvme) {
    faults_->next_room(place.tier, bytes);
    return;
  }
  const Bytes room = faults_->plan().disk_room(tier.capacity);
  if (room < tier.capacity && used_[place.tier] + bytes > room) {
    faults_->count(FaultKind::disk_full);
    throw Error("tier '" + tier.name + "': its disk has no room left for " + format_bytes(bytes) + " (injected)");
  }
  used_[place.tier] += bytes;
}

void SimMachine::unmap(TensorId /*tensor*/, ChunkId chunk, Bytes /*begin*/, Bytes bytes, Place place) {
  if (!faults_ || world_.spec(rank_).tiers[place.tier].kind != TierKind::nvme) return;
  used_[place.tier] -= bytes;
  torn_.erase({place.tier, chunk});
}

}  // namespace tencache
