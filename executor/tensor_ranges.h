// The addresses of a tier's tensors, and what is mapped there: a table by id. Threading as tier_memory.h says.
#pragma once

#include <mutex>
#include <vector>

#include "core/check.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

template <typename Address, typename Mappings>
class TensorRanges {
 public:
  struct Range {
    Address address{};
    Bytes bytes = 0;
    bool exists = false;
    bool retired = false;
    bool exposed = false;  // ChunkMemory::expose
    Mappings mappings{};
  };

  void create(TensorId tensor, Address address, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    if (tensor >= ranges_.size()) ranges_.resize(static_cast<std::size_t>(tensor) + 1);
    Range& range = ranges_[tensor];
    TENCACHE_CHECK(!range.exists);
    range.address = address;
    range.bytes = bytes;
    range.exists = true;
  }
  // Nothing is mapped any more.
  void destroy(TensorId tensor) {
    const std::lock_guard lock(mutex_);
    Range& range = ranges_[tensor];
    range.address = {};
    range.exists = false;
    range.retired = false;
    range.exposed = false;
  }
  bool exists(TensorId tensor) const { return tensor < ranges_.size() && ranges_[tensor].exists; }
  std::size_t size() const { return ranges_.size(); }  // ids are below this
  Range& operator[](TensorId tensor) {
    TENCACHE_CHECK(exists(tensor));
    return ranges_[tensor];
  }
  const Range& operator[](TensorId tensor) const {
    TENCACHE_CHECK(exists(tensor));
    return ranges_[tensor];
  }

  // From any thread.
  Address address(TensorId tensor) const {
    const std::lock_guard lock(mutex_);
    return (*this)[tensor].address;
  }
  // The tensor whose addresses these are; `none` if there is none. By looking at all: for faults.
  TensorId find(const void* at) const {
    const std::lock_guard lock(mutex_);
    for (TensorId tensor = 0; tensor < ranges_.size(); ++tensor) {
      const Range& range = ranges_[tensor];
      if (!range.exists || range.bytes == 0) continue;
      const auto* begin = reinterpret_cast<const std::byte*>(range.address);
      if (at >= begin && at < begin + round_up(range.bytes, Bytes{4096})) return tensor;
    }
    return none;
  }
  Bytes bytes(TensorId tensor) const {
    const std::lock_guard lock(mutex_);
    return (*this)[tensor].bytes;
  }

 private:
  mutable std::mutex mutex_;  // guards growth and what any thread may read
  std::vector<Range> ranges_;
};

}  // namespace tencache
