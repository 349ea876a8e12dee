// Allocators over the address range of one tier. They live here, not in a machine, so that simulation and hardware
// get the same addresses and fragmentation is predicted too.
//
// Where pages are mapped nothing fragments: `exact` is what compaction would reach at no cost, since a chunk's
// addresses stay and any free pages do. `movable` compacts by copies, which cost time. The others stand for systems
// that have neither, whose fragmentation is a figure of the result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/enum_names.h"
#include "core/units.h"

namespace tencache {

using ChunkId = std::uint32_t;

enum class AllocatorKind : std::uint8_t {
  exact,          // pages are mapped from anywhere, so only the sum counts: no addresses, no fragmentation
  best_fit,       // contiguous; the smallest hole that fits, lowest address first
  size_classes,   // buffers of several sizes; a request takes one of the smallest class that holds it (10Cache)
  fixed_buffers,  // buffers of one size; a request takes a whole one (ZeRO-Infinity's swap buffers)
  two_ended,      // contiguous first fit, from the low end or from the high end (FlashNeuron)
  caching,        // PyTorch's caching allocator (caching_allocator.h), without a machine's granularity; simulated only
  movable,        // as two_ended; chunks are moved to make a hole (movable_allocator.h); tier 0, whole tensors
};
template <>
inline constexpr auto enum_texts<AllocatorKind> = std::to_array<std::string_view>({"exact", "best_fit", "size_classes",
                                                                                   "fixed_buffers", "two_ended",
                                                                                   "caching", "movable"});

inline constexpr Bytes movable_unit = 512;  // sizes and places in a movable tier are multiples, as PyTorch's are

// A chunk goes to another place of its tier. The two ranges may overlap.
struct Relocation {
  ChunkId chunk = 0;
  std::uint64_t from = 0, to = 0;
  Bytes bytes = 0;
  bool operator==(const Relocation&) const = default;
};
// Whether the chunk must stay where it is.
using Immovable = std::function<bool(ChunkId chunk)>;

struct SizeClass {
  Bytes bytes = 0;
  std::uint64_t count = 0;
};

struct AllocatorSpec {
  AllocatorKind kind = AllocatorKind::exact;
  std::vector<SizeClass> classes;  // size_classes: one or more; fixed_buffers: exactly one
};

// Not thread safe. Sizes are positive.
class Allocator {
 public:
  explicit Allocator(Bytes capacity) : capacity_(capacity) {}
  virtual ~Allocator() = default;

  // Offset of the room, or nullopt when no room of that size is free. `high_end` matters to two_ended and movable
  // only, `chunk`, to which the room belongs, to movable.
  virtual std::optional<std::uint64_t> allocate(Bytes bytes, bool high_end, ChunkId chunk = 0) = 0;
  // `offset` and `bytes` as they were allocated.
  virtual void release(std::uint64_t offset, Bytes bytes) = 0;
  // Whether `allocate` would find room now.
  virtual bool has_room(Bytes bytes) const { return bytes <= free(); }
  // What a request of `bytes` takes away from the tier: more than asked where buffers have sizes.
  virtual Bytes footprint(Bytes bytes) const { return bytes; }
  // Whether a request of that size could be met if the tier were empty.
  virtual bool could_hold(Bytes bytes) const { return bytes <= capacity_; }
  virtual bool addressed() const { return true; }
  // The largest request that `allocate` would meet now, in bytes that it would take.
  virtual Bytes largest_free() const { return free(); }
  // Of what is used: beyond what was asked for.
  virtual Bytes padding() const { return 0; }

  // Whether it can do the following.
  virtual bool movable() const { return false; }
  // What to move, one after the other, so that there is a hole of so many bytes: the cheapest that was found. Nothing
  // has moved yet. Empty: there is no way, or the hole is there.
  virtual std::vector<Relocation> make_hole(Bytes /*bytes*/, const Immovable& /*immovable*/) const { return {}; }
  // It has been moved.
  virtual void relocate(const Relocation& /*move*/) { TENCACHE_CHECK(false); }

  Bytes capacity() const { return capacity_; }
  Bytes used() const { return used_; }
  Bytes free() const { return capacity_ - std::min(used_, capacity_); }
  // Exact only. More may be used then than there is: nothing is allocated until that is released.
  void set_capacity(Bytes capacity) { capacity_ = capacity; }

 protected:
  Bytes capacity_;
  Bytes used_ = 0;
};

// Throws Error when the classes of the spec do not fit into the capacity.
std::unique_ptr<Allocator> make_allocator(const AllocatorSpec& spec, Bytes capacity);

}  // namespace tencache
