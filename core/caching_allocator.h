// PyTorch's caching allocator for GPUs, as c10/cuda/CUDACachingAllocator.cpp of 2025 behaves: what it makes of a
// program's allocations, and how much of a device's memory it reserves for them.
//
// Blocks live in segments that the device gives, in two pools (requests up to 1 MiB; larger ones), apart for each
// stream. A request takes the smallest free block that holds it, and leaves the rest free where the rest is large
// enough. Freed blocks merge with free neighbours of their segment, and go back to the device only when it has no more.
// With expandable segments one segment of addresses a pool and stream grows page by page instead.
//
// Not modelled: blocks that are held for other streams (`record_stream`), captures of graphs, and pools of users.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/caching_segments.h"
#include "core/units.h"

namespace tencache {

// The fields of PYTORCH_CUDA_ALLOC_CONF.
struct CachingSettings {
  bool expandable_segments = false;
  Bytes max_split_size = unlimited;                  // blocks of this size and larger are not split
  Bytes max_non_split_rounding = 20 * MiB;           // and serve requests that are smaller by less than this
  Bytes large_segment_size = 20 * MiB;               // for requests of 1 to 10 MiB
  double garbage_collection_threshold = 0;           // of what a fraction allows; 0: none
  std::optional<double> memory_fraction;             // of the device; absent: all of it, and no garbage collection
  std::array<std::uint64_t, 16> power2_divisions{};  // by size, from 1 MiB to 32 GiB and more; 0 or 1: none
};

// For pictures.
struct BlockView {
  std::uint64_t address = 0;
  Bytes bytes = 0;
  std::uint32_t segment = 0;
  bool handed_out = false;
};

// reserved = requested + rounding + unsplit + in_holes + idle.
struct AllocatorFigures {
  Bytes requested = 0;
  Bytes allocated = 0;  // blocks that are handed out
  Bytes reserved = 0;   // segments, or mapped pages
  Bytes rounding = 0;   // of what is handed out, what nobody asked for
  Bytes unsplit = 0;    // remainders that stay with their block
  Bytes in_holes = 0;   // free blocks of segments that are in use
  Bytes idle = 0;       // segments without a block that is handed out
  // So far.
  std::uint64_t device_allocations = 0;  // segments, or mappings
  std::uint64_t device_frees = 0;
  std::uint64_t retries = 0;  // num_alloc_retries: all that was free was given back
};

class CachingAllocator {
 public:
  using Stream = std::uint32_t;
  using Address = std::uint64_t;

  // Of a device with this much memory for segments.
  CachingAllocator(CachingSettings settings, Bytes device_bytes);

  // The block's address; nullopt: out of memory, after all that can be given back was. `bytes` is positive.
  std::optional<Address> allocate(Bytes bytes, Stream stream = 0);
  // Whether `allocate` would find room, without expandable segments.
  bool can_allocate(Bytes bytes, Stream stream = 0) const;
  // Of a block that is handed out.
  void release(Address address);
  // Gives every segment (page of a segment) that is free back to the device: torch.cuda.empty_cache().
  void empty_cache();

  // What a request takes, before any block is looked for.
  Bytes rounded(Bytes bytes) const;
  // What the device is asked for where no block serves a request of that rounded size, without expandable segments.
  Bytes segment_size(Bytes rounded) const;
  // Of a block that is handed out.
  Bytes block_bytes(Address address) const;

  Bytes allocated() const { return allocated_; }
  Bytes reserved() const { return segments_.reserved(); }
  Bytes largest_free() const;             // block
  AllocatorFigures figures() const;       // linear in the segments so far
  std::vector<BlockView> blocks() const;  // every one, by address

 private:
  using Id = CachingBlocks::Id;
  static constexpr Id none = CachingBlocks::none;

  Id find_free(BlockPool pool, Stream stream, Bytes bytes) const;
  Id new_segment(BlockPool pool, Stream stream, Bytes bytes);
  Id grow(BlockPool pool, Stream stream, Bytes bytes);
  Id place_to_grow(BlockPool pool, Stream stream, Bytes bytes);
  bool map(Id block, Bytes bytes, Id& mapped);
  Address hand_out(Id block, Bytes requested, Bytes rounded);
  Bytes allowed() const;
  bool may_reserve(Bytes bytes) const;
  bool takes_rest(BlockPool pool, Bytes block, Bytes rounded) const;
  Bytes page(BlockPool pool) const;
  Bytes room_beside(Id block) const;
  void collect_garbage();
  bool give_back_for(Stream stream, Bytes bytes);
  void give_back(Id block);
  void unmap(Id block);

  CachingSettings settings_;
  Bytes device_bytes_;
  CachingBlocks blocks_;
  CachingSegments segments_;
  std::unordered_map<Address, Id> handed_out_;
  Bytes requested_ = 0, rounding_ = 0, allocated_ = 0;
  std::uint64_t retries_ = 0;
};

}  // namespace tencache
