// Which storages' memory is the runtime's: from a storage's address, which never changes, to the runtime's tensor.
// Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/sequence_lock.h"
#include "executor/live/live_abi.h"

namespace tencache::paging {

struct Owner {
  const void* address = nullptr;
  const tencache_live* live = nullptr;  // nullptr: its runtime has ended
  std::uint32_t tensor = tencache_no_tensor;
};

// By address. Open addressing with linear probing, as a program allocates and frees with every other op: nothing is
// allocated unless it grows. Null is nobody's address. Any thread may call `find`, one at a time the others: whose an
// address is does not change while somebody may ask.
class OwnerTable {
 public:
  OwnerTable() { become(64); }

  // Without address: nobody's.
  Owner find(const void* address) const {
    if (address == nullptr) return {};
    return lock_.read([this, address]() -> Owner {
      const Slots& slots = *slots_.load(std::memory_order_acquire);
      std::size_t at = slots.first(address);
      for (std::size_t left = slots.count(); left > 0; --left, at = slots.next(at)) {
        const Owner owner = slots[at].get();
        if (owner.address == address) return owner;
        if (owner.address == nullptr) break;
      }
      return {};
    });
  }
  void put(const Owner& owner) {
    const SequenceLock::Change change(lock_);
    Slot& slot = own()[own().of(owner.address)];
    const bool is_new = slot.get().address == nullptr;
    slot.set(owner);
    if (is_new && ++size_ * 2 > own().count()) become(2 * own().count());
  }
  // Those behind it move up, unless they are where they belong.
  void erase(const void* address) {
    const SequenceLock::Change change(lock_);
    Slots& slots = own();
    std::size_t hole = slots.of(address);
    for (std::size_t at = slots.next(hole); slots[at].get().address != nullptr; at = slots.next(at)) {
      const Owner owner = slots[at].get();
      if (slots.distance(slots.first(owner.address), at) < slots.distance(hole, at)) continue;
      slots[hole].set(owner);
      hole = at;
    }
    slots[hole].set({});
    --size_;
  }
  // Each of them.
  template <typename Visit>
  void visit(const Visit& visit) const {
    for (std::size_t at = 0; at < own().count(); ++at) {
      if (const Owner owner = own()[at].get(); owner.address != nullptr) visit(owner);
    }
  }

 private:
  class Slot {
   public:
    Owner get() const {
      return {address_.load(std::memory_order_acquire), live_.load(std::memory_order_acquire),
              tensor_.load(std::memory_order_acquire)};
    }
    void set(const Owner& owner) {
      address_.store(owner.address, std::memory_order_release);
      live_.store(owner.live, std::memory_order_release);
      tensor_.store(owner.tensor, std::memory_order_release);
    }

   private:
    std::atomic<const void*> address_ = nullptr;
    std::atomic<const tencache_live*> live_ = nullptr;
    std::atomic<std::uint32_t> tensor_ = tencache_no_tensor;
  };
  // A power of two of them, at most half of them taken.
  class Slots {
   public:
    explicit Slots(std::size_t count) : last_(count - 1), slots_(std::make_unique<Slot[]>(count)) {}
    std::size_t count() const { return last_ + 1; }
    Slot& operator[](std::size_t at) { return slots_[at]; }
    const Slot& operator[](std::size_t at) const { return slots_[at]; }
    std::size_t first(const void* address) const {
      const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15ull;
      return static_cast<std::size_t>(mixed >> 32) & last_;
    }
    std::size_t next(std::size_t at) const { return (at + 1) & last_; }
    std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & last_; }
    // Where it is, or would be put.
    std::size_t of(const void* address) const {
      std::size_t at = first(address);
      for (const void* there = slots_[at].get().address; there != nullptr && there != address;
           there = slots_[at].get().address) {
        at = next(at);
      }
      return at;
    }

   private:
    std::size_t last_;
    std::unique_ptr<Slot[]> slots_;
  };

  Slots& own() { return *all_.back(); }
  const Slots& own() const { return *all_.back(); }
  void become(std::size_t count) {
    auto larger = std::make_unique<Slots>(count);
    if (!all_.empty()) visit([&larger](const Owner& owner) { (*larger)[larger->of(owner.address)].set(owner); });
    slots_.store(larger.get(), std::memory_order_release);
    all_.push_back(std::move(larger));
  }

  SequenceLock lock_;
  std::atomic<const Slots*> slots_ = nullptr;  // for readers; those before the last may still be read, and are less
  std::vector<std::unique_ptr<Slots>> all_;
  std::size_t size_ = 0;
};

class StorageRegistry {
 public:
  void add(const void* address, const tencache_live& live, std::uint32_t tensor) {
    const std::lock_guard lock(mutex_);
    owners_.put({address, &live, tensor});
  }
  // False if the address is not ours.
  bool let_go(const void* address) noexcept {
    const std::lock_guard lock(mutex_);
    const Owner found = owners_.find(address);
    if (found.address == nullptr) return false;
    if (const tencache_live* live = found.live) live->release(live->runtime, found.tensor);
    owners_.erase(address);
    return true;
  }
  // Without waiting for anybody. `live`: nullptr finds those whose runtime has ended.
  std::uint32_t find(const void* address, const tencache_live* live) const {
    const Owner found = owners_.find(address);
    return found.live == live ? found.tensor : tencache_no_tensor;
  }
  std::vector<std::uint32_t> tensors_of(const tencache_live& live) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> tensors;
    owners_.visit([&](const Owner& owner) {
      if (owner.live == &live) tensors.push_back(owner.tensor);
    });
    std::ranges::sort(tensors);
    return tensors;
  }
  // The runtime has ended.
  void orphan(const tencache_live& live) {
    const std::lock_guard lock(mutex_);
    std::vector<Owner> left;
    owners_.visit([&](const Owner& owner) {
      if (owner.live == &live) left.push_back({owner.address, nullptr, owner.tensor});
    });
    for (const Owner& owner : left) owners_.put(owner);
  }

  // Memory of neither the runtime nor PyTorch's allocator, whose address somebody has: it must not move.
  void known_outside(const void* address) {
    const std::lock_guard lock(mutex_);
    outside_.insert(address);
  }
  bool is_known_outside(const void* address) const {
    const std::lock_guard lock(mutex_);
    return outside_.contains(address);
  }

  // Around a fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;  // of those who change something
  OwnerTable owners_;
  std::unordered_set<const void*> outside_;  // for good: that it was freed since is not known
};

}  // namespace tencache::paging
