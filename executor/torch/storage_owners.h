// Whose memory an address is that storages have: the runtime's tensor, while its storage lives.
//
// By address and not by the context of a DataPtr: oneDNN takes its workspaces from the CPU's allocator by raw_allocate,
// which insists that context and address are the same, and frees them by raw_deallocate, which knows no more.
//
// Any thread may call, and waits for nobody.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "executor/live/live_abi.h"

namespace tencache::paging {

struct StorageOwner {
  std::uint32_t run = 0;  // which runtime's it is, counted from 1; 0: nobody's
  std::uint32_t tensor = tencache_no_tensor;

  bool operator==(const StorageOwner&) const = default;
};

// A table of two levels, as a processor has it, of 8 bytes for each address that a tensor may have. They are there once
// they are touched: 8 bytes per page of addresses, where tensors begin with pages. An object is 4 MiB of zeros: let it
// be static. It is never destroyed, as PyTorch keeps storages beyond the end of main.
class StorageOwners {
 public:
  StorageOwner find(const void* address) const {
    const std::atomic<std::uint64_t>* const entry = entry_of(address);
    return entry == nullptr ? StorageOwner{} : unpacked(entry->load(std::memory_order_acquire));
  }
  // The address is a multiple of 512.
  void put(const void* address, StorageOwner owner) {
    const std::uint64_t packed = std::uint64_t{owner.run} << 32 | owner.tensor;
    made_entry_of(address).store(packed, std::memory_order_release);
  }
  // It is nobody's from here on, if it was theirs.
  void take(const void* address, StorageOwner owner) {
    if (find(address) == owner) take(address);
  }
  // It is nobody's from here on. Returns whose it was.
  StorageOwner take(const void* address) {
    std::atomic<std::uint64_t>* const entry = entry_of(address);
    if (entry == nullptr) return {};
    const std::uint64_t packed = entry->load(std::memory_order_acquire);
    if (packed != 0) entry->store(0, std::memory_order_relaxed);  // whoever gets the address next waits for its release
    return unpacked(packed);
  }

 private:
  using Entry = std::atomic<std::uint64_t>;
  static constexpr unsigned unit_bits = 9, page_bits = 12, block_bits = 29;
  static constexpr unsigned address_bits = 48;  // of programs on x86-64 and arm64
  static constexpr std::size_t units_in_page = std::size_t{1} << (page_bits - unit_bits);
  static constexpr std::size_t pages_in_block = std::size_t{1} << (block_bits - page_bits);
  static_assert(sizeof(Entry) == 8 && Entry::is_always_lock_free);

  static StorageOwner unpacked(std::uint64_t packed) {
    if (packed == 0) return {};
    return {static_cast<std::uint32_t>(packed >> 32), static_cast<std::uint32_t>(packed)};
  }
  // The first units of all pages, then the second ones, and so on.
  static std::size_t index_of(std::uintptr_t address) {
    return (address >> unit_bits) % units_in_page * pages_in_block + (address >> page_bits) % pages_in_block;
  }
  // Null: it was never anybody's.
  Entry* entry_of(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    if (at % (std::uintptr_t{1} << unit_bits) != 0 || at >> address_bits != 0) return nullptr;
    Entry* const block = blocks_[at >> block_bits].load(std::memory_order_acquire);
    return block == nullptr ? nullptr : block + index_of(at);
  }
  Entry& made_entry_of(const void* address) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    std::atomic<Entry*>& slot = blocks_.at(at >> block_bits);
    Entry* block = slot.load(std::memory_order_acquire);
    if (block == nullptr) block = made_block(slot);
    return block[index_of(at)];
  }
  // Of zeros, which are entries of nobody.
  static Entry* made_block(std::atomic<Entry*>& slot) {
    constexpr std::size_t bytes = units_in_page * pages_in_block * sizeof(Entry);
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* const made = static_cast<Entry*>(memory);
    Entry* present = nullptr;
    if (slot.compare_exchange_strong(present, made, std::memory_order_acq_rel)) return made;
    ::munmap(memory, bytes);  // another thread was quicker
    return present;
  }

  std::array<std::atomic<Entry*>, std::size_t{1} << (address_bits - block_bits)> blocks_{};
};

}  // namespace tencache::paging
