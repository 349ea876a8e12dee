// GMLake's allocator (ASPLOS'24; intelligent-machine-learning/glake, GMLake/src): PyTorch's, whose large blocks consist
// of physical chunks of 2 MiB that can be mapped side by side at another address ("stitched"). A large request that no
// free block holds takes several, the largest first.
//
// Not modelled: which stitched addresses are kept for later requests, and when they are collected. They are addresses
// alone; the chunks behind them serve whoever comes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/caching_allocator.h"
#include "core/caching_segments.h"
#include "core/units.h"

namespace tencache {

struct StitchingSettings {
  Bytes least_stitched = 512 * MiB;  // fragLimit
  bool before_the_device = true;     // defragLevel 0: stitches before the device is asked; 1: only when it has refused
};

class StitchingAllocator {
 public:
  using Address = std::uint64_t;

  StitchingAllocator(StitchingSettings settings, Bytes device_bytes);

  // The address of its first part; nullopt: out of memory. `bytes` is positive.
  std::optional<Address> allocate(Bytes bytes, std::uint32_t stream = 0);
  void release(Address address);
  AllocatorFigures figures() const;
  std::vector<BlockView> blocks() const;
  Bytes allocated() const { return allocated_; }
  Bytes reserved() const { return segments_.reserved(); }

 private:
  using Id = CachingBlocks::Id;
  struct Given {
    std::vector<Id> parts;
    Bytes requested = 0;
  };

  std::optional<Given> find(BlockPool pool, std::uint32_t stream, Bytes bytes);
  std::optional<Given> stitch(std::uint32_t stream, Bytes bytes);
  std::optional<Given> new_segment(BlockPool pool, std::uint32_t stream, Bytes bytes);
  Id take(Id block, Bytes bytes);
  void give_back_whole_segments();

  StitchingSettings settings_;
  Bytes device_bytes_;
  CachingBlocks blocks_;
  CachingSegments segments_;
  std::unordered_map<Address, Given> given_;
  Bytes requested_ = 0, allocated_ = 0;
  std::uint64_t retries_ = 0;
};

}  // namespace tencache
