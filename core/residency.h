// Which chunk of which tensor lies where: the engine's book-keeping, and what a policy may look at.
//
// A tensor is cut into chunks (the whole tensor is one chunk if the chunk size is 0); each chunk has at most one copy
// in each tier. Copies in the fast tier form a list from the coldest (least recently used, or first to arrive) to the
// warmest; in the slower tiers, copies of chunks that the GPU holds too come first, because they can be given up.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/check.h"
#include "core/machine.h"
#include "core/machine_spec.h"

namespace tencache {

enum class CopyState : std::uint8_t {
  absent,
  reserved,   // room is taken, content on its way
  valid,      // holds the tensor's present value (or is being written by the running op)
  condemned,  // content is useless; the room goes free when the transfer that still touches it is over
};

// 16 bytes: there is one for each chunk in each tier. Its offset stands apart, where tiers have addresses.
struct Copy {
  ChunkId colder = none, warmer = none;
  std::uint16_t pins = 0;     // ops that run or wait with this copy
  std::uint16_t writers = 0;  // ops that run or wait and will write it: no source for a transfer
  std::uint8_t readers = 0;   // transfers in flight that read it
  CopyState state = CopyState::absent;
  bool evicting = false;   // a transfer that will free this room is queued or in flight
  bool unwritten = false;  // valid, but an op of a live program waits to write it: the value is where it was

  bool valid() const { return state == CopyState::valid; }
  bool holds_value() const { return valid() && !unwritten; }
  bool evictable() const { return valid() && pins == 0 && !evicting; }  // may be chosen as a victim now
};

// What is known of a tier's evictable copies without looking at them, so that nobody searches thousands of chunks in
// vain: no chunk is smaller than `least`, and none is valid in another tier, too, unless `shared`. At first: nothing.
struct Evictable {
  Bytes least = 0;
  bool shared = true;

  void add(const Evictable& other) {
    least = std::min(least, other.least);
    shared |= other.shared;
  }
};

// The ends of the list of a tier's valid copies, and what is known of those that are evictable.
struct TierOrder {
  ChunkId coldest = none, warmest = none;
  Evictable evictable;

  Evictable take_evictable() { return std::exchange(evictable, {std::numeric_limits<Bytes>::max(), false}); }
};

// Numbers of chunks in a row, to be looped over.
class ChunkRange {
 public:
  struct Iterator {
    ChunkId chunk;
    ChunkId operator*() const { return chunk; }
    Iterator& operator++() { return ++chunk, *this; }
    bool operator==(const Iterator&) const = default;
  };
  ChunkRange(ChunkId first, ChunkId end) : first_{first}, end_{end} {}
  Iterator begin() const { return first_; }
  Iterator end() const { return end_; }

 private:
  Iterator first_, end_;
};

class Residency {
 public:
  // `chunk_bytes` 0: whole tensors. `allocators` has one spec a tier. The spec must outlive this object.
  Residency(const MachineSpec& machine, const std::vector<AllocatorSpec>& allocators, Bytes chunk_bytes,
            bool unlimited_gpu);

  // Tensors. Ids of removed tensors are used again (by tensors of as many chunks).
  // Of less than 2^55 bytes. `stored_bytes`: as Tensor has it.
  TensorId add_tensor(Bytes bytes, Role role, bool persistent, Bytes stored_bytes = 0);
  TensorId next_tensor(Bytes bytes) const;        // the id that `add_tensor` gives next
  void reserve(std::span<const Tensor> tensors);  // these will be added
  void remove_tensor(TensorId tensor);            // all its copies must be absent
  std::size_t tensor_count() const { return tensors_.size(); }
  Bytes bytes(TensorId tensor) const { return tensors_[tensor].bytes; }
  Role role(TensorId tensor) const { return tensors_[tensor].role; }
  bool persistent(TensorId tensor) const { return tensors_[tensor].persistent; }
  // A live tensor's role becomes known late (a gradient when backward hands it over).
  void set_role(TensorId tensor, Role role) { tensors_[tensor].role = role; }
  // What the model and the optimizer keep, whether a program says that it persists or, running live, only what it is.
  bool lives_long(TensorId tensor) const {
    const Role role = tensors_[tensor].role;
    return persistent(tensor) || role == Role::parameter || role == Role::master_parameter ||
           role == Role::optimizer_state || role == Role::expert;
  }
  ChunkId first_chunk(TensorId tensor) const { return whole() ? tensor : first_chunks_[tensor]; }
  std::uint32_t chunk_count(TensorId tensor) const {
    return whole() ? 1 : first_chunks_[tensor + std::size_t{1}] - first_chunks_[tensor];
  }
  ChunkRange chunks_of(TensorId tensor) const {
    return {first_chunk(tensor), first_chunk(tensor) + chunk_count(tensor)};
  }

  // Chunks.
  std::size_t chunk_total() const { return whole() ? tensors_.size() : owners_.size(); }
  TensorId tensor_of(ChunkId chunk) const { return whole() ? chunk : owners_[chunk]; }
  Bytes begin_of(ChunkId chunk) const { return (chunk - first_chunk(tensor_of(chunk))) * chunk_bytes_; }
  Bytes bytes_of(ChunkId chunk) const {
    if (whole()) return bytes(chunk);
    return std::min(chunk_bytes_, bytes(owners_[chunk]) - begin_of(chunk));
  }
  // In the format that the tier keeps it in (Tensor::stored_bytes).
  Bytes bytes_in(ChunkId chunk, TierId tier) const {
    return stored_bytes_.empty() || !stores_[tier] ? bytes_of(chunk) : stored_part(chunk);
  }
  // Of a copy between the two: it is expanded on arrival, and packed before it leaves.
  Bytes bytes_moved(ChunkId chunk, TierId from, TierId to) const { return bytes_in(chunk, stores_[from] ? from : to); }
  // What the chunk takes in that tier: rounded to the tier's granularity and the allocator's buffers.
  Bytes footprint(ChunkId chunk, TierId tier) const {
    const Bytes bytes = rounded(bytes_in(chunk, tier), tier);
    return addressed_[tier] ? allocators_[tier]->footprint(bytes) : bytes;
  }

  // Tiers.
  std::size_t tier_count() const { return tier_count_; }
  Bytes capacity(TierId tier) const { return allocators_[tier]->capacity(); }
  Bytes used(TierId tier) const { return allocators_[tier]->used(); }
  Bytes free(TierId tier) const { return allocators_[tier]->free(); }
  Bytes leaving(TierId tier) const { return leaving_[tier]; }  // room that queued or running evictions will free
  Bytes peak(TierId tier) const { return peak_[tier]; }
  // By which what is used exceeds the capacity once all that leaves has left.
  Bytes excess(TierId tier) const {
    const Bytes stays = used(tier) - std::min(used(tier), leaving(tier));
    return stays - std::min(stays, capacity(tier));
  }
  // Whether a value may have its only copy there: not where the capacity changes.
  bool keeps(TierId tier) const { return !second_copies_[tier]; }
  const Allocator& allocator(TierId tier) const { return *allocators_[tier]; }
  bool addressed(TierId tier) const { return addressed_[tier]; }  // Allocator::addressed
  bool has_room(ChunkId chunk, TierId tier) const {
    return allocators_[tier]->has_room(rounded(bytes_in(chunk, tier), tier));
  }
  bool could_hold(ChunkId chunk, TierId tier) const {
    return allocators_[tier]->could_hold(rounded(bytes_in(chunk, tier), tier));
  }

  bool movable(TierId tier) const { return allocators_[tier]->movable(); }
  // Allocator::make_hole for the chunk.
  std::vector<Relocation> make_hole(ChunkId chunk, TierId tier, const Immovable& immovable) const {
    return allocators_[tier]->make_hole(rounded(bytes_in(chunk, tier), tier), immovable);
  }

  // Copies.
  const Copy& copy(ChunkId chunk, TierId tier) const { return copies_[chunk * tier_count_ + tier]; }
  // Of its room, while the copy is not absent; 0 where tiers have no addresses.
  std::uint64_t offset(ChunkId chunk, TierId tier) const { return addressed_[tier] ? offsets_[tier][chunk] : 0; }
  bool valid(ChunkId chunk, TierId tier) const { return copy(chunk, tier).valid(); }
  // In a tier that keeps it.
  bool valid_elsewhere(ChunkId chunk, TierId tier) const {
    for (TierId other = 0; other < tier_count_; ++other) {
      if (other != tier && keeps(other) && copy(chunk, other).holds_value()) return true;
    }
    return false;
  }
  // Every chunk of the tensor holds its value there.
  bool resident(TensorId tensor, TierId tier) const {
    for (const ChunkId chunk : chunks_of(tensor)) {
      if (!valid(chunk, tier)) return false;
    }
    return true;
  }
  bool evictable(ChunkId chunk, TierId tier) const { return copy(chunk, tier).evictable(); }
  // A search through a tier takes what is known, and adds again what it passed over or did not come to. What becomes
  // evictable meanwhile, or after it, is added by itself.
  Evictable take_evictable(TierId tier) { return orders_[tier].take_evictable(); }
  void add_evictable(TierId tier, const Evictable& known) { orders_[tier].evictable.add(known); }
  void add_evictable(ChunkId chunk, TierId tier) {
    Evictable& known = orders_[tier].evictable;
    known.add({bytes_of(chunk), known.shared || valid_elsewhere(chunk, tier)});
  }
  // The chunks that have left tier 0: how many ever, and the one of a number, of the last `left_kept`.
  static constexpr std::uint64_t left_kept = 1024;
  std::uint64_t left_first_tier() const { return left_first_tier_; }
  ChunkId left_first_tier(std::uint64_t number) const { return last_left_[number % left_kept]; }
  // The order of a tier; `none` at the end.
  ChunkId coldest(TierId tier) const { return orders_[tier].coldest; }
  ChunkId warmer(ChunkId chunk, TierId tier) const { return copy(chunk, tier).warmer; }

  // Changes: the engine's alone.
  void set_capacity(TierId tier, Bytes bytes) { allocators_[tier]->set_capacity(bytes); }
  bool reserve(ChunkId chunk, TierId tier);  // absent -> reserved; false when there is no room
  void commit(ChunkId chunk, TierId tier);   // reserved -> valid, warmest
  void release(ChunkId chunk, TierId tier);  // any but absent -> absent; nobody may read it
  void condemn(ChunkId chunk, TierId tier);  // valid or reserved -> condemned
  void touch(ChunkId chunk, TierId tier) {   // used: now the warmest
    if (copy(chunk, tier).warmer != none) move(chunk, tier, false);
  }
  void relocate(const Relocation& move, TierId tier);  // of make_hole
  void set_evicting(ChunkId chunk, TierId tier, bool evicting);
  void set_unwritten(ChunkId chunk, TierId tier, bool unwritten);
  void pin(ChunkId chunk, TierId tier) { ++mutable_copy(chunk, tier).pins; }
  void unpin(ChunkId chunk, TierId tier) {
    Copy& unpinned = mutable_copy(chunk, tier);
    TENCACHE_CHECK(unpinned.pins > 0);
    if (--unpinned.pins == 0 && unpinned.valid()) add_evictable(chunk, tier);
  }
  void add_writer(ChunkId chunk, TierId tier) { ++mutable_copy(chunk, tier).writers; }
  void remove_writer(ChunkId chunk, TierId tier) {
    TENCACHE_CHECK(copy(chunk, tier).writers > 0);
    --mutable_copy(chunk, tier).writers;
  }
  void add_reader(ChunkId chunk, TierId tier) { ++mutable_copy(chunk, tier).readers; }
  void remove_reader(ChunkId chunk, TierId tier) {
    TENCACHE_CHECK(copy(chunk, tier).readers > 0);
    --mutable_copy(chunk, tier).readers;
  }

 private:
  struct Entry {
    Bytes bytes : 55;
    bool persistent : 1;
    Role role : 8;
  };
  static_assert(sizeof(Entry) == 8);

  void add_evictable(ChunkId chunk);                // in every tier
  bool whole() const { return chunk_bytes_ == 0; }  // each tensor is one chunk, of the same number
  std::uint32_t chunks_for(Bytes bytes) const;
  void make_room(std::size_t chunks);
  Bytes rounded(Bytes bytes, TierId tier) const { return (bytes + granularity_[tier] - 1) & ~(granularity_[tier] - 1); }
  Copy& mutable_copy(ChunkId chunk, TierId tier) { return copies_[chunk * tier_count_ + tier]; }
  Bytes stored_part(ChunkId chunk) const;
  // Those in slower tiers can now be given up (`coldest`), or no longer.
  void rank_copies_below(ChunkId chunk, bool coldest) {
    for (TierId tier = 1; tier < tier_count_; ++tier) {
      if (valid(chunk, tier)) move(chunk, tier, coldest);
    }
  }
  void move(ChunkId chunk, TierId tier, bool coldest);
  void unlink(ChunkId chunk, TierId tier);
  void link(ChunkId chunk, TierId tier, bool coldest);
  bool given_up_first(ChunkId chunk, TierId tier) const { return tier != 0 && valid(chunk, 0); }

  std::size_t tier_count_;
  Bytes chunk_bytes_;
  std::array<Bytes, max_tiers> granularity_{};
  std::array<bool, max_tiers> addressed_{};
  std::array<bool, max_tiers> second_copies_{};  // CapacityOverTime
  std::array<bool, max_tiers> stores_{};         // in Tensor::stored_bytes: tiers of other kinds than the GPU's
  std::vector<std::unique_ptr<Allocator>> allocators_;
  std::vector<Entry> tensors_;
  std::vector<Bytes> stored_bytes_;                            // 0: as `bytes`; empty: of every tensor
  std::vector<ChunkId> first_chunks_;                          // and the end of the last; without `whole` only
  std::vector<TensorId> owners_;                               // of chunks; the same
  std::vector<Copy> copies_;                                   // [chunk][tier]; of reserved chunks, too
  std::array<std::vector<std::uint64_t>, max_tiers> offsets_;  // of chunks, in tiers with addresses
  std::map<std::uint32_t, std::vector<TensorId>> free_ids_;    // by chunk count
  std::array<TierOrder, max_tiers> orders_;
  std::array<Bytes, max_tiers> leaving_{}, peak_{};
  std::uint64_t left_first_tier_ = 0;
  std::array<ChunkId, left_kept> last_left_{};  // by number, modulo left_kept
};

}  // namespace tencache
