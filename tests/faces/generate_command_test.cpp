// `tencache generate` as a command: what it writes and prints, that its own record makes it again, and bad usage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "configs/generate_settings.h"
#include "core/text.h"
#include "tests/generate_cases.h"
#include "tests/in_process.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class GenerateCommand : public ::testing::Test {
 protected:
  GenerateCommand() { fs::create_directories(folder_); }
  ~GenerateCommand() override { fs::remove_all(folder_); }

  // The words after "tencache generate", separated by spaces.
  InProcessAnswer run(const std::string& words) const {
    std::vector<std::string> list{"generate"};
    std::istringstream stream(words);
    for (std::string word; stream >> word;) list.push_back(word);
    return run_in_process(list);
  }

  void expect_refused(const std::string& words, const std::string& message) const {
    const InProcessAnswer answer = run(words + " -o " + path("refused.trace.jsonl"));
    EXPECT_EQ(answer.code, 2) << words;
    EXPECT_EQ(answer.out, "") << words;
    EXPECT_THAT(answer.err, HasSubstr(message)) << words;
    EXPECT_FALSE(fs::exists(path("refused.trace.jsonl"))) << words;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("tencache_generate_test_" + std::to_string(::getpid()));
};

TEST_F(GenerateCommand, WritesTheTraceThatItsRecordMakesAgain) {
  const std::string words =
      "--model gpt2 --batch 8 --micro-batches 2 --seq 64,32 --precision fp16 --gpu l40s --recompute selective "
      "--attention materialised --head classification --lora-rank 4 --lora-targets c_attn,c_fc";
  const InProcessAnswer answer = run(words + " -o " + path("a.trace.jsonl.zst"));
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("gpt2, 0.124 billion parameters"));
  EXPECT_THAT(answer.out, HasSubstr("a step on l40s"));
  const Trace trace = read_trace(path("a.trace.jsonl.zst"));
  EXPECT_EQ(trace.header.model, "gpt2");
  EXPECT_EQ(trace.header.hardware, "modelled: l40s");
  const std::string start = "tencache generate ";
  ASSERT_TRUE(trace.header.recorded_by.starts_with(start)) << trace.header.recorded_by;
  const InProcessAnswer again = run(trace.header.recorded_by.substr(start.size()) + " -o " + path("b.trace.jsonl"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(format_trace(read_trace(path("b.trace.jsonl"))), format_trace(trace));
}

TEST_F(GenerateCommand, RecomputesAShareOfTheLayers) {
  const auto flops = [&](const std::string& recompute) {
    const InProcessAnswer answer =
        run("--model llama-3-8b --batch 1 --seq 16 --json --recompute " + recompute + " -o " + path("r.trace.jsonl"));
    EXPECT_EQ(answer.code, 0) << answer.err;
    return nlohmann::json::parse(answer.out)["flops"].get<double>();
  };
  EXPECT_EQ(2 * (flops("block:0.5") - flops("none")), flops("block") - flops("none"));
  const std::string words = "--model gpt2 --batch 1 --seq 16 --recompute ";
  expect_refused(words + "blocks",
                 "--recompute: unknown 'blocks'; valid are none, block, selective, block-early-stop, ops");
  expect_refused(words + "block:2",
                 "--recompute: '2' is not a share of the layers above 0 and up to 1; write block:0.5");
  expect_refused(words + "block:", "--recompute: '' is not a share");
  expect_refused(words + "selective:0.5", "--recompute: 'selective' takes no share");
}

TEST_F(GenerateCommand, RecordsAForwardPassAsItWasAskedFor) {
  const InProcessAnswer answer = run("--model gpt2 --forward-only --batch 2 --seq 16 -o " + path("f.trace.jsonl"));
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("a forward pass on h100"));
  const Trace trace = read_trace(path("f.trace.jsonl"));
  EXPECT_EQ(trace.ops.back().phase, Phase::forward);
  const GenerateSettings settings{{"model", "gpt2"}, {"batch", "2"}, {"seq", "16"}, {"forward-only", "true"}};
  ASSERT_NE(generate_settings_of(trace.header), nullptr);
  EXPECT_THAT(*generate_settings_of(trace.header), ::testing::UnorderedElementsAreArray(settings));
  const Trace same = generate_trace(settings);
  EXPECT_EQ(same.ops.size(), trace.ops.size());
  EXPECT_EQ(same.header.provenance, (Provenance{MadeBy::generated, settings}));
  // Commands that take a model instead of a trace know it, too.
  const InProcessAnswer info = run_in_process({"replay", "--model", "gpt2", "--batch", "2", "--seq", "16",
                                               "--forward-only", "-m", "10cache-l40s", "-p", "ideal"});
  EXPECT_EQ(info.code, 0) << info.err;
}

TEST_F(GenerateCommand, RecordsAGeneration) {
  const std::string words = "--model gpt2 --new-tokens 3 --prompt 16 --block 2x2 --order zigzag --kv-page 2MiB";
  const InProcessAnswer answer = run(words + " -o " + path("g.trace.jsonl"));
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("a block on h100"));
  const Trace trace = read_trace(path("g.trace.jsonl"));
  EXPECT_EQ(trace.header.tokens_per_iteration(), 12u);
  const Trace same = generate_trace(*generate_settings_of(trace.header));
  EXPECT_EQ(same.ops.size(), trace.ops.size());
  expect_refused("--model gpt2 --new-tokens 3 --prompt 16 --block 2by2", "--block: '2by2' is no block; write 48x3");
  expect_refused("--model gpt2 --new-tokens 3 --prompt 16 --kv-page big", "--kv-page: 'big' is neither a number");
  expect_refused("--model gpt2 --new-tokens 3 --prompt 16 --batch 2", "--batch is not for --new-tokens");
  expect_refused("--model gpt2 --new-tokens 3", "--prompt is missing: tokens of a prompt");
  expect_refused("--model gpt2 --batch 1 --seq 16 --order zigzag", "--order belongs to a generation");
  expect_refused("--model gpt2 --new-tokens 3 --prompt 16,x", "--prompt: '16,x' is no list of lengths");
}

TEST_F(GenerateCommand, PrintsOneDocumentWithJson) {
  const InProcessAnswer answer = run("--model bert-base-uncased --batch 2 --seq 16 --json -o " + path("b.trace.jsonl"));
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.err, "");
  const nlohmann::json json = nlohmann::json::parse(answer.out);
  EXPECT_EQ(json["trace"], path("b.trace.jsonl"));
  EXPECT_EQ(json["ops"], read_trace(path("b.trace.jsonl")).ops.size());
  EXPECT_EQ(json["parameters"].get<Count>() * 2, json["tensors"]["by_role"]["parameter"]["bytes"].get<Count>());
}

TEST_F(GenerateCommand, DrawsTheSameLengthsForTheSameSeed) {
  const auto lengths = [&](const std::string& seed) {
    const std::string file = path("d.trace.jsonl");
    EXPECT_EQ(run("--model gpt2 --batch 64 --micro-batches 64 --seq-distribution uniform:10:20 --seed " + seed +
                  " -o " + file)
                  .code,
              0);
    const Trace trace = read_trace(file);
    std::vector<Bytes> found;
    for (const Tensor& tensor : trace.tensors) {
      if (trace.name(tensor) == "input_ids") found.push_back(tensor.bytes / 8);
    }
    return found;
  };
  const std::vector<Bytes> drawn = lengths("7");
  EXPECT_EQ(drawn, lengths("7"));
  EXPECT_NE(drawn, lengths("8"));
  EXPECT_EQ(*std::min_element(drawn.begin(), drawn.end()), 10u);
  EXPECT_EQ(*std::max_element(drawn.begin(), drawn.end()), 20u);
}

TEST_F(GenerateCommand, RefusesBadUsageAndLeavesNothing) {
  EXPECT_EQ(run("--model gpt2 --batch 2 --seq 16").code, 2);
  const std::string gpt2 = "--model gpt2 --batch 4 --seq 16";
  expect_refused("--model gpt3 --batch 2 --seq 16", "unknown model 'gpt3'; the nearest");
  expect_refused(gpt2 + " --gpu rtx", "unknown GPU 'rtx'; the nearest are rtx-");
  expect_refused(gpt2 + " --precision fp64", "--precision: unknown 'fp64'; valid are fp16, bf16, fp32, tf32, fp8");
  expect_refused(gpt2 + " --gradient-precision tf32",
                 "--gradient-precision: unknown 'tf32'; valid are fp16, bf16, fp32");
  expect_refused(gpt2 + " --optimizer lion", "--optimizer: unknown 'lion'; valid are adamw, sgd");
  expect_refused(gpt2 + " --recompute all", "valid are none, block, selective");
  expect_refused(gpt2 + " --head lmm", "valid are lm, classification");
  expect_refused(gpt2 + " --gpu t4 --precision bf16", "GPU 't4' does not compute in bf16; valid are fp16, fp32");
  expect_refused("--model gpt2 --batch 4 --seq 16,-3", "--seq: '16,-3' is no list of lengths");
  expect_refused("--model gpt2 --batch 4 --seq 99999999999999999999", "is no list of lengths");
  expect_refused("--model gpt2 --batch -4 --seq 16", "--batch: -4 is negative");
  expect_refused("--model gpt2 --batch 0 --seq 16", "--batch: is 0");
  expect_refused("--model gpt2 --batch 4 --seq-distribution uniform:9:3", "has no such range");
  expect_refused("--model gpt2 --batch 4 --seq-distribution zipf:9:3", "write uniform:64:512");
  expect_refused(gpt2 + " --seq-distribution uniform:1:3", "exclude each other");
  expect_refused(gpt2 + " --tensor-parallel 5", "5 does not divide the 12 heads");
  expect_refused(gpt2 + " --interconnect 0", "--interconnect: must be above 0");
  expect_refused(gpt2 + " --interconnect 3", "--interconnect: '3' has no unit");
  expect_refused("--model vit-base-patch16-224 --batch 4 --head lm", "has no language-model head");
  const InProcessAnswer folder = run(gpt2 + " -o " + path("none/x.trace.jsonl"));
  EXPECT_EQ(folder.code, 2);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(GenerateCommand, ARecordReadsAsTheSettingsWhateverTheirNames) {
  for (const std::string name : {"my models/o'pt.yaml", "plain.yaml", "a\\b $HOME.yaml"}) {
    fs::create_directories(fs::path(path(name)).parent_path());
    fs::copy_file(std::string(TENCACHE_SOURCE_DIR) + "/configs/models/gpt2.yaml", path(name));
    const GenerateSettings settings{{"model", path(name)}, {"batch", "1"}, {"seq", "16"}};
    const Trace trace = generate_trace(settings);
    EXPECT_EQ(*generate_settings_of(trace.header), settings);
    // The command itself records the same.
    const std::string file = path("t.trace.jsonl");
    ASSERT_EQ(run_in_process({"generate", "--model", path(name), "--batch", "1", "--seq", "16", "-o", file}).code, 0);
    EXPECT_EQ(read_trace(file).header.provenance, trace.header.provenance);
    // In older versions the record is the sentence.
    std::string older = format_trace(trace);
    const std::size_t begin = older.find(",\"made_by\""), end = older.find(",\"recorded_by\"");
    older.erase(begin, end - begin).replace(older.find("\"format_version\":3"), 18, "\"format_version\":2");
    EXPECT_EQ(parse_trace(older, "t").header.provenance, trace.header.provenance);
  }
}

TEST(ShellWords, AreReadAsTheyWereQuoted) {
  const std::vector<std::string> words{"a", "", "b c", "it's", "$x\\", "''", "ü"};
  std::string line;
  for (const std::string& word : words) line += quoted_word(word) + "  ";
  EXPECT_EQ(shell_words(line), words);
  EXPECT_EQ(quoted_word("it's"), "'it'\\''s'");
  EXPECT_EQ(quoted_word("uniform:64:512"), "uniform:64:512");
}

}  // namespace
}  // namespace tencache
