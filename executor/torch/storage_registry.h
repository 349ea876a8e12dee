// Which storages' memory is the runtime's: from a storage's address, which never changes, to the runtime's tensor.
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "executor/live/live_abi.h"

namespace tencache::paging {

struct Owner {
  const void* address = nullptr;
  const tencache_live* live = nullptr;  // nullptr: its runtime has ended
  std::uint32_t tensor = tencache_no_tensor;
};

// By address. Open addressing with linear probing, as a program allocates and frees with every other op: nothing is
// allocated unless it grows. Null is nobody's address.
class OwnerTable {
 public:
  OwnerTable() : slots_(64) {}

  Owner* find(const void* address) {
    if (address == nullptr) return nullptr;
    Owner& slot = slots_[slot_of(address)];
    return slot.address == address ? &slot : nullptr;
  }
  const Owner* find(const void* address) const { return const_cast<OwnerTable*>(this)->find(address); }
  void put(const Owner& owner) {
    Owner& slot = slots_[slot_of(owner.address)];
    const bool is_new = slot.address == nullptr;
    slot = owner;
    if (is_new && ++size_ * 2 > slots_.size()) grow();
  }
  // What `find` has found. Those behind it move up, unless they are where they belong.
  void erase(Owner* owner) {
    const std::size_t last = slots_.size() - 1;
    auto hole = static_cast<std::size_t>(owner - slots_.data());
    for (std::size_t at = (hole + 1) & last; slots_[at].address != nullptr; at = (at + 1) & last) {
      const std::size_t wanted = first_slot(slots_[at].address);
      if (((at - wanted) & last) < ((at - hole) & last)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
    --size_;
  }
  // Some of them are free: of nobody.
  std::vector<Owner>& slots() { return slots_; }
  const std::vector<Owner>& slots() const { return slots_; }

 private:
  std::size_t first_slot(const void* address) const {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15ull;
    return static_cast<std::size_t>(mixed >> 32) & (slots_.size() - 1);
  }
  // Where it is, or would be put.
  std::size_t slot_of(const void* address) const {
    std::size_t at = first_slot(address);
    while (slots_[at].address != nullptr && slots_[at].address != address) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Owner> before(2 * slots_.size());
    before.swap(slots_);
    for (const Owner& owner : before) {
      if (owner.address != nullptr) slots_[slot_of(owner.address)] = owner;
    }
  }

  std::vector<Owner> slots_;  // a power of two of them, at most half of them taken
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
    Owner* const found = owners_.find(address);
    if (found == nullptr) return false;
    if (const tencache_live* live = found->live) live->release(live->runtime, found->tensor);
    owners_.erase(found);
    return true;
  }
  // `live`: nullptr finds those whose runtime has ended.
  std::uint32_t find(const void* address, const tencache_live* live) const {
    const std::lock_guard lock(mutex_);
    return find_locked(address, live);
  }
  // The same for many, in one go: assign(element, tensor) for each.
  template <typename Elements, typename AddressOf, typename Assign>
  void find_all(Elements& elements, const tencache_live& live, const AddressOf& address_of,
                const Assign& assign) const {
    const std::lock_guard lock(mutex_);
    for (auto& element : elements) assign(element, find_locked(address_of(element), &live));
  }
  std::vector<std::uint32_t> tensors_of(const tencache_live& live) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> tensors;
    for (const Owner& owner : owners_.slots()) {
      if (owner.live == &live) tensors.push_back(owner.tensor);
    }
    std::ranges::sort(tensors);
    return tensors;
  }
  // The runtime has ended.
  void orphan(const tencache_live& live) {
    const std::lock_guard lock(mutex_);
    for (Owner& owner : owners_.slots()) {
      if (owner.live == &live) owner.live = nullptr;
    }
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
  std::uint32_t find_locked(const void* address, const tencache_live* live) const {
    const Owner* const found = owners_.find(address);
    return found == nullptr || found->live != live ? tencache_no_tensor : found->tensor;
  }

  mutable std::mutex mutex_;
  OwnerTable owners_;
  std::unordered_set<const void*> outside_;  // for good: that it was freed since is not known
};

}  // namespace tencache::paging
