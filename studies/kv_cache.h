// Caches of KV blocks that outlive a request: which blocks of a prompt are there already, in GPU memory, CPU memory or
// on an SSD, under rules that published and classic caches have.
//
// Requests run one after the other. Each tier is a cache of its own that all requests pass, as vLLM's and LMCache's
// are: blocks that are computed or fetched are stored in every tier (write-through), and each tier decides for itself
// what leaves. Only a prefix hits: a block counts if it and all before it are in some tier, and comes from the fastest.
// While a request runs, its blocks stay; room is made before its missing blocks enter. Of a request that is larger than
// a tier, the deepest blocks do not enter.
//
//  1. lru: who was used longest ago leaves; a prompt's blocks are used in order, so its first ones leave first.
//  2. lfu: who was used least since it came in leaves; of equal ones as lru.
//  3. fifo: who came first leaves.
//  4. s3-fifo (Yang et al., SOSP 2023, algorithm 1). New blocks enter the small queue, or the main queue if they are
//     among the last ones (as many as nine tenths of the capacity) that left the small queue. While the small queue has
//     a tenth of the capacity, its oldest leaves, or goes to the main queue if it was used twice since it came in; else
//     the oldest of the main queue, which comes in again, with one use less, while it has any of at most three.
//  5. belady: an oracle. Keeps the blocks whose next use is nearest, and none that is not used again. What it keeps is
//     always prefixes, so no cache of this size has more hits.
//  6. vllm (vLLM, v1/core/block_pool.py and kv_cache_manager.py; tiers: v1/kv_offload). Least recently used, in the
//     order in which requests free their blocks: the last block first. Only full blocks are kept, and the last token of
//     a prompt is always computed. Blocks of generated tokens, which vLLM keeps as well, are not in these traces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "traces/import/block_trace.h"

namespace tencache {

enum class KvPolicyKind : std::uint8_t { lru, lfu, fifo, s3_fifo, belady, vllm };

struct KvPolicy {
  KvPolicyKind kind;
  const char* name;
  const char* summary;
  bool oracle = false;  // knows the requests to come
};
std::span<const KvPolicy> kv_policies();
const KvPolicy& kv_policy(const std::string& name);  // Error that lists the names

enum class KvTier : std::uint8_t { gpu, cpu, ssd };
inline constexpr std::size_t kv_tiers = 3;
template <typename Figure>
using ByKvTier = std::array<Figure, kv_tiers>;

class KvCache {
 public:
  using Block = BlockTrace::Block;
  virtual ~KvCache() = default;
  virtual bool has(Block block) const = 0;
  // The next request has used these, a part of trace.blocks(). Returns how many of them have entered.
  virtual std::uint64_t use(std::span<const Block> blocks) = 0;
};
// `capacity` in blocks, above 0. The trace outlives the cache.
std::unique_ptr<KvCache> make_kv_cache(const BlockTrace& trace, const KvPolicy& policy, std::uint64_t capacity);

struct KvRun {
  const KvPolicy* policy = nullptr;
  ByKvTier<std::uint64_t> capacity{};                                // blocks
  std::uint64_t requests = 0, blocks = 0, tokens = 0;                // those that count
  std::uint64_t hit_tokens = 0, larger_than_gpu = 0;                 // the latter: requests that vLLM could not run
  ByKvTier<std::uint64_t> hits{}, stored{};                          // blocks
  double prefill_seconds = 0, saved_seconds = 0, fetch_seconds = 0;  // of the first, without a cache
};

// What a prompt costs; a study without times leaves it all 0.
class PrefillCost {
 public:
  PrefillCost() = default;
  // Seconds for 1, 2, 4, … tokens; those between follow from seconds per token, which attention makes a line.
  explicit PrefillCost(std::vector<double> seconds) : seconds_(std::move(seconds)) {}

  double seconds(std::uint64_t tokens) const;
  // Without computing the first `cached` tokens, fewer than all. The rest still attends to them.
  double saved(std::uint64_t tokens, std::uint64_t cached) const;

 private:
  std::vector<double> seconds_;
};

struct KvCosts {
  PrefillCost prefill;
  ByKvTier<double> block_seconds{};  // to fetch a block from the tier
};

// `warm_up`: so many requests come first and do not count.
KvRun run_kv_cache(const BlockTrace& trace, const KvPolicy& policy, const ByKvTier<std::uint64_t>& capacity,
                   std::uint64_t warm_up, const KvCosts& costs);

}  // namespace tencache
