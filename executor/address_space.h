// Ranges of addresses without pages, which cost nothing. Ranges that were given back serve others of a similar size.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/units.h"
#include "executor/extent_allocator.h"

namespace tencache {

class AddressSpace {
 public:
  // `tier` is for messages.
  explicit AddressSpace(std::string tier) : tier_(std::move(tier)) {}
  // Unmaps all of it.
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Throws Error when the system refuses; of 0 bytes: null.
  std::byte* take(Bytes bytes);
  void give(std::byte* address, Bytes bytes);
  // Is it an address of a region of ours?
  bool owns(const void* address) const;

 private:
  // Free ranges of one size.
  struct SizeClass {
    Bytes bytes = 0;
    std::vector<std::byte*> free;
  };
  SizeClass& size_class(Bytes bytes);

  std::string tier_;
  std::vector<Extent> regions_;  // reserved, to unmap in the end
  std::byte* next_ = nullptr;    // of the last region, up to `end_`
  std::byte* end_ = nullptr;
  std::vector<SizeClass> classes_;  // by index of the class
};

}  // namespace tencache
