// Memory of one tier on this computer: a hard cap, and chunks of tensors mapped into address ranges.
// chunk_memory.h is ordinary memory, arena_memory.h and executor/cuda have that of a GPU.
//
// Threading: one thread at a time calls everything but `address` and `bytes`, which any thread may call.
#pragma once

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

inline constexpr Bytes page_bytes = 4096;

struct ChunkMemoryStatistics {
  std::uint64_t maps = 0, unmaps = 0;
  Bytes mapped_bytes = 0;  // sum over all maps
  Nanoseconds map_ns = 0, unmap_ns = 0;
  std::uint64_t extents = 0;  // sum over all maps; ÷ maps = pieces per chunk
  Bytes used_bytes = 0, peak_used_bytes = 0;
};

class TierMemory {
 public:
  virtual ~TierMemory() = default;

  // Reserves the tensor's addresses. Ids are small numbers: they index a table. 0 bytes are allowed and take nothing.
  virtual void create(TensorId tensor, Bytes bytes) = 0;
  // The tensor is about to be destroyed, and nobody touches its bytes any more once they are unmapped: memory may stay
  // in place for a tensor to come, which saves mapping it.
  virtual void retire(TensorId) {}
  // Unmaps what is still mapped and gives the addresses back; they are reused for tensors of similar size.
  virtual void destroy(TensorId tensor) = 0;

  // Puts memory at [begin, begin + bytes) of the tensor; `begin` is a multiple of the tier's granularity or, for
  // ordinary memory, of 4 KiB; the range is not mapped yet. `offset` counts where the caller keeps addresses (best fit,
  // fixed buffers): a range there that others use is a broken invariant. Content is undefined. Throws OutOfMemory
  // beyond the cap, Error when the computer refuses.
  virtual void map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) = 0;
  // The same range as in `map`.
  virtual void unmap(TensorId tensor, Bytes begin, Bytes bytes) = 0;

  // Constant while a chunk is mapped and not moved; but for ArenaMemory, and where ChunkMemory::relocate is called,
  // from create to destroy, too. Aligned to 4 KiB at least, in an arena to its granularity.
  virtual std::byte* address(TensorId tensor) const = 0;
  virtual Bytes bytes(TensorId tensor) const = 0;
  // Is a chunk that begins here mapped?
  virtual bool mapped(TensorId tensor, Bytes begin) const = 0;
  virtual Bytes capacity() const = 0;
  virtual ChunkMemoryStatistics statistics() const = 0;
};

}  // namespace tencache
