#include "traces/allocations.h"

#include <utility>

namespace tencache {

bool AddressedAllocations::allocate(std::uint64_t address, Bytes bytes, std::uint32_t stream) {
  if (!alive_.emplace(address, blocks_).second) return false;
  events_.push_back({AllocationEvent::Kind::allocate, blocks_++, stream, bytes});
  return true;
}

bool AddressedAllocations::release(std::uint64_t address) {
  const auto found = alive_.find(address);
  if (found == alive_.end()) return false;
  events_.push_back({AllocationEvent::Kind::release, found->second});
  alive_.erase(found);
  return true;
}

void AddressedAllocations::was_there(std::uint64_t address, Bytes bytes, std::uint32_t stream) {
  const auto number = ~static_cast<std::uint32_t>(before_.size());
  before_.push_back({AllocationEvent::Kind::allocate, number, stream, bytes});
  bytes_before_ += bytes;
  alive_.insert_or_assign(address, number);
}

void AddressedAllocations::begin_iteration() { events_.push_back({AllocationEvent::Kind::iteration}); }

Allocations AddressedAllocations::finish() {
  Allocations made;
  const auto first = static_cast<std::uint32_t>(before_.size());
  const auto renumbered = [&](AllocationEvent event) {
    if (event.kind != AllocationEvent::Kind::iteration)
      event.block = event.block < blocks_ ? event.block + first : ~event.block;
    return event;
  };
  made.events.reserve(before_.size() + events_.size());
  for (const AllocationEvent& event : before_) made.events.push_back(renumbered(event));
  for (const AllocationEvent& event : events_) made.events.push_back(renumbered(event));
  made.blocks = first + blocks_;
  return made;
}

}  // namespace tencache
