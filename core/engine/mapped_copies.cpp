#include "core/engine/mapped_copies.h"

#include "core/error.h"

namespace tencache {

bool MappedCopies::take(ChunkId chunk, TierId tier, MappedFor what) {
  if (maps_ || timeline_ != nullptr) return take_and_tell(chunk, tier, what);
  return memory_.reserve(chunk, tier);
}

bool MappedCopies::take_and_tell(ChunkId chunk, TierId tier, MappedFor what) {
  const Bytes used_before = memory_.used(tier);
  if (!memory_.reserve(chunk, tier)) return false;
  if (maps_) {
    try {
      map(chunk, tier, what);
    } catch (...) {
      memory_.release(chunk, tier);
      throw;
    }
  }
  if (timeline_ != nullptr) sample(chunk, tier, used_before);
  return true;
}

Nanoseconds MappedCopies::move(const Relocation& move, TierId tier, LinkId link) {
  memory_.relocate(move, tier);
  return machine_.move({.tensor = memory_.tensor_of(move.chunk),
                        .chunk = move.chunk,
                        .begin = memory_.begin_of(move.chunk),
                        .bytes = memory_.bytes_in(move.chunk, tier),
                        .from = {tier, move.from},
                        .to = {tier, move.to},
                        .link = link});
}

void MappedCopies::free(ChunkId chunk, TierId tier) {
  if (maps_ || timeline_ != nullptr) {
    free_and_tell(chunk, tier);
  } else {
    memory_.release(chunk, tier);
  }
}

void MappedCopies::free_and_tell(ChunkId chunk, TierId tier) {
  const Place place{tier, memory_.offset(chunk, tier)};
  const Bytes used_before = memory_.used(tier);
  memory_.release(chunk, tier);
  if (maps_) {
    machine_.unmap(memory_.tensor_of(chunk), chunk, memory_.begin_of(chunk), memory_.bytes_in(chunk, tier), place);
  }
  if (timeline_ != nullptr) sample(chunk, tier, used_before);
}

void MappedCopies::drop(ChunkId chunk, TierId tier) {
  if (memory_.copy(chunk, tier).readers > 0) {
    memory_.condemn(chunk, tier);
  } else {
    free(chunk, tier);
  }
}

// What the machine refuses is asked for again at once, as a copy that failed is. No decision depends on it, so a log
// need not know.
void MappedCopies::map(ChunkId chunk, TierId tier, MappedFor what) {
  const TensorId tensor = memory_.tensor_of(chunk);
  const Bytes bytes = memory_.bytes_in(chunk, tier);
  for (int refused = 0;;) {
    try {
      machine_.map(tensor, chunk, memory_.begin_of(chunk), bytes, {tier, memory_.offset(chunk, tier)}, what);
      return;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& error) {
      if (++refused < failures_tolerated) continue;
      throw Error("room for " + format_bytes(bytes) + " of " + program_.title_of(tensor) + " in '" +
                  spec_.tiers[tier].name + "' was refused " + std::to_string(refused) +
                  " times in a row: " + error.what());
    }
  }
}

void MappedCopies::sample(ChunkId chunk, TierId tier, Bytes used_before) {
  const TensorId tensor = memory_.tensor_of(chunk);
  const Bytes used = memory_.used(tier);
  timeline_->occupancy.push_back(
      {moment_.now, tier, memory_.role(tensor), tensor, used, static_cast<std::int64_t>(used - used_before)});
}

}  // namespace tencache
