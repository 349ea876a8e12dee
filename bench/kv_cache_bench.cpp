// Caches of KV blocks: a million blocks of conversations under each policy, with a tenth of the different blocks in GPU
// memory and half of them in CPU memory. Conversations of up to 60 blocks grow by 1 to 8 blocks a turn; half of all
// turns are of the 500 that spoke last. `read`: the same requests from Mooncake's form.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <random>
#include <string>

#include "studies/kv_cache.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr std::size_t most_blocks = 1'000'000;

std::vector<std::vector<std::uint64_t>> prompts() {
  std::mt19937_64 random(1);
  std::vector<std::vector<std::uint64_t>> conversations, made;
  std::uint64_t next = 1;
  for (std::size_t blocks = 0; blocks < most_blocks; blocks += made.back().size()) {
    const bool is_new = conversations.empty() || random() % 4 == 0;
    if (is_new) conversations.push_back({0});  // the system's prompt
    const std::size_t recent = std::min<std::size_t>(conversations.size(), 500);
    std::size_t which = conversations.size() - 1;
    if (!is_new) which -= random() % (random() % 2 == 0 ? recent : conversations.size());
    std::vector<std::uint64_t>& prompt = conversations[which];
    if (prompt.size() > 60) prompt = std::vector<std::uint64_t>(1);
    for (std::uint64_t more = 1 + random() % 8; more > 0; --more) prompt.push_back(next++);
    made.push_back(prompt);
  }
  return made;
}

const BlockTrace& trace() {
  static const BlockTrace made = [] {
    BlockTrace blocks(16);
    for (const auto& prompt : prompts()) blocks.add(prompt.size() * 16, prompt);
    return blocks;
  }();
  return made;
}

void count(benchmark::State& state, std::size_t blocks) {
  state.counters["blocks"] = benchmark::Counter(static_cast<double>(blocks) * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
}

void read(benchmark::State& state) {
  const std::string file = (std::filesystem::temp_directory_path() / "kv_cache_bench.jsonl").string();
  std::string text;
  for (const auto& prompt : prompts()) {
    text += R"({"timestamp": 0, "input_length": )" + std::to_string(prompt.size() * 512) +
            R"(, "output_length": 1, "hash_ids": [)";
    for (const std::uint64_t block : prompt) text += std::to_string(block) + ", ";
    text.replace(text.size() - 2, 2, "]}\n");
  }
  write_file(file, text);
  std::size_t blocks = 0;
  for (auto _ : state) blocks = read_block_trace(file).blocks().size();
  count(state, blocks);
  std::filesystem::remove(file);
}

void under(benchmark::State& state, const KvPolicy* policy) {
  const BlockTrace& blocks = trace();
  const std::uint64_t different = blocks.different_blocks();
  for (auto _ : state) {
    benchmark::DoNotOptimize(run_kv_cache(blocks, *policy, {different / 10, different / 2, 0}, 0, {}));
  }
  count(state, blocks.blocks().size());
}

}  // namespace
}  // namespace tencache

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("read", tencache::read)->Unit(benchmark::kMillisecond);
  for (const tencache::KvPolicy& policy : tencache::kv_policies()) {
    benchmark::RegisterBenchmark(policy.name, tencache::under, &policy)->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
