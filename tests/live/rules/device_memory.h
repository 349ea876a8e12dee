// The device's memory: reserved addresses, physical memory, what is mapped where, allocations, and page-locked memory
// of the host. Books only: the rules are in memory_rules.cpp.
//
// Physical memory is one file in memory; what is mapped and accessible can be touched by this process at its addresses,
// all else faults. Addresses are never given out twice, so a stale one is nobody else's. New and freed memory is filled
// with poison: floats that are no numbers, and words that are no pattern of a replay.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/units.h"
#include "executor/cuda/cuda_driver.h"
#include "executor/file_descriptor.h"
#include "tests/live/rules/access_log.h"

namespace tencache::rules {

void poison(std::span<std::byte> memory);
bool is_poison(std::span<const std::byte> memory);

class DeviceMemory {
 public:
  struct Handle {
    Bytes offset = 0;  // in the physical memory
    Bytes bytes = 0;
    bool mapped = false, released = false;
  };
  struct Mapping {
    Bytes bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    bool accessible = false;
  };
  struct Allocation {
    Bytes bytes = 0;
    std::unique_ptr<std::uint64_t[]> memory;
  };

  // Without content its bytes do not exist: addresses are numbers.
  explicit DeviceMemory(Bytes capacity, bool content = true);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // They outlive this object: somebody still knows some.
  void keep_addresses() { addresses_kept_ = true; }
  Bytes used() const { return used_; }
  Bytes created() const { return created_; }  // of handles
  bool can_hold(Bytes more) const { return used_ + more <= capacity_; }

  CUdeviceptr reserve(Bytes bytes, Bytes alignment);
  // Whether the range lies in one reservation.
  bool reserved(Range range) const;
  CUmemGenericAllocationHandle create(Bytes bytes);
  // Frees it once it is released and mapped nowhere.
  void free_if_unused(CUmemGenericAllocationHandle handle);
  bool overlaps_mapping(Range range) const;
  void map(CUdeviceptr address, CUmemGenericAllocationHandle handle);
  void open(CUdeviceptr address);  // to accesses
  void unmap(CUdeviceptr address);
  CUdeviceptr allocate(Bytes bytes);
  void free(CUdeviceptr address);

  // Where the bytes of accessible device addresses lie; nothing where one of them is not accessible.
  std::optional<std::vector<Range>> place(Range range) const;
  Range place(const Handle& handle) const;
  enum class Locked : std::uint8_t { none, all, partly };
  Locked page_locked(Range host) const;

  std::map<CUdeviceptr, Bytes> reservations{};
  std::map<CUmemGenericAllocationHandle, Handle> handles{};
  std::map<CUdeviceptr, Mapping> mappings{};
  std::map<CUdeviceptr, Allocation> allocations{};
  std::map<std::uint64_t, Bytes> locked{};  // page-locked memory of the host, by address

 private:
  void spoil(const Handle& handle) const;
  Bytes address_bytes() const;

  Bytes capacity_;
  bool has_content_;
  FileDescriptor memory_;
  std::byte* content_ = nullptr;          // all of it
  std::map<Bytes, Bytes> free_{};         // extents of it: bytes by offset
  CUdeviceptr addresses_ = 0, next_ = 0;  // a range of them, and the first that no reservation had
  CUmemGenericAllocationHandle last_ = 0x1000;
  Bytes used_ = 0, created_ = 0;
  bool addresses_kept_ = false;
};

}  // namespace tencache::rules
