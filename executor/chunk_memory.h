// Memory of one tier on this computer: a hard cap, and chunks of tensors mapped into address ranges, which change only
// where `relocate` is called.
//
// All bytes of the tier are pages of one memfd of the tier's capacity. Each tensor has a reserved range of addresses
// without pages; `map` puts pages of the memfd into a part of it, `unmap` takes them out, so that an access to an
// evicted chunk faults instead of reading somebody else's bytes. Residency may be partial, nothing is copied and
// nothing fragments.
//
// Mapping costs tenths of a microsecond a page, and a training program allocates the same activations in each step. So
// the pages of a retired tensor stay mapped at its addresses (parked) until a tensor of the same size takes both over,
// or until the pages are needed elsewhere. Parked pages count as free. Evicted chunks are parked only where nobody but
// copies touches them (ChunkMemoryOptions::parks): a chunk that comes back finds its pages mapped.
//
// Pages are populated at once (MAP_POPULATE): a page fault costs ten times as much as populating in bulk (measured by
// `calibrate`). Pages never touched before are zeroed by the kernel, which is slow (a fraction of a GB/s on a virtual
// machine): `prefault` does that in the constructor.
//
// With `raw_access` pages that nobody has stay populated in another mapping of the memfd, their home, and go from there
// to a tensor's addresses and back by mremap, which moves page tables instead of filling them: a tenth of the time from
// 1 MiB on. A few pages (64 KiB) are mapped once more instead, which is as fast and leaves their home as it is.
//
// With an accelerator the pages are locked for it (PinnedSegments), in the constructor as far as their use is predicted.
// `pieces` says where a chunk's pages lie there.
//
// Threading: as tier_memory.h says.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/trace.h"
#include "core/units.h"
#include "executor/accelerator.h"
#include "executor/address_space.h"
#include "executor/extent_allocator.h"
#include "executor/file_descriptor.h"
#include "executor/hidden_pages.h"
#include "executor/tensor_ranges.h"
#include "executor/tier_memory.h"

namespace tencache {

// A file in memory mapped once more, in segments as they come into use: locked for an accelerator's copies, or for
// filling pages that are not shown yet, of which child processes have nothing. Not thread-safe.
class PinnedSegments {
 public:
  // With neither an accelerator nor `hidden` there are none. The file stays open; `tier` is for messages. A segment has
  // `segment_bytes`, a multiple of 4 KiB.
  PinnedSegments(std::shared_ptr<Accelerator> accelerator, bool hidden, std::string tier, int file, Bytes file_bytes,
                 Bytes segment_bytes);
  ~PinnedSegments();
  PinnedSegments(const PinnedSegments&) = delete;
  PinnedSegments& operator=(const PinnedSegments&) = delete;

  // The file is used up to there. `touch`: its pages are made as well, so that locking them is quick; nothing else
  // touches them yet. Throws Error when the system refuses.
  void cover(Bytes used_bytes, bool touch = false);
  // Appends where the first `bytes` of the extent lie; they are covered.
  void locate(const Extent& extent, Bytes bytes, std::vector<HostPiece>& pieces) const;
  // Where the covered extent lies, or null if it lies in several segments.
  std::byte* address(const Extent& extent) const;
  // Why a segment could not be locked; empty if all of them are.
  const std::string& refusal() const { return refusal_; }

 private:
  Bytes bytes_of(std::size_t segment) const;

  std::shared_ptr<Accelerator> accelerator_;
  bool hidden_;
  std::string tier_;
  int file_;
  Bytes file_bytes_, segment_bytes_;
  std::vector<std::byte*> segments_;
  std::vector<bool> pinned_;  // by segment
  std::string refusal_;
};

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{page_bytes}); }
};
using AlignedBuffer = std::unique_ptr<std::byte[], AlignedDelete>;

// Whole pages, aligned to one, as O_DIRECT wants them; filled with `content`, so that they are there.
AlignedBuffer aligned_buffer(Bytes bytes, std::byte content);

struct ChunkMemoryOptions {
  bool addressed = false;  // the caller gives offsets (best fit, fixed buffers, …); otherwise pages come from anywhere
  bool populate = true;    // map pages at once; false leaves it to page faults
  bool parks = false;      // evicted chunks; not with `addressed`
  bool raw_access = false;                             // HostMachineOptions
  bool prefault = false;                               // touch the whole capacity in the constructor
  std::shared_ptr<Accelerator> accelerator = nullptr;  // that copies from and to these pages
  Bytes locked = 0;                                    // so much is page-locked for it in the constructor
  Bytes most = 0;                                      // set_capacity goes so far; 0: nobody calls it
};

class ChunkMemory final : public TierMemory {
 public:
  using Options = ChunkMemoryOptions;

  // `name` is the tier's, for messages. The capacity is rounded down to the granularity, a power of two of at least
  // 4 KiB; every chunk occupies a multiple of it. Throws Error if the computer refuses that much.
  ChunkMemory(std::string name, Bytes capacity, Bytes granularity, Options options = {});

  void create(TensorId tensor, Bytes bytes) override;
  void retire(TensorId tensor) override;
  void destroy(TensorId tensor) override;
  // `begin` is a multiple of 4 KiB. With `addressed` the pages are those at `offset`.
  void map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) override;
  void unmap(TensorId tensor, Bytes begin, Bytes bytes) override;
  // Another address for the tensor, with the pages that are mapped now: what an arena that moves tensors does, for
  // tests. An access to the old one faults; it belongs to nobody for some thousands of calls. The tensor is not
  // exposed, and nobody uses its memory.
  void relocate(TensorId tensor);
  // With `addressed`, and without `raw_access`: the chunk's bytes go to the pages at `offset`, which nobody else has, but
  // may overlap its old ones. Nobody touches it meanwhile; its address stays.
  void move(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset);
  // As `map`, but the pages are at `copy_address`, and nothing is at the tensor's address until show() of `hidden_at`.
  void map_hidden(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset);
  std::byte* copy_address(TensorId tensor, Bytes begin) const;  // the tensor's own, of a chunk that is not hidden
  std::shared_ptr<HiddenPages> hidden_at(TensorId tensor, Bytes begin) const;  // null: of a chunk that is not hidden
  // With `raw_access`. An exposed tensor can be written only between `open_for_writing` and `close_for_writing`; other
  // writes fault. Both do nothing for tensors that are not exposed. `writable`: it is open from the start.
  void expose(TensorId tensor, bool writable);
  void conceal(TensorId tensor);  // it is exposed no more
  void open_for_writing(TensorId tensor) { set_access(tensor, true); }
  void close_for_writing(TensorId tensor) { set_access(tensor, false); }
  bool owns(const void* address) const { return addresses_.owns(address); }
  // From any thread; `none` where there is no tensor.
  TensorId tensor_at(const void* address) const { return ranges_.find(address); }
  std::byte* address(TensorId tensor) const override { return ranges_.address(tensor); }
  Bytes bytes(TensorId tensor) const override { return ranges_.bytes(tensor); }
  bool mapped(TensorId tensor, Bytes begin) const override;
  Bytes capacity() const override { return pages_.capacity(); }
  // From now on so much, or, if it is less, what room in use and pages that are locked allow: returns how much it is.
  // The system has the pages that it has no more.
  Bytes set_capacity(Bytes capacity);
  ChunkMemoryStatistics statistics() const override;

  // With an accelerator: where the pages of a mapped chunk lie for its copies, in order.
  std::vector<HostPiece> pieces(TensorId tensor, Bytes begin, Bytes bytes) const;
  // Why pages could not be locked; empty if all of them are.
  const std::string& pin_refusal() const { return segments_.refusal(); }
  bool addressed() const { return options_.addressed; }

 private:
  struct Mapping {
    Bytes begin = 0;
    Bytes bytes = 0;                                // of addresses, whole pages
    std::shared_ptr<HiddenPages> hidden = nullptr;  // where `map_hidden` has put it
    bool moved = false;                             // its pages have left their home
    Extent first;                                   // nearly always the only one
    std::unique_ptr<std::vector<Extent>> more;

    template <typename Visit>
    void each(const Visit& visit) const {
      visit(first);
      if (more == nullptr) return;
      for (const Extent& extent : *more) visit(extent);
    }
    Bytes pages() const {
      Bytes bytes_taken = 0;
      each([&](const Extent& extent) { bytes_taken += extent.bytes; });
      return bytes_taken;
    }
  };
  using Ranges = TensorRanges<std::byte*, std::vector<Mapping>>;  // mappings by begin
  using Range = Ranges::Range;
  using Parked = std::unordered_map<std::byte*, std::vector<Mapping>>;

  void map_at(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset, bool hidden);
  std::shared_ptr<HiddenPages> hide(std::byte* address, Mapping& mapping, bool read_only);
  void unhide(const HiddenPages& hidden, Mapping& mapping);
  // Whether so many bytes come from their home.
  bool from_home(Bytes bytes) const;
  void populate_homes();
  // The pages of scratch_ from their home to these addresses. False: they have none, or the system refuses.
  bool fetch(std::byte* to, Bytes bytes);
  // What is mapped there goes back to its home, or is only unmapped; without pages at the address then.
  void unmap_at(std::byte* at, Mapping& mapping, bool read_only);
  void send_home(std::byte* at, const Mapping& mapping, bool read_only);
  const Mapping& mapping_at(TensorId tensor, Bytes begin) const;
  void map_extents(std::byte* at, const std::vector<Extent>& extents, Bytes bytes);
  void protect(std::byte* at, Bytes bytes);
  void set_access(TensorId tensor, bool writable);
  void park(std::byte* address, Mapping mapping);
  Parked::value_type* parked_at(std::byte* address);  // null: there is no list
  // Takes over what is parked at exactly this place; false if there is none, and nothing is parked at the address then.
  bool adopt(std::byte* address, Mapping& mapping);
  void let_go(std::byte* address, std::vector<Mapping>& parked);
  void let_go_of(std::byte* address);             // of what is parked there
  void let_go_of_parked(Bytes room = unlimited);  // until so much is free
  Bytes used() const { return pages_.used() - parked_bytes_; }
  Bytes most_bytes() const { return std::max(pages_.capacity(), options_.most); }
  void lock_at_once();
  void check_memory_left();
  bool take_pages(Bytes room);  // into scratch_; parked ones, too
  void note_map(Bytes bytes);

  std::string name_;
  Bytes granularity_;
  Options options_;
  ExtentAllocator pages_;
  FileDescriptor memory_;
  AddressSpace addresses_;
  AddressSpace hidden_;
  Ranges ranges_;
  // By the address of the tensor that was; a list that is empty keeps its memory.
  Parked parked_;
  Parked::value_type* last_parked_ = nullptr;  // a temporary's addresses are the next one's
  Bytes parked_bytes_ = 0;                     // of pages_
  std::size_t parked_count_ = 0;
  std::deque<Extent> left_;  // addresses that `relocate` has left
  std::vector<Extent> scratch_;
  std::vector<HostPiece> homes_;  // of scratch_
  Bytes populated_ = 0;           // of the memfd, from its beginning: in use, or populated at home
  Bytes checked_high_water_ = 0;
  ChunkMemoryStatistics statistics_;
  PinnedSegments segments_;  // of the memfd
};

// Makes fresh pages with so many threads, so that locking them is quick; 0: as many as pay. Where the system refuses it,
// locking makes them.
void make_pages(std::byte* memory, Bytes bytes, unsigned threads = 0);

// MemAvailable of this computer; `unlimited` where it is not told.
Bytes available_memory();

}  // namespace tencache
