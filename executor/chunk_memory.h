// Memory of one tier on this computer: a hard cap, and chunks of tensors mapped into address ranges that never change.
//
// All bytes of the tier are pages of one memfd of the tier's capacity. Each tensor has a reserved range of addresses
// without pages; `map` puts pages of the memfd into a part of it, `unmap` takes them out, so that an access to an
// evicted chunk faults instead of reading somebody else's bytes. Residency may be partial, nothing is copied and
// nothing fragments.
//
// Pages are populated at once (MAP_POPULATE): a page fault costs ten times as much as populating in bulk (measured by
// `calibrate`). Pages never touched before are zeroed by the kernel, which is slow (a fraction of a GB/s on a virtual
// machine): `prefault` does that in the constructor.
//
// Threading: one thread at a time calls everything but `address`, which any thread may call.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/trace.h"
#include "core/units.h"
#include "executor/extent_allocator.h"
#include "executor/file_descriptor.h"

namespace tencache {

inline constexpr Bytes page_bytes = 4096;

struct ChunkMemoryOptions {
  bool addressed = false;  // the caller gives offsets (best fit, fixed buffers, …); otherwise pages come from anywhere
  bool populate = true;    // map pages at once; false leaves it to page faults
  bool prefault = false;   // touch the whole capacity in the constructor
};

struct ChunkMemoryStatistics {
  std::uint64_t maps = 0, unmaps = 0;
  Bytes mapped_bytes = 0;  // sum over all maps
  Nanoseconds map_ns = 0, unmap_ns = 0;
  std::uint64_t extents = 0;  // sum over all maps; ÷ maps = pieces per chunk
  Bytes used_bytes = 0, peak_used_bytes = 0;
};

class ChunkMemory {
 public:
  using Options = ChunkMemoryOptions;

  // `name` is the tier's, for messages. The capacity is rounded down to the granularity, a power of two of at least
  // 4 KiB; every chunk occupies a multiple of it. Throws Error if the computer refuses that much.
  ChunkMemory(std::string name, Bytes capacity, Bytes granularity, Options options = {});
  ~ChunkMemory();
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  // Reserves the tensor's addresses. Ids are small numbers: they index a table. 0 bytes are allowed and take nothing.
  void create(TensorId tensor, Bytes bytes);
  // Unmaps what is still mapped and gives the addresses back; they are reused for tensors of similar size.
  void destroy(TensorId tensor);

  // Puts pages at [begin, begin + bytes) of the tensor; `begin` is a multiple of 4 KiB, the range is not mapped yet.
  // With `addressed` the pages are those at `offset`. Content is undefined. Throws OutOfMemory beyond the cap, Error
  // when the kernel refuses (too many mappings). A range of pages that others use is a broken invariant.
  void map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset);
  // The same range as in `map`.
  void unmap(TensorId tensor, Bytes begin, Bytes bytes);

  // Constant from create to destroy; aligned to 4 KiB.
  std::byte* address(TensorId tensor) const;
  Bytes bytes(TensorId tensor) const;
  // Is a chunk that begins here mapped?
  bool mapped(TensorId tensor, Bytes begin) const;
  Bytes capacity() const { return pages_.capacity(); }
  ChunkMemoryStatistics statistics() const;

 private:
  struct Mapping {
    Bytes begin = 0;
    Bytes bytes = 0;  // of addresses, whole pages
    Extent first;     // nearly always the only one
    std::unique_ptr<std::vector<Extent>> more;
  };
  struct Record {
    std::byte* address = nullptr;
    Bytes bytes = 0;
    bool exists = false;
    std::vector<Mapping> mappings;  // by begin
  };
  // Free address ranges of one size.
  struct SizeClass {
    Bytes bytes = 0;
    std::vector<std::byte*> free;
  };

  Record& record(TensorId tensor);
  const Record& record(TensorId tensor) const;
  SizeClass& size_class(Bytes bytes);
  std::byte* reserve(Bytes bytes);
  void map_extents(std::byte* at, const std::vector<Extent>& extents, Bytes bytes);
  void protect(std::byte* at, Bytes bytes);
  void give_pages(Mapping& mapping);
  void check_memory_left();

  std::string name_;
  Bytes granularity_;
  Options options_;
  ExtentAllocator pages_;
  FileDescriptor memory_;
  std::vector<Extent> regions_;  // reserved addresses, to unmap in the end
  std::byte* region_next_ = nullptr;
  std::byte* region_end_ = nullptr;
  std::vector<SizeClass> classes_;    // by index of the class
  mutable std::mutex records_mutex_;  // guards growth and fields that `address` reads
  std::vector<Record> records_;
  std::vector<Extent> scratch_;
  Bytes checked_high_water_ = 0;
  ChunkMemoryStatistics statistics_;
};

// MemAvailable of this computer; `unlimited` where it is not told.
Bytes available_memory();

}  // namespace tencache
