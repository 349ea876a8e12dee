// What a program asked of a GPU's allocator, in order, and nothing of what the allocator answered: the input of
// `tencache fragment`, whatever it was recorded by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/units.h"

namespace tencache {

struct AllocationEvent {
  enum class Kind : std::uint8_t { allocate, release, iteration };
  Kind kind = Kind::allocate;
  std::uint32_t block = 0;   // of all but iterations
  std::uint32_t stream = 0;  // of an allocation
  Bytes bytes = 0;           // of an allocation, more than 0
};

// Blocks are numbered from 0 in the order of their births; each is allocated once and released at most once, after
// that.
struct Allocations {
  std::string name;                     // for people: of the files
  std::vector<AllocationEvent> events;  // an iteration's mark stands at its beginning
  std::uint32_t blocks = 0;
  std::vector<std::string> notes = {};  // what had to be left out or assumed
  // What a recording says of the allocator that it was made with, at most.
  std::optional<Bytes> recorded_allocated = {}, recorded_reserved = {};
};

// Makes events of a log that names blocks by their address, which is used again after a free.
class AddressedAllocations {
 public:
  // False: a block with that address is alive.
  bool allocate(std::uint64_t address, Bytes bytes, std::uint32_t stream);
  // False: no block with that address is alive.
  bool release(std::uint64_t address);
  // A block that was there before the log began, and is alive.
  void was_there(std::uint64_t address, Bytes bytes, std::uint32_t stream);
  void begin_iteration();
  // The log ends.
  Allocations finish();

  std::uint32_t there_before() const { return static_cast<std::uint32_t>(before_.size()); }
  Bytes bytes_before() const { return bytes_before_; }

 private:
  std::vector<AllocationEvent> before_, events_;  // blocks of `before_` have numbers from the other end
  std::unordered_map<std::uint64_t, std::uint32_t> alive_;
  std::uint32_t blocks_ = 0;
  Bytes bytes_before_ = 0;
};

}  // namespace tencache
