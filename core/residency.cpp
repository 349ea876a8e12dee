#include "core/residency.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/units.h"

namespace tencache {

namespace {

// One to two GiB of bookkeeping on machines of three tiers. Of a program that runs anywhere chunks are fewer by far;
// a trace may claim tensors of petabytes.
constexpr Bytes most_chunks = Bytes{1} << 25;
constexpr Bytes too_large = Bytes{1} << 55;  // for an entry, and for any computer

Bytes add_saturated(Bytes a, Bytes b) { return a > ~b ? ~Bytes{0} : a + b; }

}  // namespace

Residency::Residency(const MachineSpec& machine, const std::vector<AllocatorSpec>& allocators, Bytes chunk_bytes,
                     bool unlimited_gpu)
    : tier_count_(machine.tiers.size()), chunk_bytes_(chunk_bytes) {
  TENCACHE_CHECK(allocators.size() == tier_count_ && tier_count_ <= max_tiers);
  for (TierId tier = 0; tier < tier_count_; ++tier) {
    Bytes capacity = tier == 0 && unlimited_gpu ? unlimited : machine.tiers[tier].capacity;
    granularity_[tier] = machine.tiers[tier].granularity;
    if (allocators[tier].kind == AllocatorKind::caching) granularity_[tier] = 1;
    if (allocators[tier].kind == AllocatorKind::movable) {
      granularity_[tier] = std::max(granularity_[tier], movable_unit);
      capacity -= capacity % granularity_[tier];
    }
    allocators_.push_back(make_allocator(allocators[tier], capacity));
    addressed_[tier] = allocators_.back()->addressed();
    stores_[tier] = machine.tiers[tier].kind != TierKind::gpu;
    second_copies_[tier] = machine.tiers[tier].over_time.any();
  }
  if (!whole()) first_chunks_.push_back(0);
}

std::uint32_t Residency::chunks_for(Bytes bytes) const {
  const Bytes chunks = whole() || bytes <= chunk_bytes_ ? 1 : (bytes + chunk_bytes_ - 1) / chunk_bytes_;
  TENCACHE_CHECK(chunks < none);
  return static_cast<std::uint32_t>(chunks);
}

TensorId Residency::add_tensor(Bytes bytes, Role role, bool persistent, Bytes stored_bytes) {
  TENCACHE_CHECK(bytes > 0 && bytes < too_large);
  const std::uint32_t chunks = chunks_for(bytes);
  std::vector<TensorId>& free_ids = free_ids_[chunks];
  const TensorId tensor = free_ids.empty() ? static_cast<TensorId>(tensors_.size()) : free_ids.back();
  const Entry entry{.bytes = bytes % too_large, .persistent = persistent, .role = role};
  if (tensor < tensors_.size()) {
    free_ids.pop_back();
    tensors_[tensor] = entry;
  } else {
    TENCACHE_CHECK(chunk_total() + chunks < none);
    tensors_.push_back(entry);
    if (!whole()) {
      owners_.insert(owners_.end(), chunks, tensor);
      first_chunks_.push_back(static_cast<ChunkId>(owners_.size()));
    }
    make_room(chunk_total());
  }
  if (stored_bytes != 0 || !stored_bytes_.empty()) {
    stored_bytes_.resize(tensors_.size(), 0);
    stored_bytes_[tensor] = stored_bytes;
  }
  return tensor;
}

// For the copies of so many chunks, at least.
void Residency::make_room(std::size_t chunks) {
  if (chunks * tier_count_ <= copies_.size()) return;
  copies_.resize(chunks * tier_count_);
  for (TierId tier = 0; tier < tier_count_; ++tier) {
    if (addressed_[tier]) offsets_[tier].resize(chunks);
  }
}

// As much of the stored form as the chunk is of the tensor.
Bytes Residency::stored_part(ChunkId chunk) const {
  const TensorId tensor = tensor_of(chunk);
  const Bytes all = bytes(tensor), stored = stored_bytes_[tensor];
  if (stored == 0) return bytes_of(chunk);
  const auto stored_until = [all, stored](Bytes end) {
    return static_cast<Bytes>(static_cast<unsigned __int128>(end) * stored / all);
  };
  const Bytes begin = begin_of(chunk);
  return std::max<Bytes>(1, stored_until(begin + bytes_of(chunk)) - stored_until(begin));
}

TensorId Residency::next_tensor(Bytes bytes) const {
  const auto found = free_ids_.find(chunks_for(bytes));
  if (found != free_ids_.end() && !found->second.empty()) return found->second.back();
  return static_cast<TensorId>(tensors_.size());
}

void Residency::reserve(std::span<const Tensor> tensors) {
  Bytes chunks = 0, bytes = 0;
  for (const Tensor& tensor : tensors) {
    chunks = add_saturated(chunks, chunk_bytes_ == 0 ? 1 : (tensor.bytes - 1) / chunk_bytes_ + 1);
    bytes = add_saturated(bytes, tensor.bytes);
  }
  if (chunks > most_chunks) {
    throw Error("tensors of " + format_bytes(bytes) + " in chunks of " + format_bytes(chunk_bytes_) + " are " +
                std::to_string(chunks) + " chunks, of which at most " + std::to_string(most_chunks) +
                " are followed; choose larger chunks (an option of the policy) or a smaller program");
  }
  tensors_.reserve(tensors.size());
  if (!whole()) {
    owners_.reserve(chunks);
    first_chunks_.reserve(tensors.size() + 1);
  }
  make_room(chunks);
}

void Residency::remove_tensor(TensorId tensor) {
  for (const ChunkId chunk : chunks_of(tensor)) {
    for (TierId tier = 0; tier < tier_count_; ++tier) TENCACHE_CHECK(copy(chunk, tier).state == CopyState::absent);
  }
  free_ids_[chunk_count(tensor)].push_back(tensor);
}

bool Residency::reserve(ChunkId chunk, TierId tier) {
  Copy& c = mutable_copy(chunk, tier);
  TENCACHE_CHECK(c.state == CopyState::absent);
  Allocator& allocator = *allocators_[tier];
  const auto offset = allocator.allocate(rounded(bytes_in(chunk, tier), tier), !lives_long(tensor_of(chunk)), chunk);
  if (!offset) return false;
  TENCACHE_CHECK(allocator.used() <= allocator.capacity());
  if (addressed_[tier]) offsets_[tier][chunk] = *offset;
  c.state = CopyState::reserved;
  peak_[tier] = std::max(peak_[tier], allocator.used());
  return true;
}

void Residency::relocate(const Relocation& move, TierId tier) {
  TENCACHE_CHECK(offset(move.chunk, tier) == move.from);
  allocators_[tier]->relocate(move);
  offsets_[tier][move.chunk] = move.to;
}

void Residency::commit(ChunkId chunk, TierId tier) {
  Copy& c = mutable_copy(chunk, tier);
  TENCACHE_CHECK(c.state == CopyState::reserved);
  c.state = CopyState::valid;
  link(chunk, tier, given_up_first(chunk, tier));
  if (tier == 0) rank_copies_below(chunk, true);  // they can now be given up
  add_evictable(chunk);
}

// A copy more, and the others are shared.
void Residency::add_evictable(ChunkId chunk) {
  for (TierId tier = 0; tier < tier_count_; ++tier) {
    if (valid(chunk, tier)) add_evictable(chunk, tier);
  }
}

void Residency::set_unwritten(ChunkId chunk, TierId tier, bool unwritten) {
  Copy& c = mutable_copy(chunk, tier);
  if (c.unwritten == unwritten) return;
  c.unwritten = unwritten;
  if (!unwritten) add_evictable(chunk);
}

void Residency::release(ChunkId chunk, TierId tier) {
  Copy& c = mutable_copy(chunk, tier);
  TENCACHE_CHECK(c.state != CopyState::absent && c.readers == 0);
  const bool was_valid = c.valid();
  if (was_valid) unlink(chunk, tier);
  if (c.evicting) set_evicting(chunk, tier, false);
  c.state = CopyState::absent;
  c.unwritten = false;
  allocators_[tier]->release(offset(chunk, tier), rounded(bytes_in(chunk, tier), tier));
  if (tier == 0) last_left_[left_first_tier_++ % left_kept] = chunk;
  if (tier == 0 && was_valid) rank_copies_below(chunk, false);  // they are the only ones now
}

void Residency::condemn(ChunkId chunk, TierId tier) {
  Copy& c = mutable_copy(chunk, tier);
  TENCACHE_CHECK(c.valid() || c.state == CopyState::reserved);
  const bool was_valid = c.valid();
  if (was_valid) unlink(chunk, tier);
  if (!c.evicting) set_evicting(chunk, tier, true);  // its room will come free without anybody's doing
  c.state = CopyState::condemned;
  if (tier == 0 && was_valid) rank_copies_below(chunk, false);
}

void Residency::move(ChunkId chunk, TierId tier, bool coldest) {
  unlink(chunk, tier);
  link(chunk, tier, coldest);
}

void Residency::set_evicting(ChunkId chunk, TierId tier, bool evicting) {
  Copy& c = mutable_copy(chunk, tier);
  TENCACHE_CHECK(c.evicting != evicting);
  c.evicting = evicting;
  if (evicting) {
    leaving_[tier] += footprint(chunk, tier);
  } else {
    leaving_[tier] -= footprint(chunk, tier);
    if (c.valid()) add_evictable(chunk, tier);
  }
}

void Residency::unlink(ChunkId chunk, TierId tier) {
  Copy& c = mutable_copy(chunk, tier);
  (c.colder == none ? orders_[tier].coldest : mutable_copy(c.colder, tier).warmer) = c.warmer;
  (c.warmer == none ? orders_[tier].warmest : mutable_copy(c.warmer, tier).colder) = c.colder;
  c.colder = c.warmer = none;
}

void Residency::link(ChunkId chunk, TierId tier, bool coldest) {
  Copy& c = mutable_copy(chunk, tier);
  if (coldest) {
    c.colder = none;
    c.warmer = orders_[tier].coldest;
    (c.warmer == none ? orders_[tier].warmest : mutable_copy(c.warmer, tier).colder) = chunk;
    orders_[tier].coldest = chunk;
  } else {
    c.warmer = none;
    c.colder = orders_[tier].warmest;
    (c.colder == none ? orders_[tier].coldest : mutable_copy(c.colder, tier).warmer) = chunk;
    orders_[tier].warmest = chunk;
  }
}

}  // namespace tencache
