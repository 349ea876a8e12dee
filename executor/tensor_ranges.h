// The addresses of a tier's tensors, and what is mapped there: a table by id. Threading as tier_memory.h says; what any
// thread may ask waits for nobody.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>

#include "core/check.h"
#include "core/sequence_lock.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

template <typename Address, typename Mappings>
class TensorRanges {
 public:
  struct Range {
    std::atomic<Address> address{};
    std::atomic<Bytes> bytes = 0;
    std::atomic<bool> exists = false;
    bool retired = false;
    bool exposed = false;  // ChunkMemory::expose
    Mappings mappings{};
  };

  void create(TensorId tensor, Address address, Bytes bytes) {
    grow(tensor);
    Range& range = at(tensor);
    TENCACHE_CHECK(!range.exists);
    const SequenceLock::Change change(lock_);
    range.address.store(address, std::memory_order_release);
    range.bytes.store(bytes, std::memory_order_release);
    range.exists.store(true, std::memory_order_release);
  }
  // Nothing is mapped any more.
  void destroy(TensorId tensor) {
    Range& range = at(tensor);
    const SequenceLock::Change change(lock_);
    range.address.store({}, std::memory_order_release);
    range.exists.store(false, std::memory_order_release);
    range.retired = false;
    range.exposed = false;
  }
  // It lies elsewhere from now on.
  void move(TensorId tensor, Address address) {
    Range& range = (*this)[tensor];
    const SequenceLock::Change change(lock_);
    range.address.store(address, std::memory_order_release);
  }
  bool exists(TensorId tensor) const { return tensor < size() && at(tensor).exists; }
  std::size_t size() const { return size_.load(std::memory_order_acquire); }  // ids are below this
  Range& operator[](TensorId tensor) {
    TENCACHE_CHECK(exists(tensor));
    return at(tensor);
  }
  const Range& operator[](TensorId tensor) const {
    TENCACHE_CHECK(exists(tensor));
    return at(tensor);
  }

  // From any thread.
  Address address(TensorId tensor) const { return (*this)[tensor].address; }
  Bytes bytes(TensorId tensor) const { return (*this)[tensor].bytes; }
  // The tensor whose addresses these are; `none` if there is none. By looking at all: for faults.
  TensorId find(const void* address) const {
    return lock_.read([this, address] {
      for (TensorId tensor = 0; tensor < size(); ++tensor) {
        const Range& range = at(tensor);
        if (!range.exists || range.bytes == 0) continue;
        const auto* begin = reinterpret_cast<const std::byte*>(range.address.load());
        if (address >= begin && address < begin + round_up(range.bytes, Bytes{4096})) return tensor;
      }
      return TensorId{none};
    });
  }

 private:
  // Blocks of 64, 64, 128, 256, … ranges, which stay where they are.
  static constexpr std::size_t first_block = 64, most_blocks = 28;
  static std::size_t block_of(TensorId tensor) {
    return static_cast<std::size_t>(std::bit_width(tensor / first_block));
  }
  static std::size_t begin_of(std::size_t block) { return block == 0 ? 0 : first_block << (block - 1); }

  Range& at(TensorId tensor) const {
    const std::size_t block = block_of(tensor);
    return blocks_[block][tensor - begin_of(block)];
  }
  void grow(TensorId tensor) {
    while (tensor >= size()) {
      const std::size_t block = block_of(static_cast<TensorId>(size()));
      TENCACHE_CHECK(block < most_blocks);
      blocks_[block] = std::make_unique<Range[]>(begin_of(block + 1) - begin_of(block));
      size_.store(begin_of(block + 1), std::memory_order_release);
    }
  }

  std::array<std::unique_ptr<Range[]>, most_blocks> blocks_;
  std::atomic<std::size_t> size_ = 0;
  SequenceLock lock_;  // of address, bytes, exists
};

}  // namespace tencache
