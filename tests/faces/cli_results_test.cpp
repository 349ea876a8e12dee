// `models`, `fit`, `diff` and `reproduce` from end to end.
#include "policies/registry.h"
#include "tests/cli_fixture.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class Results : public CommandLine {
 protected:
  // What the command prints, kept in a file for the next one.
  Json keep(const std::string& file, const std::vector<std::string>& words) const {
    const Answer answer = run(words);
    EXPECT_LE(answer.code, 1) << answer.err;
    write_file(path(file), answer.out);
    return answer.json();
  }
  void save(const std::string& file, const Json& json) const { write_file(path(file), json.dump()); }
};

TEST_F(Results, ModelsListsAndShows) {
  const Json list = run({"models", "--json"}).json();
  ASSERT_TRUE(list.is_array());
  bool found = false;
  for (const Json& model : list) {
    if (model["name"] != "opt-6.7b") continue;
    found = true;
    EXPECT_EQ(model["parameters"], 6'658'473'984);
    EXPECT_NE(model["source"], "");
  }
  EXPECT_TRUE(found);
  EXPECT_THAT(run({"models"}).out, AllOf(HasSubstr("opt-6.7b"), HasSubstr("6,658,473,984")));
  const Json mixtral = run({"models", "--model", "mixtral-8x7b", "--json"}).json();
  EXPECT_EQ(mixtral["tensors"].size(), mixtral["parameter_tensors"].get<std::size_t>());
  write_file(path("config.json"),
             R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100})");
  EXPECT_THAT(run({"models", "--model", "./config.json"}).out, HasSubstr("transformer.h.0.attn.c_attn.weight"));
  expect_bad_usage({"models", "--model", "opt-6.8b"}, AllOf(HasSubstr("'opt-6.8b'"), HasSubstr("opt-6.7b")));
  write_file(path("broken.yaml"), "name: x\nfamily: llama\nlayers: -3\n");
  expect_bad_usage({"models", "--model", "broken.yaml"}, HasSubstr("broken.yaml:3: layers: '-3'"));
}

// 4 slots (rounded up to 32 of uvm-…) for batches of three lookups; ids of no other rows than 0 to 9.
TEST_F(Results, RowsComparesCaches) {
  EXPECT_EQ(run({"rows", "generate", "--rows", "10,30", "--samples", "3", "--batches", "20", "--zipf", "0.5", "-o",
                 "small.ids.zst"})
                .code,
            0);
  const Json all = run({"rows", "small.ids.zst", "--slots", "15%", "--slots", "40", "--json"}).json();
  EXPECT_EQ(all["rows"], 40);
  EXPECT_EQ(all["lookups"], 120);
  EXPECT_EQ(all["policy"], "cached-embedding");
  ASSERT_EQ(all["runs"].size(), 12u);
  for (const Json& one : all["runs"]) {
    const bool ran = one["refused"].is_null();
    EXPECT_EQ(one["hits"].get<int>() + one["misses"].get<int>(), ran ? all["different_rows"].get<int>() : 0);
    EXPECT_EQ(one["rows_in"].get<int>() + one["direct_rows"].get<int>(), one["misses"]);
    EXPECT_GT(one["gpu_bytes"], one["map_bytes"]);
    EXPECT_EQ(one["tables"].size(), ran ? 2u : 0u);
  }
  const Json one =
      run({"rows", "small.ids.zst", "-p", "uvm-lru", "--slots", "100%", "-m", "g10-a100", "--json"}).json();
  for (const char* key : {"hits", "misses", "rows_in", "rows_out", "gpu_bytes", "map_bytes", "batch_ns"}) {
    EXPECT_TRUE(one[key].is_number_unsigned()) << key;
  }
  EXPECT_EQ(one["slots"], 64);
  EXPECT_EQ(one["rows_out"], 0);
  EXPECT_THAT(run({"rows", "small.ids.zst", "--csv", "rows.csv", "--svg", "rows.svg"}).out,
              AllOf(HasSubstr("scratchpipe"), HasSubstr("too few"), HasSubstr("GPU memory")));
  EXPECT_THAT(read_file(path("rows.csv")), HasSubstr("policy,slots"));
  EXPECT_THAT(read_file(path("rows.svg")), HasSubstr("<svg"));
  EXPECT_EQ(run({"rows", "generate", "--tables", "2", "--rows", "200000", "--pooling", "4", "--batches", "2",
                 "--histogram", "dlrm-2022", "-o", "published.ids"})
                .code,
            0);

  expect_bad_usage(
      {"rows", "small.ids.zst", "-p", "cached-embedding", "--slots", "2"},
      AllOf(HasSubstr("small.ids.zst: batches 1 to 1 need"), HasSubstr("more than 2 slots: raise --slots")));
  expect_bad_usage({"rows", "small.ids.zst", "-p", "lru"}, HasSubstr("unknown row policy 'lru'; there are cached"));
  expect_bad_usage({"rows", "small.ids.zst", "--slots", "0"}, HasSubstr("--slots: '0' is no share"));
  expect_bad_usage({"rows", "small.ids.zst", "--slots", "101%"}, HasSubstr("--slots: '101%' is no share"));
  expect_bad_usage({"rows", "small.ids.zst", "--ahead", "x"}, HasSubstr("'x' is no whole number"));
  expect_bad_usage({"rows", "small.trace.jsonl"}, HasSubstr("is no file of ids"));
  expect_bad_usage({"rows"}, HasSubstr("generate"));
  const std::string bytes = read_file(path("published.ids"));
  write_file(path("cut.ids"), bytes.substr(0, bytes.size() / 2));
  expect_bad_usage({"rows", "cut.ids"}, HasSubstr("cut.ids: batch 1, table 'table2': the file ends here"));
  expect_bad_usage({"rows", "generate", "--tables", "3", "--rows", "1,2", "-o", "x.ids"}, HasSubstr("2 figures for 3"));
  expect_bad_usage({"rows", "generate", "--rows", "5", "--histogram", "dlrm-2023", "-o", "x.ids"},
                   HasSubstr("there are dlrm-2021, dlrm-2022"));
  expect_bad_usage({"rows", "generate", "--rows", "5", "--histogram", "dlrm-2021", "-o", "x.ids"},
                   HasSubstr("table 'table1' has 5 rows, but"));
}

// Twelve documents of ten blocks, in three rounds of one order: GPU memory for half of them never hits under lru, and CPU
// memory for all has the second and third round.
TEST_F(Results, KvCacheComparesPoliciesAndTiers) {
  const Json made = run({"kv-cache", "generate", "--documents", "12", "--tokens", "5000", "--rounds", "3", "--order",
                         "same", "-o", "documents.jsonl", "--json"})
                        .json();
  EXPECT_EQ(made["requests"], 36);
  EXPECT_EQ(made["blocks"], 360);
  EXPECT_EQ(made["different_blocks"], 120);
  const Json all = run({"kv-cache", "documents.jsonl", "--json"}).json();
  EXPECT_EQ(all["block_tokens"], 512);
  EXPECT_NEAR(all["endless_hit_rate"].get<double>(), 2.0 / 3, 1e-9);
  ASSERT_EQ(all["runs"].size(), 42u);  // six policies, seven capacities
  for (const Json& one : all["runs"]) {
    EXPECT_EQ(one["oracle"], one["policy"] == "belady");
    EXPECT_LE(one["prefill_saved_s"].get<double>(), all["prefill_s"].get<double>());
    EXPECT_EQ(one["bytes_in"], 0);
    EXPECT_EQ(one["capacity_bytes"], one["tiers"][0]["capacity_bytes"]);
  }
  const Json tiers = run({"kv-cache", "documents.jsonl", "-p", "lru", "--gpu-cache", "50%", "--cpu-cache", "unlimited",
                          "--warm-up", "12", "--json"})
                         .json();
  EXPECT_EQ(tiers["requests"], 24);
  EXPECT_EQ(tiers["hit_rate"], 1);
  EXPECT_EQ(tiers["runs"][0]["tiers"][0]["hits"], 0);
  EXPECT_EQ(tiers["runs"][0]["tiers"][1]["hits"], 240);
  EXPECT_EQ(tiers["bytes_in"].get<std::uint64_t>(), 240 * tiers["block_bytes"].get<std::uint64_t>());
  EXPECT_EQ(tiers["bytes_out"], 0);
  EXPECT_GT(tiers["prefill_saved_s"].get<double>(), tiers["fetch_s"].get<double>());
  EXPECT_THAT(run({"kv-cache", "documents.jsonl", "--csv", "kv.csv", "--svg", "kv.svg"}).out,
              AllOf(HasSubstr("belady (oracle)"), HasSubstr("even at"), HasSubstr("66.7 % hits with endless memory")));
  EXPECT_THAT(read_file(path("kv.csv")), HasSubstr("policy,GPU memory"));
  EXPECT_THAT(read_file(path("kv.svg")), HasSubstr("<svg"));

  expect_bad_usage({"kv-cache"}, HasSubstr("generate"));
  expect_bad_usage({"kv-cache", "small.trace.jsonl"}, HasSubstr("small.trace.jsonl:1: key 'input_length' is missing"));
  expect_bad_usage({"kv-cache", "documents.jsonl", "-p", "arc"}, HasSubstr("'arc'; there are lru, lfu"));
  expect_bad_usage({"kv-cache", "documents.jsonl", "--gpu-cache", "0%"}, HasSubstr("--gpu-cache: '0%' is no share"));
  expect_bad_usage({"kv-cache", "documents.jsonl", "--gpu-cache", "2MiB"}, HasSubstr("is less than one block"));
  expect_bad_usage({"kv-cache", "documents.jsonl", "--cpu-cache", "many"}, HasSubstr("--cpu-cache: "));
  expect_bad_usage({"kv-cache", "documents.jsonl", "-m", "NC40ads_H100_v5", "--ssd-cache", "1TiB"},
                   HasSubstr("--ssd-cache: machine 'NC40ads_H100_v5' has no SSD"));
  expect_bad_usage({"kv-cache", "documents.jsonl", "--warm-up", "36"}, HasSubstr("none is left"));
  expect_bad_usage({"kv-cache", "documents.jsonl", "--model", "vit-base-patch16-224"}, HasSubstr("vit"));
  expect_bad_usage({"kv-cache", "generate", "--documents", "1000000", "--rounds", "1000", "-o", "x.jsonl"},
                   HasSubstr("ask for fewer"));
}

// All tensors are of 4 MiB: segments of 20 MiB hold five of them. 20 MiB are persistent, 12 more are alive at once.
TEST_F(Results, FragmentComparesAllocators) {
  const Json answer = run({"fragment", "small.trace.jsonl", "-a", "default", "-a", "exact", "--json"}).json();
  EXPECT_EQ(answer["fits"], true);
  EXPECT_EQ(answer["iterations"], 3);
  const Json& plain = answer["allocators"][0];
  EXPECT_EQ(plain["allocator"], "default");
  EXPECT_EQ(plain["requested_bytes"], 32 * MiB);
  EXPECT_EQ(plain["reserved_bytes"], 40 * MiB);
  EXPECT_EQ(answer["allocators"][1]["reserved_bytes"], 32 * MiB);
  EXPECT_EQ(answer["map"]["columns"].size(), 240u);
  EXPECT_EQ(answer["map"]["iterations"].size(), 3u);
  EXPECT_THAT(run({"fragment", "small.trace.jsonl"}).out,
              AllOf(HasSubstr("expandable"), HasSubstr("stweaver"), HasSubstr("From an empty cache")));

  const Answer misfit = run({"fragment", "small.trace.jsonl", "--limit", "30MiB"});
  EXPECT_EQ(misfit.code, 1);
  EXPECT_THAT(misfit.out, HasSubstr("A real need: more than 30.00 MiB"));
  const Answer cured = run({"fragment", "small.trace.jsonl", "--limit", "36MiB", "--json"});
  EXPECT_EQ(cured.json()["advice"]["verdict"], "needs_another") << "pages are of 20 MiB, too";

  EXPECT_EQ(run({"fragment", "small.trace.jsonl", "-o", "small.alloc.jsonl"}).code, 0);
  const Json again = run({"fragment", "small.alloc.jsonl", "-a", "default", "--json"}).json();
  EXPECT_EQ(again["allocators"][0], plain) << "of the events that were written";
  write_file(path("bad.alloc.jsonl"), "{\"alloc\":1,\"bytes\":8}\n{\"free\":2}\n");
  expect_bad_usage({"fragment", "bad.alloc.jsonl"}, HasSubstr("bad.alloc.jsonl:2: block 2 is freed"));
  write_file(path("s.pickle"), "\x80\x04stuff");
  expect_bad_usage({"fragment", "s.pickle"}, HasSubstr("tencache import snapshot"));
  write_file(path("other.txt"), "hello\n");
  expect_bad_usage({"fragment", "other.txt"}, HasSubstr("has no allocations that are known here"));
  expect_bad_usage({"fragment", "small.trace.jsonl", "small.alloc.jsonl"}, HasSubstr("is no trace"));
  expect_bad_usage({"fragment", "small.trace.jsonl", "-a", "jemalloc"}, HasSubstr("unknown allocator 'jemalloc'"));
  expect_bad_usage({"fragment", "small.trace.jsonl", "--conf", "max_split_size_mb:4"}, HasSubstr("20 or more"));
  expect_bad_usage({"fragment"}, HasSubstr("tencache why"));
}

TEST_F(Results, WhyExplainsAMessageOrALog) {
  const std::string message =
      "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.00 GiB already allocated; "
      "12.94 MiB free; 22.50 GiB reserved in total by PyTorch)";
  const Answer answer = run({"why", message});
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.out, testing::StartsWith("Fragmentation: 1.50 GiB are reserved but unallocated"));
  EXPECT_THAT(answer.out, AllOf(HasSubstr("a request of 1 to 10 MiB"), HasSubstr("expandable_segments:True")));
  write_file(path("train.log"), "epoch 1\n" + message + "\n");
  const Json json = run({"why", path("train.log"), "--json"}).json();
  EXPECT_EQ(json["kind"], "fragmentation");
  EXPECT_EQ(json["platform"], "cuda");
  EXPECT_EQ(json["failures"][0]["line"], 2);
  EXPECT_GE(json["actions"].size(), 2u);
  EXPECT_TRUE(json["fit"].is_null());
  const Json fit =
      run({"why", message, "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge", "--json"}).json();
  EXPECT_FALSE(fit["fit"].is_null());
  expect_bad_usage({"why", "no-such.log"}, HasSubstr("there is no file 'no-such.log'"));
  expect_bad_usage({"why", "it does not work"}, HasSubstr("has no message that memory ran out"));
  expect_bad_usage({"why", message, "--model", "gpt2"}, HasSubstr("--machine is required"));
}

TEST_F(Results, SimulationsPayForACachingAllocator) {
  write_file(path("caching.yaml"), "{base: small-host, name: caching, tiers: {gpu: {allocator: caching}}}");
  const std::vector<std::string> words = {"replay", "small.trace.jsonl", "-p", "lru", "--gpu-memory", "44MiB",
                                          "--json"};
  const auto of = [&](const char* machine) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"-m", machine});
    return run(all).json();
  };
  const Json exact = of("small-host"), caching = of(path("caching.yaml").c_str());
  EXPECT_EQ(exact["fits"], true);
  EXPECT_EQ(caching["fits"], true);
  EXPECT_EQ(caching["allocators"]["gpu"]["kind"], "caching") << caching["allocators"].dump();
  EXPECT_GE(caching["iteration_seconds"].get<double>(), exact["iteration_seconds"].get<double>());
}

TEST_F(Results, FitSaysWhatAnAllocatorReserves) {
  const Json fit =
      run({"fit", "small.trace.jsonl", "-m", "small-host", "--allocator", "default", "--allocator", "exact", "--json"})
          .json();
  EXPECT_EQ(fit["allocators"][0]["reserved_bytes"], 40 * MiB);
  EXPECT_EQ(fit["allocators"][1]["reserved_bytes"], 32 * MiB);
  const Json of_model = run({"fit", "--model", "gpt2", "--batch", "1", "--seq", "16", "-m", "g10-a100", "-p", "ideal",
                             "--minimum", "none", "--optimizer", "adam8bit", "--json"})
                            .json();
  ASSERT_EQ(of_model["training_memory"].size(), 3u);
  EXPECT_EQ(of_model["training_memory"][0]["states"], "1 + 1 and 8/256 an element");
}

// All tensors are of 4 MiB; the optimizer's ops touch three of them, so does `backward 1` with its output a fourth.
TEST_F(Results, FitSaysWhatOverflowsAndWhatWouldDo) {
  const Answer answer = run({"fit", "small.trace.jsonl", "-m", "small-host", "--json"});
  EXPECT_EQ(answer.code, 1) << "with offloading only";
  const Json fit = answer.json();
  EXPECT_EQ(fit["fits"], true);
  const Json& demand = fit["demand"][0];
  EXPECT_EQ(demand["persistent"]["bytes"], 20 * MiB);
  EXPECT_EQ(demand["persistent"]["by_role"]["parameter"], 8 * MiB);
  // Persistent tensors, both activations and the gradient.
  EXPECT_EQ(demand["peak"]["bytes"], 32 * MiB);
  EXPECT_EQ(demand["peak"]["name"], "backward 1");
  EXPECT_EQ(demand["largest_gpu_op"]["bytes"], 16 * MiB);
  EXPECT_EQ(demand["largest_gpu_op"]["name"], "backward 1");
  // 16 MiB on the GPU: the persistent tensors alone are more. The rest has room in CPU memory.
  EXPECT_EQ(demand["tiers"][0]["left_over_bytes"], 16 * MiB);
  EXPECT_EQ(demand["tiers"][0]["overflows_first_at"]["name"], "forward 0");
  EXPECT_EQ(demand["tiers"][1]["left_over_bytes"], 0);
  EXPECT_EQ(demand["tiers"][1]["overflows_first_at"], nullptr);
  for (const Json& policy : fit["policies"]) {
    EXPECT_NE(policy["policy"], "ideal");
    if (policy["policy"] == "on-demand") {
      EXPECT_EQ(policy["minimum_gpu_bytes"], 16 * MiB);
    }
  }
  // The least that it says is the least that `replay` accepts.
  for (const Json& policy : fit["policies"]) {
    if (policy["minimum_gpu_bytes"].is_null()) continue;
    const Bytes least = policy["minimum_gpu_bytes"].get<Bytes>();
    const auto code = [&](Bytes bytes) {
      return run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", policy["policy"].get<std::string>(),
                  "--gpu-memory", std::to_string(bytes)})
          .code;
    };
    EXPECT_EQ(code(least), 0) << policy;
    EXPECT_NE(code(least - MiB), 0) << policy;
  }
  EXPECT_THAT(run({"fit", "small.trace.jsonl", "-m", "small-host"}).out,
              AllOf(HasSubstr("fits"), HasSubstr("least GPU memory"), HasSubstr("backward 1")));
}

TEST_F(Results, FitNamesTheOpThatDoesNotFit) {
  const std::vector<std::string> words = {"fit", "small.trace.jsonl", "-m", "small-host", "--gpu-memory", "12MiB"};
  std::vector<std::string> with_json = words;
  with_json.push_back("--json");
  const Answer answer = run(with_json);
  EXPECT_EQ(answer.code, 1);
  const Json fit = answer.json();
  EXPECT_EQ(fit["fits"], false);
  EXPECT_EQ(fit["demand"][0]["largest_gpu_op_fits"], false);
  for (const Json& policy : fit["policies"]) {
    if (policy["policy"] != "on-demand") continue;
    EXPECT_EQ(policy["op"], "backward 1");
    EXPECT_EQ(policy["bytes_missing"], 4 * MiB);
    EXPECT_EQ(policy["minimum_gpu_bytes"], 16 * MiB);
  }
  const Answer text = run(words);
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, AllOf(HasSubstr("does not fit"), HasSubstr("no policy can run it")));
  expect_bad_usage({"fit", "small.trace.jsonl", "-m", "small-host", "--set", "victim=lru"}, HasSubstr("--policy"));
  expect_bad_usage({"fit", "small.trace.jsonl", "-m", "small-host", "-p", "best"},
                   HasSubstr("`tencache policies` lists all"));
}

// Where no GPU memory helps, because all tiers together are too small, it says so.
TEST_F(Results, FitSearchesNoMemoryThatIsNotMissing) {
  const Json fit =
      run({"fit", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--minimum", "none", "--json"}).json();
  EXPECT_EQ(fit["policies"][0]["minimum_gpu_bytes"], nullptr);
  EXPECT_EQ(fit["policies"].size(), 1u);
}

// The optimizer's ops of 40 MiB are more than the GPU has, but run on the CPU.
TEST_F(Results, FitCountsNoOpsThatRunOnTheCpu) {
  Trace trace = small_trace();
  for (Tensor& tensor : trace.tensors) {
    if (tensor.role == Role::optimizer_state) tensor.bytes = 32 * MiB;
  }
  write_trace(trace, path("adam.trace.jsonl"));
  const auto fit = [&](const std::string& policy, const std::string& gpu_memory) {
    return run({"fit", "adam.trace.jsonl", "-m", "10cache-l40s", "--gpu-memory", gpu_memory, "-p", policy,
                "--no-rescale", "--json"})
        .json();
  };
  const Json offload = fit("zero-offload", "32MiB");
  EXPECT_EQ(offload["fits"], true);
  EXPECT_EQ(offload["demand"][0]["largest_gpu_op"]["name"], "backward 1");
  EXPECT_EQ(offload["demand"][0]["largest_gpu_op_fits"], true);
  const Bytes least = offload["policies"][0]["minimum_gpu_bytes"].get<Bytes>();
  EXPECT_LE(least, 32 * MiB);
  EXPECT_GE(least, 16 * MiB);
  // The machine's own memory, where that is all that will do.
  EXPECT_EQ(fit("zero-offload", std::to_string(least))["policies"][0]["minimum_gpu_bytes"], least);
  // On the GPU they are what decides.
  EXPECT_EQ(fit("on-demand", "64MiB")["policies"][0]["minimum_gpu_bytes"], 40 * MiB);
}

// A size between two whole MiB is the answer where it fits and the whole MiB below does not.
TEST_F(Results, FitNamesTheMachinesOwnMemoryWhereNoLessDoes) {
  Trace trace = small_trace();
  for (Tensor& tensor : trace.tensors) tensor.bytes = 4 * MiB + 4096;
  write_trace(trace, path("odd.trace.jsonl"));
  const Bytes own = 16 * MiB + 512 * 1024;
  const Json fit = run({"fit", "odd.trace.jsonl", "-m", "small-host", "--gpu-memory", std::to_string(own), "-p",
                        "on-demand", "--json"})
                       .json();
  EXPECT_EQ(fit["fits"], false) << "paging is no way to fit";
  EXPECT_EQ(fit["policies"][0]["fits"], true);
  EXPECT_EQ(fit["policies"][0]["minimum_gpu_bytes"], own);
}

TEST_F(Results, DiffShowsWhatChangedWithRatios) {
  const Json a = keep("a.json", {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"});
  const Json b = keep("b.json", {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--gpu-memory",
                                 "20MiB", "--json"});
  EXPECT_EQ(run({"diff", "a.json", "a.json"}).code, 0);
  const Answer answer = run({"diff", "a.json", "b.json", "--json"});
  EXPECT_EQ(answer.code, 1);
  const Json diff = answer.json();
  EXPECT_EQ(diff["same"], false);
  ASSERT_EQ(diff["pairs"].size(), 1u);
  const Json& changes = diff["pairs"][0]["changes"];
  EXPECT_EQ(changes[0],
            (Json{{"path", "manifest.run.gpu_memory"}, {"a", nullptr}, {"b", "20MiB"}, {"ratio", nullptr}}));
  bool found = false;
  for (const Json& change : changes) {
    EXPECT_NE(change["a"], change["b"]) << change;
    EXPECT_NE(change["path"].get<std::string>().substr(0, 6), "timing");
    if (change["path"] != "iteration_seconds") continue;
    found = true;
    EXPECT_EQ(change["a"], a["iteration_seconds"]);
    EXPECT_DOUBLE_EQ(change["ratio"].get<double>(),
                     b["iteration_seconds"].get<double>() / a["iteration_seconds"].get<double>());
  }
  EXPECT_TRUE(found);
  const Answer text = run({"diff", "a.json", "b.json"});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("manifest.run.gpu_memory"), HasSubstr("iteration_seconds"), HasSubstr("B ÷ A")));
}

TEST_F(Results, DiffMatchesTheRowsOfLists) {
  Json list = keep("a.json", {"compare", "small.trace.jsonl", "-m", "small-host", "--json"});
  std::reverse(list.begin(), list.end());
  save("reversed.json", list);
  EXPECT_EQ(run({"diff", "a.json", "reversed.json"}).code, 0);
  const std::string removed = list[0]["policy"].get<std::string>();
  list.erase(0);
  save("fewer.json", list);
  const Answer answer = run({"diff", "a.json", "fewer.json", "--json"});
  EXPECT_EQ(answer.code, 1);
  ASSERT_EQ(answer.json()["only_in_a"].size(), 1u);
  EXPECT_EQ(answer.json()["only_in_a"][0]["policy"], removed);
  EXPECT_EQ(run({"diff", "fewer.json", "a.json", "--json"}).json()["only_in_b"].size(), 1u);
}

TEST_F(Results, DiffRefusesWhatIsNoResult) {
  keep("a.json", {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"});
  write_file(path("text"), "{\"policy\":\n oops");
  expect_bad_usage({"diff", "a.json", "text"}, HasSubstr("text:2: not valid JSON"));
  write_file(path("list.json"), "[{}, 3]");
  expect_bad_usage({"diff", "a.json", "list.json"}, HasSubstr("list.json: element 0 is no result"));
  write_file(path("empty.json"), "[]");
  expect_bad_usage({"diff", "a.json", "empty.json"}, HasSubstr("empty list"));
  expect_bad_usage({"diff", "a.json", "absent.json"}, HasSubstr("absent.json"));
}

// Every policy, those that do not fit too, with sizes, a forced number of iterations and an option.
TEST_F(Results, ReproduceGivesTheSameBytes) {
  keep("all.json", {"compare", "small.trace.jsonl", "-m", "small-host", "--gpu-memory", "17MiB", "--cpu-memory",
                    "12MiB", "--iterations", "5", "--json"});
  const Answer answer = run({"reproduce", "all.json", "--json"});
  EXPECT_EQ(answer.code, 0) << answer.out;
  EXPECT_EQ(answer.json()["reproduced"], true);
  EXPECT_EQ(answer.json()["results"].size(), list_policies().size() + 1);  // and the bound
  keep("one.json",
       {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--set", "victim=fifo", "--json"});
  EXPECT_THAT(run({"reproduce", "one.json"}).out, HasSubstr("reproduced 1 of 1"));
}

// Intervals say how often a policy was the fastest, so the rows are sampled together again.
TEST_F(Results, ReproduceGivesTheSameIntervals) {
  const Json list = keep("all.json", {"compare", "small.trace.jsonl", "-m", "g10-a100", "--no-rescale", "--gpu-memory",
                                      "17MiB", "--samples", "8", "--seed", "3", "--json"});
  bool any = false;
  for (const Json& result : list) any = any || !result["interval_seconds"].is_null();
  ASSERT_TRUE(any);
  const Answer answer = run({"reproduce", "all.json"});
  EXPECT_EQ(answer.code, 0) << answer.out;
  keep("one.json", {"replay", "small.trace.jsonl", "-m", "g10-a100", "--no-rescale", "--gpu-memory", "17MiB", "-p",
                    "on-demand", "--samples", "5", "--json"});
  EXPECT_EQ(run({"reproduce", "one.json"}).code, 0);
}

TEST_F(Results, ReproduceSaysWhatChanged) {
  const Json result = keep("a.json", {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"});
  Json changed = result;
  changed["iteration_seconds"] = 2 * result["iteration_seconds"].get<double>();
  changed["manifest"]["version"] = "0.0.1";
  save("changed.json", changed);
  const Answer answer = run({"reproduce", "changed.json", "--json"});
  EXPECT_EQ(answer.code, 1);
  const Json changes = answer.json()["results"][0]["changes"];
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0]["path"], "manifest.version");
  EXPECT_EQ(changes[1]["path"], "iteration_seconds");
  EXPECT_DOUBLE_EQ(changes[1]["ratio"].get<double>(), 0.5);
  EXPECT_THAT(run({"reproduce", "changed.json"}).out,
              AllOf(HasSubstr("another version"), HasSubstr("reproduced 0 of 1")));

  // Elsewhere the trace is found where --trace says, and its hash is compared.
  std::filesystem::rename(path("small.trace.jsonl"), path("moved.trace.jsonl"));
  expect_bad_usage({"reproduce", "a.json"}, HasSubstr("small.trace.jsonl"));
  EXPECT_EQ(run({"reproduce", "a.json", "--trace", "moved.trace.jsonl"}).code, 0);
  Trace longer = small_trace();
  longer.ops[0].duration_ns += 1'000'000;
  write_trace(longer, path("moved.trace.jsonl"));
  const Answer other = run({"reproduce", "a.json", "--trace", "moved.trace.jsonl"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out, AllOf(HasSubstr("the trace is not the one of then"), HasSubstr("iteration_seconds")));
}

// A disturbed result says so, first of all its seed, and from its text or its manifest the same happens again.
TEST_F(Results, FaultsAreSaidLabelledAndRepeated) {
  std::vector<std::string> words = {"replay", "small.trace.jsonl", "-m",    "small-host", "-p",
                                    "lru",    "--gpu-memory",      "17MiB", "--json"};
  const Json calm = run(words).json();
  EXPECT_FALSE(calm.contains("faults"));
  words.insert(words.end(), {"--faults", "seed=3,delay=0.5:2ms,copy_error=0.02"});
  const Answer answer = run(words);
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.err, ::testing::StartsWith("faults: seed=3,copy_error=0.02,delay=0.5:2ms;"));
  const Json disturbed = keep("disturbed.json", words);
  EXPECT_EQ(disturbed["faults"]["plan"], "seed=3,copy_error=0.02,delay=0.5:2ms");
  EXPECT_EQ(disturbed["manifest"]["run"]["faults"], disturbed["faults"]["plan"]);
  EXPECT_GT(disturbed["faults"]["injected"]["delay"], 0);
  EXPECT_GT(disturbed["faults"]["injected"]["copy_error"], 0);
  EXPECT_THAT(disturbed["notes"].dump(), HasSubstr("disturbed on purpose"));
  EXPECT_EQ(disturbed["steady"], false);
  EXPECT_GT(disturbed["iteration_seconds"], calm["iteration_seconds"]);
  EXPECT_EQ(run({"reproduce", "disturbed.json"}).code, 0);

  words.back() = "seed=7";  // a mixture; the plan that the result states is the same, whatever mixtures become
  const Json mixture = run(words).json();
  EXPECT_THAT(mixture["faults"]["plan"].get<std::string>(), ::testing::StartsWith("seed=7,"));
  words.back() = mixture["faults"]["plan"].get<std::string>();
  EXPECT_EQ(run(words).json()["attribution"], mixture["attribution"]);

  words.back() = "seed=9,copy_error=1";
  const Answer stopped = run(words);
  EXPECT_EQ(stopped.code, 2);
  EXPECT_EQ(stopped.out, "");
  EXPECT_THAT(stopped.err, AllOf(::testing::StartsWith("faults: seed=9"), HasSubstr("failed 3 times in a row: link"),
                                 HasSubstr("of tensor '"), HasSubstr("copy_error (injected)")));
  words.back() = "copy_eror=1";
  expect_bad_usage(words, HasSubstr("valid ones are seed, copy_error"));
  words.back() = "device_gone=@1:tape";
  expect_bad_usage(words, HasSubstr("its tiers are gpu, cpu, nvme"));
}

TEST_F(Results, ReproduceRefusesWhatItCannotRepeat) {
  const Json result = keep("a.json", {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"});
  Json measured = result;
  measured["measured"] = true;
  save("measured.json", measured);
  expect_bad_usage({"reproduce", "measured.json"}, HasSubstr("was measured"));
  Json odd = result;
  odd["measured"] = "no";
  save("odd.json", odd);
  expect_bad_usage({"reproduce", "odd.json"}, AllOf(HasSubstr("odd.json"), HasSubstr("neither true nor false")));
  for (const char* samples : {"0", "1", "100001", "18446744073709551615"}) {
    Json many = result;
    many["manifest"]["command"]["arguments"]["--samples"] = {samples};
    save("many.json", many);
    expect_bad_usage({"reproduce", "many.json"}, HasSubstr("--samples"));
  }
  Json newer = result;
  newer["manifest"]["command"]["arguments"]["--phase-of-moon"] = {"full"};
  save("newer.json", newer);
  expect_bad_usage({"reproduce", "newer.json"}, HasSubstr("phase-of-moon"));
  Json poorer = result;
  poorer["manifest"].erase("command");
  save("poorer.json", poorer);
  expect_bad_usage({"reproduce", "poorer.json"}, HasSubstr("lacks manifest.command"));
}

// A row of a comparison is what its whole comparison gives that policy again; one of a policy that is no longer there is
// not reproduced.
TEST_F(Results, ReproduceFindsEachRowOfAComparison) {
  keep("all.json",
       {"compare", "small.trace.jsonl", "-m", "small-host", "-p", "lru,on-demand", "--gpu-memory", "17MiB", "--json"});
  const auto list = nlohmann::ordered_json::parse(content(path("all.json")));
  write_file(path("one.json"), list[2].dump());
  EXPECT_EQ(run({"reproduce", "one.json"}).code, 0);
  write_file(path("some.json"), nlohmann::ordered_json::array({list[3], list[0]}).dump());
  EXPECT_THAT(run({"reproduce", "some.json"}).out, HasSubstr("reproduced 2 of 2"));
  auto other = list[2];
  other["policy"] = "fifo";
  write_file(path("other.json"), other.dump());
  EXPECT_EQ(run({"reproduce", "other.json"}).code, 1);
}

}  // namespace
}  // namespace tencache
