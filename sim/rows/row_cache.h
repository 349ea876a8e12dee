// Caches of embedding rows on a GPU, as published systems decide them: which rows enter which slots before a batch, and
// which rows leave for them. No memory is touched: what moves rows follows the plan (row_run.h counts and times it).
//
// 1. cached-embedding (CachedEmbedding, arXiv 2208.05321; ColossalAI's cache_embedding). Any row in any slot. The ids
//    of W batches are united, and the missing rows brought in before the first of them; all of the union must fit.
//    Victims are rows outside the union: `LFU` those with the smallest count of lookups since they came in, which
//    begins at 0; `DATASET` those that the whole data set uses least, of equal ones the last row. Before the first
//    batch, 0.7 of the slots (rounded up) have rows: LFU rows 0, 1, 2, …; DATASET the most used ones.
// 2. uvm-lru, uvm-lfu (TorchRec's fused_uvm_caching; FBGEMM's lru_cache_populate.cu, lfu_cache_populate.cu). A row may
//    lie in one of 32 slots, those of the set that Murmur3's 64-bit finaliser of its number gives. Missing rows take
//    the slots of their set from the least recently used on, never those of rows of this batch or of the W before it
//    (prefetch); the GPU reads rows that get none over the bus. LFU counts every row for ever, the rows with the
//    largest counts come first, and one enters only if its count is at least the victim's.
// 3. scratchpipe (arXiv 2205.04702; no public code). Any row in any slot. Missing rows of a batch come in while three
//    earlier batches are in the pipe: victims are the least recently used rows that none of those, the batch, or the W
//    after it needs. The cache starts empty. Which free row is taken is not said there.
// 4. belady: a bound, not a system. After each batch the cache keeps those of its rows and the batch's whose next use
//    is nearest; the others are read over the bus. No cache of so many slots has fewer misses.
//
// Ties that the sources leave open: the lowest slot. Everything is an integer, and the same ids give the same plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/rows/row_ids.h"

namespace tencache {

enum class RowPolicyKind : std::uint8_t {
  cached_embedding,
  cached_embedding_dataset,
  uvm_lru,
  uvm_lfu,
  scratchpipe,
  belady
};

struct RowPolicy {
  RowPolicyKind kind;
  const char* name;
  const char* summary;
  // Bytes on the GPU beside the rows, for every row of the tables and for every slot.
  Bytes map_bytes_per_row, map_bytes_per_slot;
  std::uint32_t ahead;  // W where none is given
};
std::span<const RowPolicy> row_policies();
const RowPolicy& row_policy(const std::string& name);  // Error that lists the names

inline constexpr std::uint32_t uvm_set_slots = 32;
inline constexpr std::uint32_t scratchpipe_behind = 3;

struct RowCacheOptions {
  std::uint32_t slots = 1;  // of uvm-… rounded up to whole sets
  std::uint32_t ahead = 0;  // W; of cached-embedding 0 is 1
  double warm_up = 0.7;     // share of the slots; of cached-embedding
};

// What must be there together exceeds the slots.
class TooFewSlots : public Error {
  using Error::Error;
};

inline constexpr std::uint32_t no_slot = 0xffff'ffff;

struct RowMove {
  Row row = 0;
  std::uint32_t slot = 0;
};

// What happens before a batch: rows leave, then rows enter.
struct RowPlan {
  std::uint64_t missed_lookups = 0;  // of missing rows, in the first batch that has each
  std::vector<RowMove> out, in;
  std::vector<Row> direct;  // missing rows that get no slot: the GPU reads and writes them over the bus
  // Misses are rows that enter or stay out, hits all others of the batch.

  void clear();
};

class RowCache {
 public:
  virtual ~RowCache() = default;
  // Batches in order, each once. Throws TooFewSlots.
  virtual void plan(std::size_t batch, RowPlan& plan) = 0;
  // Where the row lies after the last plan; no_slot: nowhere.
  virtual std::uint32_t slot_of(Row row) const = 0;
  std::uint32_t slots() const { return slots_; }
  // Rows that lie in slots before the first batch.
  const std::vector<RowMove>& warm() const { return warm_; }

 protected:
  explicit RowCache(std::uint32_t slots) : slots_(slots) {}
  std::uint32_t slots_;
  std::vector<RowMove> warm_;
};

// `ids` outlives the cache.
std::unique_ptr<RowCache> make_row_cache(const RowPolicy& policy, const RowIds& ids, const RowCacheOptions& options);

// Slots with which it never runs out of them; 0: any number will do.
std::uint64_t enough_row_slots(const RowPolicy& policy, const RowIds& ids, std::uint32_t ahead);

}  // namespace tencache
