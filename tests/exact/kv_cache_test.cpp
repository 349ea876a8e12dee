// Traces of blocks and caches of them: files, cases worked by hand, published workloads.
#include "studies/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "traces/file/file_io.h"
#include "traces/import/block_trace.h"

namespace tencache {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class KvCacheFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  BlockTrace read(const std::string& text, std::uint32_t block_tokens = 0) {
    write_file(path("a.jsonl"), text);
    return read_block_trace(path("a.jsonl"), block_tokens);
  }
  std::string error_of(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

 private:
  std::string folder_ = testing::TempDir() + "kv_cache_test_" + std::to_string(::getpid());
};

TEST_F(KvCacheFiles, OfBothForms) {
  const BlockTrace mooncake = read(
      "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": [7, 9, 8]}\n\n"
      "{\"timestamp\": 12, \"input_length\": 1030, \"output_length\": 5, \"hash_ids\": [7, 8]}\r\n"
      "{\"timestamp\": 12, \"input_length\": 9, \"output_length\": 0, \"hash_ids\": []}");
  EXPECT_EQ(mooncake.block_tokens(), 512u);
  EXPECT_EQ(mooncake.requests(), 3u);
  EXPECT_THAT(mooncake.blocks(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(mooncake.blocks(1), ElementsAre(0, 3));  // the same hash after another block is another block
  EXPECT_EQ(mooncake.blocks(2).size(), 0u);
  EXPECT_EQ(mooncake.different_blocks(), 4u);
  EXPECT_EQ(mooncake.longest_input(), 1100u);
  const BlockTrace bailian = read(
      "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 61.25, \"input_length\": 32, \"output_length\": 3, "
      "\"type\": \"text\", \"turn\": 1, \"hash_ids\": [18446744073709551615, -5]}\n");
  EXPECT_EQ(bailian.block_tokens(), 16u);
  EXPECT_THAT(bailian.blocks(0), ElementsAre(0, 1));
  EXPECT_EQ(
      read("{\"timestamp\": 0, \"input_length\": 8, \"output_length\": 1, \"hash_ids\": [1, 2]}", 4).blocks().size(),
      2u);
}

TEST_F(KvCacheFiles, SayWhatIsWrongWithThem) {
  const std::string good = "{\"timestamp\": 5, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1, 2]}\n";
  EXPECT_EQ(error_of(good), "none");
  const auto second = [&](const std::string& line) { return error_of(good + line); };
  const auto place = HasSubstr("a.jsonl:2: ");
  EXPECT_THAT(error_of(""), HasSubstr("no requests"));
  EXPECT_THAT(error_of("a,b\n1,2\n"), AllOf(HasSubstr("a.jsonl:1"), HasSubstr("kv-cache generate")));
  EXPECT_THAT(second(good.substr(0, 40)), AllOf(place, HasSubstr("copy the file again")));
  EXPECT_THAT(second("[1]"), AllOf(place, HasSubstr("no JSON object")));
  for (const std::string key : {"timestamp", "input_length", "output_length", "hash_ids"}) {
    std::string line = good;
    line.replace(line.find(key), key.size(), "other");
    EXPECT_THAT(second(line), AllOf(place, HasSubstr("key '" + key + "' is missing")));
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = good;
    line.replace(line.find(from), from.size(), to);
    return second(line);
  };
  EXPECT_THAT(with("[1, 2]", "[]"),
              AllOf(place, HasSubstr("0 hash_ids for 513 tokens, which are 2 blocks of 512"), HasSubstr("a gap")));
  EXPECT_THAT(with("[1, 2]", "[1, 2, 3]"), AllOf(place, HasSubstr("3 hash_ids"), HasSubstr("--block-tokens")));
  EXPECT_THAT(with("[1, 2]", "[1, 2.5]"), AllOf(place, HasSubstr("'2.5' is no whole number")));
  EXPECT_THAT(with("[1, 2]", "7"), AllOf(place, HasSubstr("no list")));
  EXPECT_THAT(with(": 5,", ": 4.5,"), AllOf(place, HasSubstr("4.5 is before"), HasSubstr("sort the file")));
  EXPECT_THAT(with(": 5,", ": \"x\","), AllOf(place, HasSubstr("timestamp: '\"x\"' is no number")));
  EXPECT_THAT(with("513", "0"), AllOf(place, HasSubstr("'0' is no whole number of tokens from 1")));
  EXPECT_THAT(with("513", "-3"), AllOf(place, HasSubstr("'-3' is no whole number")));
  EXPECT_THAT(with("513", "99999999999"), AllOf(place, HasSubstr("from 1 to 16777216")));
}

// Prompts of blocks of one token; each letter is a block.
BlockTrace trace_of(const std::vector<std::string>& prompts) {
  BlockTrace trace(1);
  for (const std::string& prompt : prompts) {
    trace.add(prompt.size(), std::vector<std::uint64_t>(prompt.begin(), prompt.end()));
  }
  return trace;
}

std::uint64_t hits_of(const std::string& policy, std::uint64_t capacity, const std::vector<std::string>& prompts) {
  return run_kv_cache(trace_of(prompts), kv_policy(policy), {capacity, 0, 0}, 0, {}).hits[0];
}

TEST(KvCache, LeavesByItsRule) {
  // abcd stays until ef needs two of its places. lru and fifo give those of a and b away, so cd is of no use; vllm those
  // of d and c, so ab hits. Of lfu all four are alike, so it is as lru.
  const std::vector<std::string> prompts = {"abcd", "ef", "abcd"};
  EXPECT_EQ(hits_of("lru", 4, prompts), 0u);
  EXPECT_EQ(hits_of("fifo", 4, prompts), 0u);
  EXPECT_EQ(hits_of("lfu", 4, prompts), 0u);
  EXPECT_EQ(hits_of("vllm", 4, prompts), 2u);
  EXPECT_EQ(hits_of("belady", 4, prompts), 4u);  // ef does not enter
  // x is used twice, so y leaves under lfu; x was used before y, and came before y, so x leaves under lru and fifo.
  const std::vector<std::string> twice = {"x", "x", "y", "z", "x"};
  EXPECT_EQ(hits_of("lfu", 2, twice), 2u);
  EXPECT_EQ(hits_of("lru", 2, twice), 1u);
  EXPECT_EQ(hits_of("fifo", 2, twice), 1u);
  // Of ten places one is small. x is used three times and goes to the main queue when room is made; nine blocks of one
  // use pass through the small queue. Under lru x has left.
  const std::vector<std::string> scan = {"x", "x", "x", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "x"};
  EXPECT_EQ(hits_of("s3-fifo", 10, scan), 3u);
  EXPECT_EQ(hits_of("lru", 10, scan), 2u);
}

// A block after a gap is of no use: bc is there, a is not.
TEST(KvCache, OnlyAPrefixHits) { EXPECT_EQ(hits_of("lru", 3, {"abc", "x", "abc"}), 0u); }

// vLLM computes the last token of a prompt, and keeps full blocks only: of ten tokens in blocks of four two are kept,
// and of eight one may hit.
TEST(KvCache, VllmKeepsFullBlocks) {
  const std::vector<std::uint64_t> hashes = {1, 2, 3};
  BlockTrace trace(4);
  trace.add(10, hashes);
  trace.add(10, hashes);
  trace.add(8, std::span(hashes).first(2));
  const KvRun run = run_kv_cache(trace, kv_policy("vllm"), {3, 0, 0}, 0, {});
  EXPECT_EQ(run.stored[0], 2u);
  EXPECT_EQ(run.hits[0], 3u);
  EXPECT_EQ(run.hit_tokens, 12u);
  EXPECT_EQ(run_kv_cache(trace, kv_policy("lru"), {3, 0, 0}, 0, {}).hits[0], 5u);
}

// A hit comes from the fastest tier that has it; all tiers keep what passes.
TEST(KvCache, TiersServeWhatTheFasterOnesHaveLost) {
  const BlockTrace trace = trace_of({"ab", "cd", "ef", "ab"});
  KvCosts costs;
  costs.block_seconds = {0, 1, 10};
  costs.prefill = PrefillCost({1, 2, 4});
  const KvRun run = run_kv_cache(trace, kv_policy("lru"), {2, 4, 6}, 0, costs);
  EXPECT_THAT(run.hits, ElementsAre(0, 0, 2));
  EXPECT_THAT(run.stored, ElementsAre(8, 8, 6));
  EXPECT_EQ(run.fetch_seconds, 20);
  EXPECT_EQ(run.prefill_seconds, 8);
  EXPECT_EQ(run.saved_seconds, 1);  // the last token is computed
  const KvRun later = run_kv_cache(trace, kv_policy("lru"), {2, 6, 0}, 3, costs);
  EXPECT_EQ(later.requests, 1u);
  EXPECT_THAT(later.hits, ElementsAre(0, 2, 0));
  EXPECT_THAT(later.stored, ElementsAre(2, 0, 0));
}

TEST(KvCache, RequestsLargerThanItKeepTheirBeginning) {
  for (const KvPolicy& policy : kv_policies()) {
    const KvRun run = run_kv_cache(trace_of({"abcdef", "abcdef"}), policy, {3, 0, 0}, 0, {});
    EXPECT_EQ(run.hits[0], 3u) << policy.name;
    EXPECT_EQ(run.larger_than_gpu, 2u) << policy.name;
  }
}

// Seconds a + b·n + c·n² at powers of two; without a, what is between is exact. A prompt whose first half is there
// costs what the second half does, attention to the first included: 3/4 of the square.
TEST(KvCache, PrefillBetweenItsPoints) {
  const auto seconds = [](double n) { return 0.5 * n + 0.25 * n * n; };
  std::vector<double> points;
  for (double n = 1; n <= 64; n *= 2) points.push_back(seconds(n));
  const PrefillCost cost(points);
  for (const std::uint64_t n : {1, 2, 3, 7, 33, 50, 64}) {
    EXPECT_NEAR(cost.seconds(n), seconds(static_cast<double>(n)), 1e-9) << n;
  }
  EXPECT_NEAR(cost.saved(40, 20), seconds(20), 1e-9);
  EXPECT_NEAR(cost.saved(40, 39), seconds(39), 1e-9);
  EXPECT_EQ(cost.saved(40, 0), 0);
  EXPECT_EQ(PrefillCost().seconds(10), 0);
}

TEST(KvCache, NamesItsPolicies) {
  EXPECT_THROW(kv_policy("arc"), Error);
  int oracles = 0;
  for (const KvPolicy& policy : kv_policies()) oracles += policy.oracle ? 1 : 0;
  EXPECT_EQ(oracles, 1);
}

// vLLM's pull request 10874: documents in rounds, each round in an order of its own, GPU memory for 8 documents and CPU
// memory for 30. Seconds of the second round for 8, 16, 32, 64 documents, divided by those without a cache: GPU alone
// 0.04, 0.26, 0.92, 1.15; with CPU memory 0.04, 0.08, 0.32, 1.02, copies included. The share that is computed again, a
// mean over 20 orders, rises where these do: without CPU memory behind 8 documents, with it behind 16.
TEST_F(KvCacheFiles, DocumentsFallOffTheCliffWherePublished) {
  const auto missed = [&](std::uint64_t documents, std::uint64_t gpu, std::uint64_t cpu) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      write_document_rounds({.documents = documents, .tokens = 20'010, .rounds = 2, .seed = seed}, path("d.jsonl"));
      const BlockTrace trace = read_block_trace(path("d.jsonl"));
      const KvRun run = run_kv_cache(trace, kv_policy("vllm"), {gpu * 40, cpu * 40, 0}, documents, {});
      sum += 1 - static_cast<double>(run.hit_tokens) / static_cast<double>(run.tokens);
    }
    return sum / 20;
  };
  EXPECT_LT(missed(8, 8, 0), 0.01);
  EXPECT_GT(missed(32, 8, 0), 0.85);
  EXPECT_GT(missed(64, 8, 0), 0.95);
  EXPECT_LT(missed(8, 8, 30), 0.01);
  EXPECT_LT(missed(16, 8, 30), 0.01);
  EXPECT_GT(missed(32, 8, 30), 0.05);
  EXPECT_LT(missed(32, 8, 30), 0.35);
  EXPECT_GT(missed(64, 8, 30), 0.8);
}

// In the same order again and again, one document too many is enough: nothing hits.
TEST_F(KvCacheFiles, CyclesHitAllOrNothing) {
  write_document_rounds({.documents = 5, .tokens = 2048, .rounds = 4, .shuffled = false}, path("d.jsonl"));
  const BlockTrace trace = read_block_trace(path("d.jsonl"));
  for (const std::string name : {"lru", "fifo"}) {
    EXPECT_EQ(run_kv_cache(trace, kv_policy(name), {20, 0, 0}, 0, {}).hits[0], 60u);
    EXPECT_EQ(run_kv_cache(trace, kv_policy(name), {16, 0, 0}, 0, {}).hits[0], 0u);
  }
}

// Mooncake's conversation trace (kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0), which is not part of this
// tree: 288,500 blocks, 182,790 of them different, so 36.6 % hit with endless memory.
TEST(KvCache, MooncakesConversations) {
  const std::string file = TENCACHE_SOURCE_DIR "/../shared/traces/requests/mooncake-conversation.jsonl.gz";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no trace " << file;
  const BlockTrace trace = read_block_trace(file);
  EXPECT_EQ(trace.requests(), 12'031u);
  EXPECT_EQ(trace.blocks().size(), 288'500u);
  EXPECT_EQ(trace.different_blocks(), 182'790u);
  const KvRun run = run_kv_cache(trace, kv_policy("lru"), {trace.different_blocks(), 0, 0}, 0, {});
  EXPECT_NEAR(static_cast<double>(run.hits[0]) / 288'500, 0.366, 0.0005);
}

}  // namespace
}  // namespace tencache
