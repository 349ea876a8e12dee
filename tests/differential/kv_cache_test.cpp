// Caches of KV blocks against the naive ones of naive_kv_cache.h, on seeded random requests.
#include <gtest/gtest.h>

#include <random>

#include "tests/differential/naive_kv_cache.h"

namespace tencache {
namespace {

struct Case {
  std::vector<NaiveKvRequest> requests;
  BlockTrace trace;
  ByKvTier<std::uint64_t> capacity{};
  std::uint64_t warm_up = 0;
};

// Prompts grow out of earlier ones, as conversations do, or share only a beginning.
Case random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  const std::uint64_t block_tokens = 1 + below(4);
  Case made;
  made.trace = BlockTrace(static_cast<std::uint32_t>(block_tokens));
  std::vector<std::vector<std::uint64_t>> prompts = {{}};
  const std::uint64_t hashes = 1 + below(5), deepest = 1 + below(12);
  for (std::uint64_t i = 0, count = 5 + below(60); i < count; ++i) {
    std::vector<std::uint64_t> prompt = prompts[below(prompts.size())];
    if (below(3) == 0) prompt.resize(below(prompt.size() + 1));
    for (std::uint64_t more = below(4); more > 0 && prompt.size() < deepest; --more) prompt.push_back(below(hashes));
    prompts.push_back(prompt);
    NaiveKvRequest& request = made.requests.emplace_back();
    request.tokens = prompt.size() * block_tokens + below(block_tokens);  // what is beyond is in no block
    if (request.tokens == 0) request.tokens = block_tokens == 1 ? (prompt.push_back(0), 1) : 1;
    if (!prompt.empty() && below(4) == 0) request.tokens -= below(block_tokens);  // the last block is not full
    for (std::size_t n = 1; n <= prompt.size(); ++n) {
      request.blocks.emplace_back(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(n));
    }
    made.trace.add(request.tokens, prompt);
  }
  for (std::uint64_t& capacity : made.capacity) {
    capacity = below(4) == 0 ? 0 : 1 + below(made.trace.different_blocks() + 2);
  }
  made.warm_up = below(5);
  return made;
}

TEST(KvCacheReference, EqualsTheNaiveOneUnderEachPolicy) {
  std::map<std::string, std::uint64_t> hits, stored;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Case one = random_case(seed);
    for (const KvPolicy& policy : kv_policies()) {
      SCOPED_TRACE(testing::Message() << policy.name << ", seed " << seed);
      const KvRun run = run_kv_cache(one.trace, policy, one.capacity, one.warm_up, {});
      const NaiveKvRun naive =
          run_naive_kv(policy.kind, one.requests, one.capacity, one.warm_up, one.trace.block_tokens());
      EXPECT_EQ(run.hits, naive.hits);
      EXPECT_EQ(run.stored, naive.stored);
      EXPECT_EQ(run.hit_tokens, naive.hit_tokens);
      if (HasFailure()) return;
      for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
        hits[policy.name] += run.hits[tier];
        stored[policy.name] += run.stored[tier];
      }
    }
  }
  std::set<std::uint64_t> different;
  for (const KvPolicy& policy : kv_policies()) {
    EXPECT_GT(hits[policy.name], 5'000u) << policy.name;
    different.insert(hits[policy.name] << 32 | stored[policy.name]);
  }
  EXPECT_EQ(different.size(), kv_policies().size());  // no two of them are the same cache
}

TEST(KvCacheReference, NoneHitsMoreThanTheOracleOrThanEndlessMemory) {
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    const Case one = random_case(seed);
    const std::uint64_t endless = one.trace.blocks().size() - one.trace.different_blocks();
    for (std::uint64_t capacity = 1; capacity <= one.trace.different_blocks(); capacity += 1 + capacity / 4) {
      const auto hits_of = [&](const KvPolicy& policy, std::uint64_t blocks) {
        return run_kv_cache(one.trace, policy, {blocks, 0, 0}, 0, {}).hits[0];
      };
      const std::uint64_t most = hits_of(kv_policy("belady"), capacity);
      EXPECT_LE(most, endless);
      for (const KvPolicy& policy : kv_policies()) {
        EXPECT_LE(hits_of(policy, capacity), most) << policy.name << ", seed " << seed << ", capacity " << capacity;
        if (policy.kind == KvPolicyKind::vllm) continue;
        EXPECT_EQ(hits_of(policy, one.trace.different_blocks()), endless) << policy.name << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace tencache
