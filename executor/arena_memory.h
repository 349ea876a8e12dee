// Memory of a tier on an accelerator as one range of addresses, mapped once. A tensor lies in one piece of it, where
// the caller says (the allocator `movable`), and can be moved. So mapping, unmapping and sizes cost no call of a
// driver, but where memory is used for the first time.
//
// The address of a tensor that is not mapped is the guard: addresses that are never accessible, as many as the range
// has. Who uses a tensor that has left gets an error of the device instead of somebody else's bytes.
//
// Threading: as tier_memory.h says.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/accelerator.h"
#include "executor/extent_allocator.h"
#include "executor/tensor_ranges.h"
#include "executor/tier_memory.h"

namespace tencache {

class ArenaMemory final : public TierMemory {
 public:
  // Tensors occupy multiples of `granularity`, a power of two. The accelerator outlives this. Throws Error if it has
  // less memory free.
  ArenaMemory(Accelerator& accelerator, std::string name, Bytes capacity, Bytes granularity);

  void create(TensorId tensor, Bytes bytes) override { ranges_.create(tensor, bytes == 0 ? nullptr : guard(), bytes); }
  void destroy(TensorId tensor) override;
  // The whole tensor, in bytes of the range that nobody else has. Throws Error if the device has no memory for bytes
  // that were never used before.
  void map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) override;
  void unmap(TensorId tensor, Bytes begin, Bytes bytes) override;
  // Its content and its address go there; the two may overlap. Nobody touches either meanwhile. Returns when that is
  // over.
  void move(TensorId tensor, Bytes offset);
  // The same, but that the content is the caller's to move, from the first of these addresses to the second.
  struct Relocated {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  Relocated relocate(TensorId tensor, Bytes offset);

  std::byte* address(TensorId tensor) const override { return ranges_.address(tensor); }
  std::byte* guard() const { return range_->guard(); }
  // Tensors that were unmapped or moved since the last call, at most `most`. Nobody has to ask. Any thread may ask
  // whether there are any.
  std::vector<TensorId> take_left(std::size_t most);
  bool any_left() const { return any_left_.load(std::memory_order_relaxed); }
  Bytes bytes(TensorId tensor) const override { return ranges_.bytes(tensor); }
  bool mapped(TensorId tensor, Bytes begin) const override {
    return begin == 0 && ranges_[tensor].mappings.has_value();
  }
  Bytes capacity() const override { return used_.capacity(); }
  ChunkMemoryStatistics statistics() const override;

 private:
  void leave(TensorId tensor);

  using Ranges = TensorRanges<std::byte*, std::optional<Extent>>;  // where it is mapped

  std::string name_;
  Bytes granularity_;
  std::unique_ptr<DeviceRange> range_;
  std::unique_ptr<CopyEngine> mover_;
  ExtentAllocator used_;
  Ranges ranges_;
  std::vector<TensorId> left_;            // each once
  std::vector<std::uint8_t> among_left_;  // by tensor
  std::atomic<bool> any_left_ = false;
  ChunkMemoryStatistics statistics_;
};

}  // namespace tencache
