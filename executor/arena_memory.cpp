#include "executor/arena_memory.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/clock.h"
#include "executor/order_site.h"

namespace tencache {

ArenaMemory::ArenaMemory(Accelerator& accelerator, std::string name, Bytes capacity, Bytes granularity)
    : name_(std::move(name)),
      granularity_(granularity),
      range_(accelerator.range(name_, capacity)),
      mover_(accelerator.copy_engine()),
      used_(capacity, granularity) {}

void ArenaMemory::destroy(TensorId tensor) {
  if (ranges_[tensor].mappings) unmap(tensor, 0, ranges_.bytes(tensor));
  ranges_.destroy(tensor);
}

void ArenaMemory::map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) {
  Ranges::Range& of = ranges_[tensor];
  if (begin != 0 || bytes != of.bytes) {
    throw Error("tier '" + name_ +
                "': a part of a tensor is to be mapped, where tensors are whole (allocator movable)");
  }
  const Extent room{offset, round_up(bytes, granularity_)};
  TENCACHE_CHECK(!of.mappings && room.offset + room.bytes <= used_.capacity() && used_.take_at(room));
  const Nanoseconds start = clock_ns();
  try {
    range_->cover(room.offset, room.bytes);
  } catch (...) {
    used_.give(room);
    throw;
  }
  of.mappings = room;
  ranges_.move(tensor, range_->begin() + offset);
  statistics_.maps++;
  statistics_.mapped_bytes += bytes;
  statistics_.extents++;
  statistics_.peak_used_bytes = std::max(statistics_.peak_used_bytes, used_.used());
  statistics_.map_ns += clock_ns() - start;
}

void ArenaMemory::unmap(TensorId tensor, Bytes begin, Bytes bytes) {
  Ranges::Range& of = ranges_[tensor];
  TENCACHE_CHECK(of.mappings && begin == 0 && bytes == of.bytes);
  used_.give(*of.mappings);
  of.mappings.reset();
  ranges_.move(tensor, guard());
  leave(tensor);
  statistics_.unmaps++;
}

ArenaMemory::Relocated ArenaMemory::relocate(TensorId tensor, Bytes offset) {
  Ranges::Range& of = ranges_[tensor];
  TENCACHE_CHECK(of.mappings.has_value());
  const Extent old = *of.mappings;
  used_.give(old);
  TENCACHE_CHECK(offset + old.bytes <= used_.capacity() && used_.take_at({offset, old.bytes}));
  of.mappings->offset = offset;
  range_->cover(offset, old.bytes);
  ranges_.move(tensor, range_->begin() + offset);
  leave(tensor);
  return {range_->begin() + old.offset, range_->begin() + offset};
}

void ArenaMemory::move(TensorId tensor, Bytes offset) {
  const Relocated places = relocate(tensor, offset);
  mover_->move(places.from, places.to, bytes(tensor));
  TENCACHE_ORDER_SITE("wait", mover_->wait(0));
}

void ArenaMemory::leave(TensorId tensor) {
  if (tensor >= among_left_.size()) among_left_.resize(tensor + std::size_t{1}, 0);
  if (std::exchange(among_left_[tensor], 1) == 0) left_.push_back(tensor);
  any_left_.store(true, std::memory_order_relaxed);
}

std::vector<TensorId> ArenaMemory::take_left(std::size_t most) {
  const auto first = left_.end() - static_cast<std::ptrdiff_t>(std::min(most, left_.size()));
  std::vector<TensorId> taken(first, left_.end());
  left_.erase(first, left_.end());
  for (const TensorId tensor : taken) among_left_[tensor] = 0;
  any_left_.store(!left_.empty(), std::memory_order_relaxed);
  return taken;
}

ChunkMemoryStatistics ArenaMemory::statistics() const {
  ChunkMemoryStatistics result = statistics_;
  result.used_bytes = used_.used();
  return result;
}

}  // namespace tencache
