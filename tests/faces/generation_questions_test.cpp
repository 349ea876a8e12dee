// Questions about text generations on the command line: metrics, the largest block, tuning, configurations.
#include <fstream>

#include "tests/cli_fixture.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// gpt2 (248 MB in 16 bits) that generates four tokens after 16, for two micro-batches of two requests.
class GenerationQuestions : public CommandLine {
 protected:
  void SetUp() override {
    CommandLine::SetUp();
    std::ofstream(path("m.yaml")) << "name: m\n"
                                     "gpu: a10g\n"
                                     "tiers:\n"
                                     "  - {name: gpu, kind: gpu, capacity: 320MiB, granularity: 4KiB}\n"
                                     "  - {name: cpu, kind: cpu, capacity: 4GiB, granularity: 4KiB}\n"
                                     "links:\n"
                                     "  - {name: h2d, from: cpu, to: gpu, bandwidth: 2GB/s}\n"
                                     "  - {name: d2h, from: gpu, to: cpu, bandwidth: 2GB/s}\n"
                                     "initial_tier: cpu\n"
                                     "price: {on_demand: 3.6}\n";
  }
  static std::vector<std::string> ask(const std::string& command, const std::string& policy,
                                      const std::vector<std::string>& more = {},
                                      const std::vector<std::string>& block = {"--block", "2x2", "--order", "zigzag"}) {
    std::vector<std::string> words = {command, "--model", "gpt2",   "--new-tokens", "4",   "--prompt",
                                      "16",    "-m",      "m.yaml", "-p",           policy};
    words.insert(words.end(), block.begin(), block.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

// 12 layers of 14.2 MB beside an embedding of 77 MB, which llama.cpp has a second time on the GPU for the head.
TEST_F(GenerationQuestions, LlamaCppIsToldTheLayersThatWerePlaced) {
  const auto ask_for = [&](const char* command, const char* memory, const std::vector<std::string>& more) {
    std::vector<std::string> words = {command,    "--model",     "gpt2", "--new-tokens", "4",
                                      "--prompt", "16",          "-p",   "llama-cpp",    "-m",
                                      "rtx-4090", "--placeable", "all",  "--gpu-memory", memory};
    words.insert(words.end(), more.begin(), more.end());
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return answer;
  };
  const Answer part = ask_for("tune", "100MiB", {"--llama-cpp", "args.txt", "--budget", "1"});
  const Json notes = ask_for("replay", "100MiB", {"--json"}).json()["policy_notes"];
  const std::string args = content(path("args.txt"));
  const int layers = std::stoi(args.substr(args.find(' ') + 1));
  EXPECT_GT(layers, 3);
  EXPECT_LT(layers, 8);  // of 100 MiB at most seven
  EXPECT_EQ(args, "-ngl " + std::to_string(layers) + "\n");
  EXPECT_THAT(part.err, HasSubstr(std::to_string(layers) + " of 12 layers are placed on the GPU"));
  EXPECT_THAT(notes.dump(), HasSubstr(std::to_string(layers) + " of 12 layers fit on the GPU: -ngl"));
  const Answer all = ask_for("tune", "2GiB", {"--llama-cpp", "args.txt", "--budget", "1"});
  EXPECT_EQ(content(path("args.txt")), "-ngl 13\n");
  EXPECT_THAT(all.err, HasSubstr("12 of 12 layers are placed on the GPU, and the output"));
  ask_for("tune", "2GiB", {"--llama-cpp", "args.txt", "--budget", "1", "--set", "cpu_ffn=3"});
  EXPECT_EQ(content(path("args.txt")), "-ngl 13 --n-cpu-ffn 3\n");
  // The tied head's copy: nothing but what each token's lookup gives crosses.
  EXPECT_LT(ask_for("replay", "2GiB", {"--json"}).json()["generation"]["traffic_bytes_per_token"]["h2d"], 1e6);
}

TEST_F(GenerationQuestions, VllmIsToldWhatWasFound) {
  const auto tune = [&](const char* policy) {
    return run({"tune", "--model", "gpt2", "--new-tokens", "4", "--prompt", "16", "-p", policy, "-m", "rtx-4090",
                "--gpu-memory", "240MiB", "--budget", "8", "--vllm", "args.txt"});
  };
  EXPECT_EQ(tune("vllm-prefetch").code, 0);
  EXPECT_THAT(content(path("args.txt")),
              testing::MatchesRegex("--offload-backend prefetch --offload-group-size [0-9]+ --offload-num-in-group "
                                    "[0-9]+ --offload-prefetch-step [0-9]+\n"));
  EXPECT_EQ(tune("vllm-uva").code, 0);
  EXPECT_THAT(content(path("args.txt")), testing::MatchesRegex("--cpu-offload-gb [0-9.]+\n"));
  EXPECT_THAT(tune("accelerate").err, HasSubstr("--vllm: is of policy vllm-prefetch, vllm-uva, not of accelerate"));
}

// What is set is written: 2.5 GiB are 3 whole ones, and of groups of 3 no more than 3 layers are offloaded. vLLM and
// SGLang do not do the same with the same options, and each is told only what it does.
TEST_F(GenerationQuestions, SglangIsToldWhatItDoes) {
  const auto tune = [&](const char* policy, const char* writer, std::vector<std::string> set) {
    std::vector<std::string> words = {"tune", "--model", "gpt2",     "--new-tokens", "4", "--prompt", "16",      "-p",
                                      policy, "-m",      "rtx-4090", "--budget",     "1", writer,     "args.txt"};
    for (const std::string& setting : set) words.insert(words.end(), {"--set", setting});
    return run(words);
  };
  const Answer copied = tune("vllm-uva", "--sglang", {"copied=true", "cpu_offload=2.5GiB"});
  EXPECT_EQ(content(path("args.txt")), "--cpu-offload-gb 3\n");
  EXPECT_THAT(copied.err, HasSubstr("SGLang takes whole GiB: more than the best, 2.5"));
  const std::vector<std::string> groups = {"group_size=3", "num_in_group=4", "prefetch_step=2", "experts=true"};
  const Answer grouped = tune("vllm-prefetch", "--sglang", groups);
  EXPECT_EQ(content(path("args.txt")),
            "--offload-group-size 3 --offload-num-in-group 3 --offload-prefetch-step 2 --offload-mode cpu\n");
  EXPECT_THAT(grouped.err, HasSubstr("only models that say how, DeepSeek-V2, V3"));
  tune("vllm-prefetch", "--vllm", groups);
  EXPECT_EQ(content(path("args.txt")),
            "--offload-backend prefetch --offload-group-size 3 --offload-num-in-group 3 --offload-prefetch-step 2 "
            "--offload-params experts\n");
  EXPECT_THAT(tune("vllm-uva", "--sglang", {}).err, HasSubstr("give --set copied=true"));
  EXPECT_THAT(tune("vllm-prefetch", "--sglang", {}).err, HasSubstr("give --set experts=true"));
  EXPECT_THAT(tune("vllm-uva", "--vllm", {"copied=true"}).err, HasSubstr("give --sglang"));
  EXPECT_THAT(tune("lru", "--sglang", {}).err, HasSubstr("--sglang: is of policy vllm-prefetch, vllm-uva, not of lru"));
}

// Three layers of eight experts: of 0.25 each layer has two; of 0.3, 7.2, there are seven, and KTransformers takes as
// many whole experts as its share has: 0.291667 × 24 is a little more than 7, as 0.291666 would not be.
TEST_F(GenerationQuestions, KtransformersIsToldWhatWasFound) {
  std::ofstream(path("mixture.yaml")) << "{name: mixture, family: mixtral, layers: 3, hidden: 64, heads: 4, "
                                         "key_value_heads: 2, intermediate: 32, experts: 8, experts_per_token: 2, "
                                         "vocabulary: 128, max_sequence: 256}\n";
  const auto tune = [&](const char* model, const char* policy, std::vector<std::string> set) {
    std::vector<std::string> words = {
        "tune", "--model", model,      "--new-tokens", "4", "--prompt",        "16",      "--placeable", "all", "-p",
        policy, "-m",      "rtx-4090", "--budget",     "1", "--ktransformers", "args.txt"};
    for (const std::string& setting : set) words.insert(words.end(), {"--set", setting});
    return run(words);
  };
  const Answer even = tune("./mixture.yaml", "ktransformers", {"gpu_experts=0.25", "placement=uniform"});
  EXPECT_EQ(even.code, 0) << even.err;
  EXPECT_EQ(content(path("args.txt")), "--kt-num-gpu-experts 2 --kt-expert-placement-strategy uniform\n");
  EXPECT_THAT(even.err, HasSubstr("6 of 24 experts in 3 layers are placed on the GPU"));
  EXPECT_THAT(even.err, HasSubstr("add --kt-weight-path and --kt-method"));
  tune("./mixture.yaml", "ktransformers", {"gpu_experts=0.3", "placement=front-loading"});
  EXPECT_EQ(content(path("args.txt")),
            "--kt-gpu-experts-ratio 0.291667 --kt-expert-placement-strategy front-loading\n");
  const Answer dynamic = tune("./mixture.yaml", "ktransformers", {"gpu_experts=0.25", "placement=dynamic"});
  EXPECT_EQ(content(path("args.txt")),
            "--kt-num-gpu-experts 2 --kt-expert-placement-strategy uniform --kt-enable-dynamic-expert-update "
            "--kt-gpu-prefill-token-threshold 16\n");
  EXPECT_THAT(dynamic.err, HasSubstr("only for prompts of at least that many tokens"));
  EXPECT_THAT(tune("./mixture.yaml", "ktransformers", {"placement=random"}).err, HasSubstr("a seed of its own"));
  EXPECT_THAT(tune("gpt2", "ktransformers", {}).err,
              HasSubstr("--ktransformers: 'gpt2' has no experts, which KTransformers computes on the CPU"));
  EXPECT_THAT(tune("./mixture.yaml", "fiddler", {}).err, HasSubstr("is of policy ktransformers, not of fiddler"));
}

TEST_F(GenerationQuestions, AResultHasItsTimesPerToken) {
  for (const auto& [order, passes] : {std::pair("zigzag", 1), {"row", 2}}) {
    const Json result = run(ask("replay", "zero-inference", {"--json"}, {"--block", "2x2", "--order", order})).json();
    const Json& generation = result["generation"];
    EXPECT_EQ(generation["requests"], 4);
    EXPECT_EQ(generation["new_tokens"], 4);
    const double prefill = result["phase_seconds"]["prefill"], decode = result["phase_seconds"]["decode"];
    EXPECT_DOUBLE_EQ(generation["time_to_first_token_seconds"], prefill / passes);
    EXPECT_DOUBLE_EQ(generation["time_per_output_token_seconds"], decode / (3 * passes));
    EXPECT_DOUBLE_EQ(generation["decode_tokens_per_second"], 12 / decode);
    const double iteration = result["iteration_seconds"];
    EXPECT_DOUBLE_EQ(prefill + decode, iteration);
    EXPECT_DOUBLE_EQ(result["tokens_per_second"], 16 / iteration);
    EXPECT_DOUBLE_EQ(result["usd_per_million_tokens"], 0.001 * iteration / 16 * 1e6);
    EXPECT_DOUBLE_EQ(generation["traffic_bytes_per_token"]["h2d"], result["traffic_bytes"]["h2d"].get<double>() / 16);
    EXPECT_GT(result["traffic_bytes"]["h2d"], 100e6);              // the weights come at least once
    EXPECT_EQ(generation["kv_cache_hit_rate"]["bytes"], nullptr);  // the policy leaves the cache on the GPU
  }
  const Json lru = run(ask("replay", "lru", {"--json"})).json();
  EXPECT_GT(lru["generation"]["kv_cache_hit_rate"]["accesses"], 0);
  EXPECT_FALSE(run({"replay", "small.trace.jsonl", "--no-rescale", "-m", "m.yaml", "-p", "lru", "--json"})
                   .json()
                   .contains("generation"));
}

TEST_F(GenerationQuestions, ComparisonsShowThem) {
  const Answer answer = run(ask("compare", "lru,zero-inference"));
  EXPECT_THAT(answer.out, AllOf(HasSubstr("tokens/s  "), HasSubstr("TTFT  "), HasSubstr("TPOT  "),
                                HasSubstr("TTFT: time to first token")));
  EXPECT_THAT(run(ask("replay", "zero-inference")).out,
              AllOf(HasSubstr("  generation     first token after "), HasSubstr(" per token, "),
                    HasSubstr("  per token      h2d ")));
  EXPECT_THAT(run({"compare", "small.trace.jsonl", "--no-rescale", "-m", "m.yaml", "-p", "lru"}).out,
              Not(HasSubstr("TTFT")));
}

// Whatever is found fits, and the next larger one does not, for the reason that is given.
TEST_F(GenerationQuestions, FitFindsTheLargest) {
  const Answer answer = run(ask("fit", "accelerate", {"--minimum", "none", "--json"}));
  ASSERT_EQ(answer.code, 0) << answer.err << answer.out;
  const Json largest = answer.json()["largest"];
  ASSERT_EQ(largest.size(), 3u);
  const auto fits = [&](const std::string& prompt, std::uint64_t requests, std::uint64_t batches) {
    const Answer one = run({"replay", "--model", "gpt2", "--new-tokens", "4", "--prompt", prompt, "--block",
                            std::to_string(requests) + "x" + std::to_string(batches), "--order", "zigzag", "-m",
                            "m.yaml", "-p", "accelerate", "--json"});
    return one.code == 2 ? Json() : one.json();
  };
  for (const Json& of : largest) {
    const std::uint64_t most = of["largest"];
    SCOPED_TRACE(of.dump());
    const auto at = [&](std::uint64_t value) {
      return of["axis"] == "prompt"     ? fits(std::to_string(value), 2, 2)
             : of["axis"] == "requests" ? fits("16", value, 2)
                                        : fits("16", 2, value);
    };
    EXPECT_EQ(at(most)["fits"], true);
    const Json next = at(most + 1);
    if (of["overflow"].is_null()) {
      EXPECT_THAT(of["limit"].get<std::string>(), HasSubstr("longer than the 1024"));
      EXPECT_EQ(most, 1020u);
      EXPECT_TRUE(next.is_null());
    } else {
      EXPECT_EQ(next["fits"], false);
      EXPECT_EQ(next["reason"], of["overflow"]);
      EXPECT_THAT(of["overflow"].get<std::string>(), AllOf(HasSubstr("in tier 'gpu'"), HasSubstr("(op ")));
    }
  }
  EXPECT_EQ(largest[0]["axis"], "requests");
  EXPECT_EQ(largest[0]["asked"], 2);
}

TEST_F(GenerationQuestions, FitSearchesWhatIsAsked) {
  const auto axes = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--minimum", "none", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<std::string> names;
    const Json json = run(ask("fit", "accelerate,zero-inference", words)).json();
    if (!json.contains("largest")) return names;
    for (const Json& of : json["largest"]) {
      names.push_back(of["policy"].get<std::string>() + " " + of["axis"].get<std::string>());
    }
    return names;
  };
  EXPECT_THAT(axes({}), ElementsAre());
  EXPECT_THAT(axes({"--largest", "prompt"}), ElementsAre("accelerate prompt", "zero-inference prompt"));
}

TEST_F(GenerationQuestions, TuneFindsABlock) {
  const Answer free = run(
      ask("tune", "zero-inference", {"--over", "requests=1,4", "--over", "bucket=auto", "--json"}, {"--order", "row"}));
  ASSERT_EQ(free.code, 0) << free.err;
  const Json best = free.json()["best"];
  EXPECT_EQ(best["settings"]["requests"], "4");
  // As much as the command that it prints.
  std::istringstream command(free.json()["workloads"][0]["replay"].get<std::string>());
  std::vector<std::string> words{std::istream_iterator<std::string>(command), {}};
  words.erase(words.begin());
  words.push_back("--json");
  const Json replayed = run(words).json();
  EXPECT_EQ(replayed["generation"]["requests"], 4);
  EXPECT_EQ(replayed["iteration_seconds"], free.json()["workloads"][0]["iteration_seconds"]);
  EXPECT_DOUBLE_EQ(replayed["tokens_per_second"], best["tokens"]["tokens_per_second"]);
  EXPECT_EQ(replayed["generation"]["time_per_output_token_seconds"], best["tokens"]["time_per_output_token_seconds"]);
  EXPECT_GT(best["tokens"]["tokens_per_second"], free.json()["defaults"]["tokens"]["tokens_per_second"]);
}

// A limit between the times of one request and of four leaves one; below both, nothing.
TEST_F(GenerationQuestions, TuneKeepsToATimePerToken) {
  const auto per_token = [&](const char* block) {
    return run(ask("replay", "zero-inference", {"--json"}, {"--block", block}))
        .json()["generation"]["time_per_output_token_seconds"]
        .get<double>();
  };
  const double one = per_token("1x1"), four = per_token("64x1");
  ASSERT_LT(one, four);
  const auto tune = [&](double most) {
    return run(ask("tune", "zero-inference",
                   {"--over", "requests=1,64", "--over", "bucket=auto", "--over", "kv-page=16", "--max-tpot",
                    std::to_string(most * 1e6) + "us", "--json"},
                   {"--order", "row"}));
  };
  EXPECT_EQ(tune(four * 1.001).json()["best"]["settings"]["requests"], "64");
  const Json limited = tune((one + four) / 2).json();
  EXPECT_FALSE(limited["best"]["settings"].contains("requests"));
  EXPECT_THAT(limited["misfits"][0]["reason"].get<std::string>(), HasSubstr("is above --max-tpot"));
  EXPECT_EQ(tune(one / 2).code, 1);
}

TEST_F(GenerationQuestions, WritesADeviceMap) {
  const Answer answer = run(ask("tune", "accelerate",
                                {"--over", "gpu_weights=150MiB", "--set", "cpu_weights=100MiB", "--accelerate",
                                 "map.json", "--gpu-memory", "1GiB"}));
  ASSERT_EQ(answer.code, 0) << answer.err;
  const Json map = Json::parse(content(path("map.json")));
  EXPECT_EQ(map["transformer.wte"], 0);
  EXPECT_EQ(map["lm_head"], 0);  // tied
  EXPECT_EQ(map["transformer.h.0"], 0);
  EXPECT_EQ(map["transformer.h.11"], "cpu");
  EXPECT_FALSE(map.contains("transformer.h.0.attn.c_attn"));
}

TEST_F(GenerationQuestions, WritesAConfigurationForZeroInference) {
  const Answer answer = run(ask("tune", "zero-inference", {"--over", "bucket=1MiB", "--deepspeed", "ds.json"}));
  ASSERT_EQ(answer.code, 0) << answer.err;
  const Json json = Json::parse(content(path("ds.json")));
  EXPECT_EQ(json["zero_optimization"]["stage"], 3);
  EXPECT_EQ(json["zero_optimization"]["offload_param"]["device"], "cpu");
  EXPECT_EQ(json["zero_optimization"]["stage3_prefetch_bucket_size"], 512 * 1024);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(json["bf16"]["enabled"], true);
}

// A CPU that holds none of it: all that leaves the GPU is written to the SSD.
TEST_F(GenerationQuestions, EnduranceCountsTokens) {
  const std::vector<std::string> ask_for = {"endurance", "--model", "gpt2",     "--new-tokens", "4",
                                            "--prompt",  "512",     "--block",  "16x2",         "--order",
                                            "zigzag",    "-m",      "ssd.yaml", "-p",           "lru"};
  std::ofstream(path("ssd.yaml")) << "name: ssd\n"
                                     "gpu: a10g\n"
                                     "tiers:\n"
                                     "  - {name: gpu, kind: gpu, capacity: 480MiB, granularity: 4KiB}\n"
                                     "  - {name: cpu, kind: cpu, capacity: 260MiB, granularity: 4KiB}\n"
                                     "  - {name: nvme, kind: nvme, capacity: 8GiB, granularity: 4KiB}\n"
                                     "links:\n"
                                     "  - {name: h2d, from: cpu, to: gpu, bandwidth: 2GB/s}\n"
                                     "  - {name: d2h, from: gpu, to: cpu, bandwidth: 2GB/s}\n"
                                     "  - {name: read, from: nvme, to: gpu, bandwidth: 1GB/s}\n"
                                     "  - {name: write, from: gpu, to: nvme, bandwidth: 1GB/s}\n"
                                     "initial_tier: cpu\n";
  std::vector<std::string> with_json = ask_for;
  with_json.push_back("--json");
  const Answer answer = run(with_json);
  ASSERT_EQ(answer.code, 0) << answer.out << answer.err;
  const Json json = answer.json();
  const double written = json["tiers"][0]["ssd_written_bytes_per_iteration"];
  EXPECT_GT(written, 0);
  EXPECT_DOUBLE_EQ(json["written_bytes_per_million_tokens"], written / (32 * 4) * 1e6);
  EXPECT_THAT(run(ask_for).out, HasSubstr("Per million generated tokens "));
}

TEST_F(GenerationQuestions, RefusesWhatContradicts) {
  const std::vector<std::string> training = {"fit", "small.trace.jsonl", "--no-rescale", "-m", "m.yaml", "-p", "lru"};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_bad_usage(with(training, {"--largest", "all"}), HasSubstr("--largest: this is no text generation"));
  expect_bad_usage(ask("fit", "lru", {"--largest", "tokens"}),
                   HasSubstr("--largest: unknown 'tokens'; valid are requests, micro-batches, prompt, all, none"));
  expect_bad_usage(
      ask("fit", "lru", {"--largest", "micro-batches"}, {"--block", "2x2"}),
      HasSubstr("--largest micro-batches: in row order their number takes no memory; give --order zigzag"));
  expect_bad_usage({"fit", "--model", "gpt2", "--new-tokens", "4", "--prompt", "16,20", "--block", "2x2", "-m",
                    "m.yaml", "-p", "lru", "--largest", "prompt"},
                   HasSubstr("--largest prompt: the prompts have several lengths"));
  expect_bad_usage({"fit", "--model", "gpt2", "--new-tokens", "4", "--batch", "2", "-m", "m.yaml"},
                   HasSubstr("--batch is not for --new-tokens"));
  expect_bad_usage(ask("tune", "lru", {"--max-tpot", "100"}), HasSubstr("--max-tpot 100: write a time above 0"));
  expect_bad_usage({"tune", "small.trace.jsonl", "--no-rescale", "-m", "m.yaml", "-p", "lru", "--max-tpot", "1s"},
                   HasSubstr("--max-tpot: small.trace.jsonl is no text generation"));
  expect_bad_usage({"tune", "small.trace.jsonl", "--no-rescale", "-m", "m.yaml", "-p", "lru", "--over", "requests=1,2"},
                   HasSubstr("--over requests: is of one text generation; give --model with --new-tokens"));
  expect_bad_usage(ask("tune", "lru", {"--over", "requests=a..b"}), HasSubstr("lo..hi"));
  expect_bad_usage(ask("tune", "lru", {"--over", "order=diagonal"}), HasSubstr("diagonal"));
  EXPECT_THAT(files_in_work(), ElementsAre("m.yaml", "small.trace.jsonl"));
}

}  // namespace
}  // namespace tencache
