// Which storages' memory is the runtime's: from a storage's address, which never changes, to the runtime's tensor.
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "executor/live/live_abi.h"

namespace tencache::paging {

class StorageRegistry {
 public:
  void add(const void* address, const tencache_live& live, std::uint32_t tensor) {
    const std::lock_guard lock(mutex_);
    owners_[address] = {&live, tensor};
  }
  // False if the address is not ours.
  bool let_go(const void* address) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(address);
    if (found == owners_.end()) return false;
    if (const tencache_live* live = found->second.live) live->release(live->runtime, found->second.tensor);
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
    for (const auto& [address, owner] : owners_) {
      if (owner.live == &live) tensors.push_back(owner.tensor);
    }
    std::ranges::sort(tensors);
    return tensors;
  }
  // The runtime has ended.
  void orphan(const tencache_live& live) {
    const std::lock_guard lock(mutex_);
    for (auto& [address, owner] : owners_) {
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
  struct Owner {
    const tencache_live* live = nullptr;  // nullptr: its runtime has ended
    std::uint32_t tensor = tencache_no_tensor;
  };
  std::uint32_t find_locked(const void* address, const tencache_live* live) const {
    const auto found = owners_.find(address);
    return found == owners_.end() || found->second.live != live ? tencache_no_tensor : found->second.tensor;
  }

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Owner> owners_;
  std::unordered_set<const void*> outside_;  // for good: that it was freed since is not known
};

}  // namespace tencache::paging
