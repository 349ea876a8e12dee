#include "studies/kv_cache.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/text.h"

namespace tencache {
namespace {

using Block = BlockTrace::Block;

constexpr std::array all_policies = {
    KvPolicy{KvPolicyKind::lru, "lru", "least recently used, a prompt's first blocks first"},
    KvPolicy{KvPolicyKind::lfu, "lfu", "least frequently used since it came in"},
    KvPolicy{KvPolicyKind::fifo, "fifo", "first in, first out"},
    KvPolicy{KvPolicyKind::s3_fifo, "s3-fifo", "a small queue for what is used once, a main queue, and a memory"},
    KvPolicy{KvPolicyKind::belady, "belady", "an oracle: keeps the blocks whose next use is nearest", true},
    KvPolicy{KvPolicyKind::vllm, "vllm", "vLLM: least recently used, a prompt's last block first; full blocks only"},
};

constexpr Block no_block = static_cast<Block>(-1);

// Of all blocks, each in one queue at most.
struct Links {
  explicit Links(std::size_t blocks) : before(blocks, no_block), after(blocks, no_block) {}
  std::vector<Block> before, after;
};

class Queue {
 public:
  explicit Queue(Links& links) : links_(&links) {}

  std::uint64_t size() const { return size_; }
  bool is_empty() const { return size_ == 0; }

  void push_back(Block block) {
    links_->before[block] = last_;
    links_->after[block] = no_block;
    (last_ == no_block ? first_ : links_->after[last_]) = block;
    last_ = block;
    ++size_;
  }
  void push_front(Block block) {
    links_->after[block] = first_;
    links_->before[block] = no_block;
    (first_ == no_block ? last_ : links_->before[first_]) = block;
    first_ = block;
    ++size_;
  }
  void remove(Block block) {
    const Block before = links_->before[block], after = links_->after[block];
    (before == no_block ? first_ : links_->after[before]) = after;
    (after == no_block ? last_ : links_->before[after]) = before;
    --size_;
  }
  Block pop_front() {
    const Block block = first_;
    TENCACHE_CHECK(block != no_block);
    remove(block);
    return block;
  }

 private:
  Links* links_;
  Block first_ = no_block, last_ = no_block;
  std::uint64_t size_ = 0;
};

// What all but the oracle have in common: a request's blocks are found, room is made, the missing ones enter.
class BoundedCache : public KvCache {
 public:
  bool has(Block block) const final { return present_[block] != 0; }

  std::uint64_t use(std::span<const Block> blocks) final {
    ++request_;
    missing_.clear();
    used_.clear();
    std::uint64_t hits = 0;
    for (const Block block : blocks) {
      if (!has(block)) continue;
      in_use_[block] = request_;
      hit(block);
      ++hits;
    }
    for (const Block block : blocks) {
      const bool is_missing = !has(block);
      if (is_missing && hits + missing_.size() == capacity_) continue;
      if (is_missing) missing_.push_back(block);
      used_.push_back(block);
    }
    const std::uint64_t wanted = size_ + missing_.size();
    if (wanted > capacity_) make_room(wanted - capacity_);
    size_ += missing_.size();
    TENCACHE_CHECK(size_ <= capacity_);
    for (const Block block : missing_) {
      present_[block] = 1;
      enter(block);
    }
    release(used_);
    return missing_.size();
  }

 protected:
  BoundedCache(std::size_t blocks, std::uint64_t capacity)
      : links_(blocks), capacity_(capacity), present_(blocks, 0), in_use_(blocks, 0) {}

  // A block that is there is used; it may leave its queue until release().
  virtual void hit(Block /*block*/) {}
  // So many leave, none that is in use.
  virtual void make_room(std::uint64_t blocks) = 0;
  virtual void enter(Block /*block*/) {}
  // The request is over: its blocks that are there, in order.
  virtual void release(std::span<const Block> /*blocks*/) {}

  bool is_in_use(Block block) const { return in_use_[block] == request_; }
  void leave(Block block) {
    present_[block] = 0;
    --size_;
  }

  Links links_;
  std::uint64_t capacity_;

 private:
  std::uint64_t size_ = 0;
  std::uint32_t request_ = 0;
  std::vector<std::uint8_t> present_;
  std::vector<std::uint32_t> in_use_;  // by the request of that number
  std::vector<Block> missing_, used_;
};

class Lru final : public BoundedCache {
 public:
  Lru(std::size_t blocks, std::uint64_t capacity, bool last_first)
      : BoundedCache(blocks, capacity), queue_(links_), last_first_(last_first) {}

 private:
  void hit(Block block) override { queue_.remove(block); }
  void make_room(std::uint64_t blocks) override {
    for (; blocks > 0; --blocks) leave(queue_.pop_front());
  }
  void release(std::span<const Block> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      queue_.push_back(last_first_ ? blocks[blocks.size() - 1 - i] : blocks[i]);
    }
  }

  Queue queue_;
  bool last_first_;
};

class Lfu final : public BoundedCache {
 public:
  Lfu(std::size_t blocks, std::uint64_t capacity)
      : BoundedCache(blocks, capacity), uses_(blocks, 0), queues_(1, Queue(links_)) {}

 private:
  void hit(Block block) override { queues_[uses_[block]].remove(block); }
  void enter(Block block) override { uses_[block] = 0; }
  void make_room(std::uint64_t blocks) override {
    for (; blocks > 0; --blocks) {
      while (queues_[least_].is_empty()) ++least_;
      leave(queues_[least_].pop_front());
    }
  }
  void release(std::span<const Block> blocks) override {
    for (const Block block : blocks) {
      const std::uint32_t uses = ++uses_[block];
      if (uses == queues_.size()) queues_.emplace_back(links_);
      queues_[uses].push_back(block);
      least_ = std::min<std::size_t>(least_, uses);
    }
  }

  std::vector<std::uint32_t> uses_;  // of each block, since it came in
  std::vector<Queue> queues_;        // by uses
  std::size_t least_ = 0;            // no block of fewer uses is in a queue
};

// What is in use keeps its place: it is put aside while others are taken.
class Fifo final : public BoundedCache {
 public:
  Fifo(std::size_t blocks, std::uint64_t capacity) : BoundedCache(blocks, capacity), queue_(links_) {}

 private:
  void enter(Block block) override { queue_.push_back(block); }
  void make_room(std::uint64_t blocks) override {
    while (blocks > 0) {
      const Block block = queue_.pop_front();
      if (is_in_use(block)) {
        aside_.push_back(block);
      } else {
        leave(block);
        --blocks;
      }
    }
    for (; !aside_.empty(); aside_.pop_back()) queue_.push_front(aside_.back());
  }

  Queue queue_;
  std::vector<Block> aside_;
};

class S3Fifo final : public BoundedCache {
 public:
  S3Fifo(std::size_t blocks, std::uint64_t capacity)
      : BoundedCache(blocks, capacity),
        small_(links_),
        main_(links_),
        ghost_(links_),
        most_ghosts_(capacity - capacity / 10),
        uses_(blocks, 0),
        is_ghost_(blocks, 0) {}

 private:
  static constexpr std::uint8_t most_uses = 3;

  void hit(Block block) override { uses_[block] = std::min<std::uint8_t>(uses_[block] + 1, most_uses); }
  void enter(Block block) override {
    uses_[block] = 0;
    if (is_ghost_[block] == 0) {
      small_.push_back(block);
      return;
    }
    is_ghost_[block] = 0;
    ghost_.remove(block);
    main_.push_back(block);
  }
  void make_room(std::uint64_t blocks) override {
    while (blocks > 0) {
      const bool is_large = 10 * (small_.size() + small_aside_.size()) >= capacity_;
      const bool left = !small_.is_empty() && (is_large || main_.is_empty()) ? take_small() : take_main();
      if (left) --blocks;
    }
    for (; !small_aside_.empty(); small_aside_.pop_back()) small_.push_front(small_aside_.back());
    for (; !main_aside_.empty(); main_aside_.pop_back()) main_.push_front(main_aside_.back());
  }
  // Whether the oldest has left.
  bool take_small() {
    const Block block = small_.pop_front();
    if (is_in_use(block)) {
      small_aside_.push_back(block);
      return false;
    }
    if (uses_[block] > 1) {
      uses_[block] = 0;
      main_.push_back(block);
      return false;
    }
    leave(block);
    ghost_.push_back(block);
    is_ghost_[block] = 1;
    if (ghost_.size() > most_ghosts_) is_ghost_[ghost_.pop_front()] = 0;
    return true;
  }
  bool take_main() {
    const Block block = main_.pop_front();
    if (is_in_use(block)) {
      main_aside_.push_back(block);
      return false;
    }
    if (uses_[block] > 0) {
      --uses_[block];
      main_.push_back(block);
      return false;
    }
    leave(block);
    return true;
  }

  Queue small_, main_, ghost_;
  std::uint64_t most_ghosts_;
  std::vector<std::uint8_t> uses_, is_ghost_;
  std::vector<Block> small_aside_, main_aside_;
};

class Belady final : public KvCache {
 public:
  Belady(const BlockTrace& trace, std::uint64_t capacity)
      : all_(trace.blocks()), capacity_(capacity), next_uses_(all_.size()), next_(trace.different_blocks(), never) {
    std::vector<std::size_t> last(trace.different_blocks(), never);
    for (std::size_t at = all_.size(); at-- > 0;) next_uses_[at] = std::exchange(last[all_[at]], at);
  }

  bool has(Block block) const override { return next_[block] != never; }

  std::uint64_t use(std::span<const Block> blocks) override {
    const auto begin = static_cast<std::size_t>(blocks.data() - all_.data());
    entered_.clear();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t next = next_uses_[begin + i];
      const bool was_there = has(blocks[i]);
      size_ = size_ + (next != never ? 1 : 0) - (was_there ? 1 : 0);
      next_[blocks[i]] = next;
      if (next == never) continue;
      furthest_.emplace(next, blocks[i]);
      if (!was_there) entered_.push_back(blocks[i]);
    }
    for (; size_ > capacity_; furthest_.pop()) {
      const auto [next, block] = furthest_.top();
      if (next_[block] != next) continue;  // of a use that is over
      next_[block] = never;
      --size_;
    }
    return static_cast<std::uint64_t>(std::ranges::count_if(entered_, [&](Block block) { return has(block); }));
  }

 private:
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  std::span<const Block> all_;
  std::uint64_t capacity_, size_ = 0;
  std::vector<std::size_t> next_uses_;  // of each place in all_: the next place of its block
  std::vector<std::size_t> next_;       // of each block that is there
  std::priority_queue<std::pair<std::size_t, Block>> furthest_;
  std::vector<Block> entered_;
};

}  // namespace

std::span<const KvPolicy> kv_policies() { return all_policies; }

const KvPolicy& kv_policy(const std::string& name) {
  std::vector<std::string> names;
  for (const KvPolicy& policy : all_policies) {
    if (policy.name == name) return policy;
    names.emplace_back(policy.name);
  }
  throw Error("unknown policy of KV blocks '" + name + "'; there are " + join(names));
}

std::unique_ptr<KvCache> make_kv_cache(const BlockTrace& trace, const KvPolicy& policy, std::uint64_t capacity) {
  TENCACHE_CHECK(capacity > 0);
  const std::size_t blocks = trace.different_blocks();
  switch (policy.kind) {
    case KvPolicyKind::lfu:
      return std::make_unique<Lfu>(blocks, capacity);
    case KvPolicyKind::fifo:
      return std::make_unique<Fifo>(blocks, capacity);
    case KvPolicyKind::s3_fifo:
      return std::make_unique<S3Fifo>(blocks, capacity);
    case KvPolicyKind::belady:
      return std::make_unique<Belady>(trace, capacity);
    case KvPolicyKind::lru:
    case KvPolicyKind::vllm:
      break;
  }
  return std::make_unique<Lru>(blocks, capacity, policy.kind == KvPolicyKind::vllm);
}

double PrefillCost::seconds(std::uint64_t tokens) const {
  if (seconds_.empty() || tokens == 0) return 0;
  const auto below = std::min<std::size_t>(std::bit_width(tokens) - 1, seconds_.size() - 1);
  const auto from = static_cast<double>(std::uint64_t{1} << below), count = static_cast<double>(tokens);
  const double least = seconds_[below] / from;
  if (below + 1 == seconds_.size()) return least * count;
  const double most = seconds_[below + 1] / (2 * from);
  return (least + (most - least) * (count - from) / from) * count;
}

double PrefillCost::saved(std::uint64_t tokens, std::uint64_t cached) const {
  if (cached == 0) return 0;
  const double all = seconds(tokens);
  return std::max(0.0, all - std::max(seconds(1), all - seconds(cached)));
}

KvRun run_kv_cache(const BlockTrace& trace, const KvPolicy& policy, const ByKvTier<std::uint64_t>& capacity,
                   std::uint64_t warm_up, const KvCosts& costs) {
  KvRun run;
  run.policy = &policy;
  run.capacity = capacity;
  ByKvTier<std::unique_ptr<KvCache>> caches;
  for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
    if (capacity[tier] > 0) caches[tier] = make_kv_cache(trace, policy, capacity[tier]);
  }
  for (std::size_t request = 0; request < trace.requests(); ++request) {
    std::span<const Block> blocks = trace.blocks(request);
    const std::uint64_t tokens = trace.input_tokens(request);
    std::size_t may_hit = blocks.size();
    if (policy.kind == KvPolicyKind::vllm) {
      may_hit = (tokens - 1) / trace.block_tokens();
      blocks = blocks.first(tokens / trace.block_tokens());
    }
    ByKvTier<std::uint64_t> hits{};
    std::uint64_t prefix = 0;
    for (; prefix < may_hit; ++prefix) {
      std::size_t tier = 0;
      while (tier < kv_tiers && (caches[tier] == nullptr || !caches[tier]->has(blocks[prefix]))) ++tier;
      if (tier == kv_tiers) break;
      ++hits[tier];
    }
    const bool counts = request >= warm_up;
    for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
      const std::uint64_t stored = caches[tier] == nullptr ? 0 : caches[tier]->use(blocks);
      if (counts) run.stored[tier] += stored;
    }
    if (!counts) continue;
    ++run.requests;
    run.blocks += trace.blocks(request).size();
    run.tokens += tokens;
    const std::uint64_t hit_tokens = std::min(prefix * trace.block_tokens(), tokens);
    run.hit_tokens += hit_tokens;
    if (capacity[0] > 0 && blocks.size() > capacity[0]) ++run.larger_than_gpu;
    for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
      run.hits[tier] += hits[tier];
      run.fetch_seconds += static_cast<double>(hits[tier]) * costs.block_seconds[tier];
    }
    run.prefill_seconds += costs.prefill.seconds(tokens);
    run.saved_seconds += costs.prefill.saved(tokens, std::min(hit_tokens, tokens - 1));
  }
  return run;
}

}  // namespace tencache
