// Caches of KV blocks once more, obvious and slow: each rule of studies/kv_cache.h as it is written there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "studies/kv_cache.h"

namespace tencache {

struct NaiveKvRequest {
  std::uint64_t tokens = 0;
  std::vector<std::vector<std::uint64_t>> blocks;  // each as all hashes from the prompt's first one to its own
};

class NaiveKvTier {
 public:
  using Block = std::vector<std::uint64_t>;

  NaiveKvTier(KvPolicyKind kind, std::uint64_t capacity, const std::vector<NaiveKvRequest>& all)
      : kind_(kind), capacity_(capacity), all_(all) {}

  bool has(const Block& block) const { return present_.count(block) > 0; }

  // The request of this number has used `blocks`. Returns how many have entered.
  std::uint64_t use(std::size_t request, const std::vector<Block>& blocks) {
    if (kind_ == KvPolicyKind::belady) return use_belady(request, blocks);
    const std::set<Block> in_use(blocks.begin(), blocks.end());
    std::vector<Block> missing, used;
    const auto hits = static_cast<std::uint64_t>(std::ranges::count_if(blocks, [&](auto& b) { return has(b); }));
    for (const Block& block : blocks) {
      if (has(block)) {
        ++uses_[block];
      } else if (hits + missing.size() < capacity_) {
        missing.push_back(block);
      } else {
        continue;
      }
      used.push_back(block);
    }
    while (present_.size() + missing.size() > capacity_) {
      kind_ == KvPolicyKind::s3_fifo ? leave_s3(in_use) : leave_one(in_use);
    }
    for (const Block& block : missing) {
      present_.insert(block);
      uses_[block] = kind_ == KvPolicyKind::s3_fifo ? 0 : 1;
      const auto ghost = std::ranges::find(ghosts_, block);
      (ghost == ghosts_.end() ? queue_ : main_).push_back(block);
      if (ghost != ghosts_.end()) ghosts_.erase(ghost);
    }
    if (kind_ == KvPolicyKind::vllm) std::ranges::reverse(used);
    if (kind_ == KvPolicyKind::fifo || kind_ == KvPolicyKind::s3_fifo) return missing.size();
    for (const Block& block : used) {  // to the end
      std::erase(queue_, block);
      queue_.push_back(block);
    }
    return missing.size();
  }

 private:
  void leave_one(const std::set<Block>& in_use) {
    auto victim = queue_.end();
    for (auto at = queue_.begin(); at != queue_.end(); ++at) {
      if (in_use.count(*at) > 0) continue;
      if (victim == queue_.end() || (kind_ == KvPolicyKind::lfu && uses_[*at] < uses_[*victim])) victim = at;
    }
    present_.erase(*victim);
    queue_.erase(victim);
  }

  // queue_ is the small one.
  void leave_s3(const std::set<Block>& in_use) {
    const auto is_free = [&](const Block& block) { return in_use.count(block) == 0; };
    for (;;) {
      const auto small = std::ranges::find_if(queue_, is_free), main = std::ranges::find_if(main_, is_free);
      const Block block =
          small != queue_.end() && (10 * queue_.size() >= capacity_ || main == main_.end()) ? *small : *main;
      if (small != queue_.end() && block == *small) {
        queue_.erase(small);
        if (uses_[block] > 1) {
          uses_[block] = 0;
          main_.push_back(block);
          continue;
        }
        ghosts_.push_back(block);
        if (ghosts_.size() > capacity_ - capacity_ / 10) ghosts_.erase(ghosts_.begin());
      } else {
        main_.erase(main);
        uses_[block] = std::min<std::uint64_t>(uses_[block], 3);
        if (uses_[block] > 0) {
          --uses_[block];
          main_.push_back(block);
          continue;
        }
      }
      present_.erase(block);
      return;
    }
  }

  std::uint64_t use_belady(std::size_t request, const std::vector<Block>& blocks) {
    const std::set<Block> before = present_;
    present_.insert(blocks.begin(), blocks.end());
    std::vector<std::tuple<std::size_t, std::size_t, Block>> order;  // the next request that has it, and where
    for (const Block& block : present_) {
      for (std::size_t next = request + 1; next < all_.size(); ++next) {
        const auto& later = all_[next].blocks;
        const auto at = std::ranges::find(later, block);
        if (at == later.end()) continue;
        order.emplace_back(next, static_cast<std::size_t>(at - later.begin()), block);
        break;
      }
    }
    std::ranges::sort(order);
    if (order.size() > capacity_) order.resize(capacity_);
    present_.clear();
    std::uint64_t entered = 0;
    for (const auto& [next, at, block] : order) {
      present_.insert(block);
      if (before.count(block) == 0) ++entered;
    }
    return entered;
  }

  KvPolicyKind kind_;
  std::uint64_t capacity_;
  const std::vector<NaiveKvRequest>& all_;
  std::set<Block> present_;
  std::vector<Block> queue_, main_, ghosts_;
  std::map<Block, std::uint64_t> uses_;
};

struct NaiveKvRun {
  ByKvTier<std::uint64_t> hits{}, stored{};
  std::uint64_t hit_tokens = 0;
};

inline NaiveKvRun run_naive_kv(KvPolicyKind kind, const std::vector<NaiveKvRequest>& requests,
                               const ByKvTier<std::uint64_t>& capacity, std::uint64_t warm_up,
                               std::uint64_t block_tokens) {
  NaiveKvRun run;
  std::vector<NaiveKvTier> tiers;
  for (const std::uint64_t blocks : capacity) tiers.emplace_back(kind, blocks, requests);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    std::vector<NaiveKvTier::Block> blocks = requests[r].blocks;
    const std::uint64_t tokens = requests[r].tokens;
    if (kind == KvPolicyKind::vllm && blocks.size() > tokens / block_tokens) blocks.pop_back();
    std::uint64_t hit_tokens = 0;
    for (const auto& block : blocks) {
      if (kind == KvPolicyKind::vllm && hit_tokens + block_tokens > tokens - 1) break;
      std::size_t tier = 0;
      while (tier < kv_tiers && !tiers[tier].has(block)) ++tier;
      if (tier == kv_tiers) break;
      if (r >= warm_up) ++run.hits[tier];
      hit_tokens = std::min(hit_tokens + block_tokens, tokens);
    }
    if (r >= warm_up) run.hit_tokens += hit_tokens;
    for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
      const std::uint64_t stored = capacity[tier] == 0 ? 0 : tiers[tier].use(r, blocks);
      if (r >= warm_up) run.stored[tier] += stored;
    }
  }
  return run;
}

}  // namespace tencache
