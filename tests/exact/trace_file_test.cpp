// The trace format: exact round trips, every kind of bad line with its number, damaged files; reading and writing
// files.
#include "traces/file/trace_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "traces/file/file_io.h"
#include "traces/summary.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Lines 1 to 7. The writer's own text, so that it reads back byte for byte.
const std::string header_line =
    R"({"kind":"header","format_version":1,"model":"tiny","batch":2,"sequence_length":8,"precision":"fp32","hardware":"h100","recorded_by":"hand","tensor_count":3,"op_count":3})"
    "\n";
const std::string tensor_lines =
    R"({"kind":"tensor","id":0,"name":"w","bytes":100,"role":"parameter","persistent":true})"
    "\n"
    R"({"kind":"tensor","id":1,"name":"a","bytes":20,"role":"activation","persistent":false})"
    "\n"
    R"({"kind":"tensor","id":2,"name":"g","bytes":100,"role":"gradient","persistent":false})"
    "\n";
const std::string op_lines =
    R"({"kind":"op","id":0,"name":"mm","phase":"forward","device":"gpu","module":"layer0","duration_ns":1000,"duration_source":"measured","gap_before_ns":5,"flops":7,"bytes":9,"reads":[0],"writes":[1]})"
    "\n"
    R"({"kind":"op","id":1,"name":"mm_back","phase":"backward","device":"gpu","module":"layer0","duration_ns":2000,"duration_source":"modelled","gap_before_ns":0,"flops":0,"bytes":0,"reads":[1,0],"writes":[2]})"
    "\n"
    R"({"kind":"op","id":2,"name":"adam","phase":"optimizer","device":"cpu","module":"","duration_ns":500,"duration_source":"measured","gap_before_ns":0,"flops":0,"bytes":0,"group":4,"placeable":true,"reorderable":true,"rank":1,"reads":[0,2],"writes":[0]})"
    "\n";
const std::string tiny = header_line + tensor_lines + op_lines;

std::string error_of(const std::string& text) {
  try {
    parse_trace(text, "t");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// `tiny` with one piece of its text replaced by another.
std::string with(const std::string& piece, const std::string& replacement) {
  const std::size_t position = tiny.find(piece);
  EXPECT_NE(position, std::string::npos) << piece;
  return std::string(tiny).replace(position, piece.size(), replacement);
}

class Files : public ::testing::Test {
 protected:
  Files() { std::filesystem::create_directories(directory_); }
  ~Files() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::size_t file_count() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }
  static std::string raw(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("tencache_files_" + std::to_string(::getpid()));
};

TEST(TraceFile, ReadsEveryKey) {
  const Trace trace = parse_trace(tiny, "t");
  EXPECT_EQ(trace.header.model, "tiny");
  EXPECT_EQ(trace.header.batch, 2u);
  EXPECT_EQ(trace.header.sequence_length, 8u);
  EXPECT_EQ(trace.header.precision, "fp32");
  EXPECT_EQ(trace.header.hardware, "h100");
  EXPECT_EQ(trace.header.recorded_by, "hand");
  ASSERT_EQ(trace.tensors.size(), 3u);
  EXPECT_EQ(trace.name(trace.tensors[2]), "g");
  EXPECT_EQ(trace.tensors[2].bytes, 100u);
  EXPECT_EQ(trace.tensors[2].role, Role::gradient);
  EXPECT_FALSE(trace.tensors[2].persistent);
  ASSERT_EQ(trace.ops.size(), 3u);
  EXPECT_EQ(trace.name(trace.ops[0]), "mm");
  EXPECT_EQ(trace.module(trace.ops[0]), "layer0");
  EXPECT_EQ(trace.ops[0].duration_ns, 1000);
  EXPECT_EQ(trace.ops[0].gap_before_ns, 5);
  EXPECT_EQ(trace.ops[0].flops, 7u);
  EXPECT_EQ(trace.ops[0].bytes, 9u);
  EXPECT_EQ(trace.ops[0].group, -1);
  EXPECT_EQ(trace.ops[1].phase, Phase::backward);
  EXPECT_EQ(trace.ops[1].duration_source, DurationSource::modelled);
  EXPECT_THAT(trace.reads(trace.ops[1]), ElementsAre(1, 0)) << "access order is kept";
  EXPECT_EQ(trace.ops[2].device, Device::cpu);
  EXPECT_EQ(trace.ops[2].group, 4);
  EXPECT_TRUE(trace.ops[2].placeable);
  EXPECT_TRUE(trace.ops[2].reorderable);
  EXPECT_EQ(trace.ops[2].rank, 1);
  EXPECT_EQ(trace.ops[2].module, 0u);
  EXPECT_EQ(format_trace(trace), tiny);
}

TEST(TraceFile, TakesKeysInAnyOrderAndDefaultsForTheRest) {
  const Trace trace = parse_trace(
      " { \"format\\u005fversion\" : 1, \"kind\":\"header\" }\r\n"
      "{\"persistent\":true,\"role\":\"input\",\"bytes\":1,\"name\":\"\\u00e9\\n\\\"\",\"id\":0,\"kind\":\"tensor\"}\n"
      "{\"writes\":[],\"reads\":[0],\"duration_source\":\"measured\",\"duration_ns\":0,\"device\":\"gpu\","
      "\"phase\":\"loss\",\"name\":\"\",\"id\":0,\"kind\":\"op\"}",
      "t");
  EXPECT_EQ(trace.name(trace.tensors[0]), "\xc3\xa9\n\"");
  EXPECT_EQ(trace.ops[0].phase, Phase::loss);
  EXPECT_EQ(trace.ops[0].rank, 0);
  EXPECT_FALSE(trace.ops[0].placeable);
  EXPECT_EQ(trace.header.batch, 0u);
}

Kernel random_kernel(std::mt19937_64& random) {
  Kernel kernel;
  kernel.kind = static_cast<KernelKind>(random() % kernel_kind_count);
  for (std::size_t i = 0; i < shape_size(kernel.kind); ++i) kernel.shape[i] = random() % 4;
  if (is_attention(kernel.kind)) {
    kernel.causal = random() % 2 != 0;
    kernel.attention = static_cast<AttentionKernel>(random() % attention_kernel_count);
  }
  kernel.unaligned = kernel.kind == KernelKind::matmul && random() % 2 != 0;
  kernel.fp8 = kernel.kind == KernelKind::matmul && random() % 2 != 0;
  kernel.launches = 1 + static_cast<std::uint32_t>(random() % 2);
  return kernel;
}

// A random trace with names of all kinds and numbers up to the limits.
Trace random_trace(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  const std::vector<std::string> names{"",
                                       "plain",
                                       "\"quoted\\\"",
                                       "tab\tline\nnul" + std::string(1, '\0') + "\x7f",
                                       "\xc3\xa9\xe2\x82\xac",
                                       "{\"kind\":\"op\"}"};
  Trace trace;
  trace.header.model = names[below(names.size())];
  trace.header.batch = below(1u << 30);
  trace.header.provenance.made_by = static_cast<MadeBy>(below(4));
  for (const std::string& name : names) {
    if (below(3) == 0) trace.header.provenance.made_with.emplace_back(name, names[below(names.size())]);
  }
  const std::size_t tensor_count = 1 + below(20);
  for (std::size_t i = 0; i < tensor_count; ++i) {
    trace.add_tensor(names[below(names.size())], below(4) == 0 ? Bytes{1} << 50 : 1 + below(1000),
                     static_cast<Role>(below(role_count)), true);
  }
  for (Tensor& tensor : trace.tensors) tensor.stored_bytes = below(3);
  const std::size_t op_count = 1 + below(20);
  for (std::size_t i = 0; i < op_count; ++i) {
    Op op;
    op.name = trace.names.intern(names[below(names.size())]);
    op.module = trace.names.intern(names[below(names.size())]);
    op.group = static_cast<std::int32_t>(below(3)) - 1;
    op.phase = static_cast<Phase>(below(phase_count));
    op.device = static_cast<Device>(below(2));
    op.duration_source = static_cast<DurationSource>(below(2));
    op.placeable = below(2) != 0;
    op.reorderable = below(2) != 0;
    op.rank = static_cast<std::uint16_t>(below(0x10000));
    op.rendezvous = trace.names.intern(names[below(names.size())]);
    op.duration_ns = static_cast<Nanoseconds>(below(std::uint64_t{1} << (1 + below(54))));
    op.gap_before_ns = static_cast<Nanoseconds>(below(1000));
    op.flops = below(std::uint64_t{1} << 55);
    op.bytes = below(std::uint64_t{1} << 55);
    op.kernel = trace.kernels.intern(random_kernel(random));
    if (below(2) == 0) {
      op.detail = trace.add_detail({.step = static_cast<std::uint32_t>(below(3)),
                                    .revealed_by = i == 0 || below(2) == 0 ? none : static_cast<OpIndex>(below(i)),
                                    .cpu_duration_ns = static_cast<Nanoseconds>(below(3))});
    }
    std::vector<TensorId> reads(below(5)), writes(below(5));
    for (TensorId& id : reads) id = static_cast<TensorId>(below(tensor_count));
    for (TensorId& id : writes) id = static_cast<TensorId>(below(tensor_count));
    trace.add_op(op, reads, writes);
  }
  return trace;
}

TEST(TraceFile, WritesWhatItReadsByteForByte) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Trace trace = random_trace(seed);
    const std::string text = format_trace(trace);
    const Trace again = parse_trace(text, "t");
    ASSERT_EQ(format_trace(again), text) << "seed " << seed;
    ASSERT_EQ(again.header.provenance, trace.header.provenance);
    ASSERT_EQ(again.accesses, trace.accesses);
    for (std::size_t i = 0; i < trace.ops.size(); ++i) {
      ASSERT_EQ(again.name(again.ops[i]), trace.name(trace.ops[i]));
      ASSERT_EQ(again.ops[i].duration_ns, trace.ops[i].duration_ns);
      ASSERT_EQ(again.ops[i].flops, trace.ops[i].flops);
      ASSERT_EQ(again.kernel(again.ops[i]), trace.kernel(trace.ops[i]));
      ASSERT_EQ(again.detail(again.ops[i]), trace.detail(trace.ops[i]));
    }
  }
}

TEST(TraceFile, ReplacesBytesThatAreNotUtf8) {
  Trace trace;
  const TensorId tensor = trace.add_tensor(
      "a\xff"
      "b",
      1, Role::input, true);
  trace.add_op({}, std::vector<TensorId>{tensor}, {});
  const Trace again = parse_trace(format_trace(trace), "t");
  EXPECT_EQ(again.name(again.tensors[0]),
            "a\xef\xbf\xbd"
            "b");
}

// A file as version 0.1.0 of the program wrote it. It stays as it is for ever: what reads today reads tomorrow, with
// the same meaning, and nothing is lost when it is written again.
TEST(TraceFile, ReadsFilesOfVersionOne) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-1.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 1);
  EXPECT_EQ(trace.header.model, "two-rank-toy");
  EXPECT_EQ(trace.header.batch * trace.header.sequence_length, 512u);
  ASSERT_EQ(trace.tensors.size(), 7u);
  EXPECT_EQ(trace.name(trace.tensors[1]), "activation \u00e9");
  const std::vector<Role> roles{Role::parameter,        Role::activation, Role::gradient, Role::optimizer_state,
                                Role::master_parameter, Role::input,      Role::workspace};
  for (std::size_t i = 0; i < roles.size(); ++i) EXPECT_EQ(trace.tensors[i].role, roles[i]) << i;
  ASSERT_EQ(trace.ops.size(), 5u);
  EXPECT_EQ(trace.ops[1].phase, Phase::loss);
  EXPECT_EQ(trace.ops[2].duration_source, DurationSource::modelled);
  EXPECT_EQ(trace.ops[3].group, 0);
  EXPECT_TRUE(trace.ops[3].placeable && trace.ops[3].reorderable);
  EXPECT_EQ(trace.ops[4].rank, 1);
  EXPECT_EQ(trace.ops[0].gap_before_ns, 250);
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

// The same for version 2, with every key, role, phase and kind of value that it has added.
TEST(TraceFile, ReadsFilesOfVersionTwo) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-2.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 2);
  EXPECT_EQ(trace.header.stack, "vllm 0.9");
  ASSERT_EQ(trace.tensors.size(), 4u);
  EXPECT_EQ(trace.tensors[0].stored_bytes, 1152u);
  EXPECT_EQ(trace.tensors[1].role, Role::kv_cache);
  EXPECT_EQ(trace.tensors[1].stored_bytes, 0u);
  EXPECT_EQ(trace.tensors[2].role, Role::expert);
  ASSERT_EQ(trace.ops.size(), 6u);
  EXPECT_EQ(trace.ops[0].phase, Phase::prefill);
  EXPECT_EQ(trace.ops[5].phase, Phase::decode);
  const auto kernel = [&](OpIndex op) { return trace.kernel(trace.ops[op]); };
  const auto detail = [&](OpIndex op) { return trace.detail(trace.ops[op]); };
  EXPECT_EQ(kernel(0), (Kernel{.kind = KernelKind::matmul, .shape = {1, 16, 64, 64}}));
  EXPECT_EQ(kernel(1), (Kernel{.kind = KernelKind::attention,
                               .attention = AttentionKernel::flash2,
                               .causal = true,
                               .shape = {1, 8, 2, 16, 16, 8}}));
  EXPECT_EQ(kernel(2), (Kernel{.kind = KernelKind::reduction, .launches = 3}));
  EXPECT_EQ(kernel(5), Kernel{});
  EXPECT_EQ(detail(0), OpDetail{});
  EXPECT_EQ(detail(2), (OpDetail{.step = 1}));
  EXPECT_EQ(detail(3), (OpDetail{.step = 1, .revealed_by = 2, .cpu_duration_ns = 9000}));
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

// And for version 3.
TEST(TraceFile, ReadsFilesOfVersionThree) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-3.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 3);
  const Provenance made{MadeBy::generated,
                        {{"model", "my models/\u00e9.yaml"}, {"batch", "2"}, {"seq", "16"}, {"forward-only", "true"}}};
  EXPECT_EQ(trace.header.provenance, made);
  ASSERT_NE(trace.header.provenance.option("batch"), nullptr);
  EXPECT_EQ(*trace.header.provenance.option("batch"), "2");
  EXPECT_EQ(trace.header.provenance.option("bat"), nullptr);
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

// And for version 4.
TEST(TraceFile, ReadsFilesOfVersionFour) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-4.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 4);
  EXPECT_EQ(trace.ops[0].gap_before_ns, 250);
  EXPECT_EQ(trace.ops[0].issue_ns, 1800);
  EXPECT_EQ(trace.ops[1].issue_ns, 0);
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

// And for version 5.
TEST(TraceFile, ReadsFilesOfVersionFive) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-5.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 5);
  EXPECT_THAT(trace.frees(trace.ops[1]), ElementsAre(1));
  EXPECT_THAT(trace.frees(trace.ops[0]), ElementsAre());
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

// And for version 6.
TEST(TraceFile, ReadsFilesOfVersionSix) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-6.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 6);
  ASSERT_EQ(trace.choices.size(), 1u);
  EXPECT_EQ(trace.names[trace.choices[0].module], "layer");
  EXPECT_EQ(trace.choices[0].before, 1u);
  EXPECT_THAT(trace.choices[0].again.back(), ElementsAre(0));
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

// And for version 7.
TEST(TraceFile, ReadsFilesOfVersionSeven) {
  const std::string file = TENCACHE_SOURCE_DIR "/tests/data/version-7.trace.jsonl";
  const Trace trace = read_trace(file);
  EXPECT_EQ(format_version(trace), 7);
  EXPECT_EQ(trace.tensors[0].profiled_uses, 65535);
  EXPECT_EQ(trace.tensors[1].profiled_uses, 0);
  EXPECT_EQ(format_trace(trace), read_file(file, 1 << 20));
}

TEST(TraceFile, OnlyWhatMayBeFreedIs) {
  const auto error = [](const std::string& op, const std::string& frees) {
    std::string text = with("\"format_version\":1", "\"format_version\":5");
    text.insert(text.find('}', text.find(op)), ",\"frees\":" + frees);
    return error_of(text);
  };
  EXPECT_EQ(error("mm_back", "[1,2]"), "no error");
  EXPECT_EQ(error("mm_back", "[0]"), "t:6: op 'mm_back' frees tensor 'w', which is persistent");
  EXPECT_EQ(error("mm\"", "[2]"), "t:5: op 'mm' frees tensor 'g', which no op has written yet");
  EXPECT_EQ(error("mm_back", "[1,1]"), "t:6: op 'mm_back' frees tensor 'a', which another op frees already");
  EXPECT_EQ(error("mm_back", "[3]"), "t:6: 'frees' names tensor 3, but the file has only 3 tensors before this op");
  EXPECT_EQ(error("mm_back", "1"), "t:6: 'frees' is 1; it takes a list of tensor ids");
  EXPECT_EQ(error("mm_back", "[1],\"stream\":\"communication\""),
            "t:6: op 'mm_back' frees tensor 'a', but runs on the communication stream");
}

// `tiny` of a version that has provenance only as a sentence.
Provenance provenance_in_version_1(const std::string& sentence) {
  return parse_trace(with("\"recorded_by\":\"hand\"", "\"recorded_by\":\"" + sentence + "\""), "t").header.provenance;
}

TEST(TraceFile, OlderVersionsSayTheirProvenanceInASentence) {
  using Options = std::vector<std::pair<std::string, std::string>>;
  const auto expect = [](const std::string& sentence, MadeBy made_by, const Options& made_with) {
    const Provenance read = provenance_in_version_1(sentence);
    EXPECT_EQ(to_string(read.made_by), to_string(made_by)) << sentence;
    EXPECT_EQ(read.made_with, made_with) << sentence;
  };
  expect("tencache generate --model 'a b' --forward-only --batch 4", MadeBy::generated,
         {{"model", "a b"}, {"forward-only", "true"}, {"batch", "4"}});
  expect("tencache generate", MadeBy::generated, {});
  expect("tencache generate --model gpt2 --batch 4 by somebody", MadeBy::generated, {});
  expect("tencache record", MadeBy::recorded, {});
  expect("tencache_recorder, PyTorch 2.5.1", MadeBy::recorded, {});
  expect("tencache run python", MadeBy::recorded, {});
  expect("import csv, sizes from bytes", MadeBy::imported, {});
  expect("by hand", MadeBy::unknown, {});
}

// From version 3 on the sentence has no meaning, and a trace whose sentence had one is written as version 3.
TEST(TraceFile, TheSentenceOfVersionThreeIsForPeople) {
  const std::string text = with("\"format_version\":1", "\"format_version\":3");
  EXPECT_EQ(format_trace(parse_trace(text, "t")), tiny) << "nothing of version 3";
  const std::string sentence = "\"recorded_by\":\"tencache record\"";
  std::string recorded = text;
  recorded.replace(recorded.find("\"recorded_by\":\"hand\""), 20, sentence);
  const Trace trace = parse_trace(recorded, "t");
  EXPECT_EQ(trace.header.provenance, Provenance{});
  EXPECT_EQ(format_trace(trace), recorded);
}

TEST(TraceFile, ProvenanceIsChecked) {
  const auto header = [](const std::string& keys, const char* version = "3") {
    return error_of("{\"kind\":\"header\",\"format_version\":" + std::string(version) + "," + keys + "}\n");
  };
  EXPECT_EQ(header("\"made_by\":\"guessed\""),
            "t:1: unknown made_by 'guessed'; it is one of generated, recorded, imported");
  EXPECT_EQ(header("\"made_with\":[]"), "t:1: 'made_with' is [; it takes an object of names and texts");
  EXPECT_EQ(header("\"made_with\":{\"batch\":2}"), "t:1: 'batch' is 2; it takes a text");
  EXPECT_EQ(header("\"made_with\":{\"a\":\"1\",\"a\":\"2\"}"), "t:1: 'a' stands twice in 'made_with'");
  std::string many = "\"made_with\":{\"0\":\"\"";
  for (int i = 1; i < 257; ++i) many += ",\"" + std::to_string(i) + "\":\"\"";
  EXPECT_EQ(header(many + "}"), "t:1: 'made_with' has more than 256 options");
  for (const char* version : {"1", "2"}) {
    const std::string older = std::string(" needs format version 3, but the header says version ") + version +
                              "; write \"format_version\":3 there";
    EXPECT_EQ(header("\"made_by\":\"recorded\"", version), "t:1: the key 'made_by'" + older);
    EXPECT_EQ(header("\"made_with\":{}", version), "t:1: the key 'made_with'" + older);
  }
}

// `tiny` as a file of version 2, with one piece of its text replaced by another.
std::string newer(const std::string& piece = "", const std::string& replacement = "") {
  std::string text = with("\"format_version\":1", "\"format_version\":2");
  const std::size_t position = text.find(piece);
  EXPECT_NE(position, std::string::npos) << piece;
  return text.replace(position, piece.size(), replacement);
}

// `tiny` of version 2 with more keys in its second op, mm_back.
std::string with_keys(const std::string& keys) { return newer("\"reads\":[1,0]", keys + ",\"reads\":[1,0]"); }

TEST(TraceFile, WritesTheOldestVersionThatHasAllKeys) {
  EXPECT_EQ(format_trace(parse_trace(newer(), "t")), tiny);
  const std::vector<std::string> defaults{"\"launches\":1", "\"step\":0", "\"cpu_duration_ns\":0"};
  for (const std::string& key : defaults) EXPECT_EQ(format_trace(parse_trace(with_keys(key), "t")), tiny) << key;
  for (const std::string size : {"0", "100"}) {  // of 100 bytes
    const std::string text = newer("\"persistent\":true}", "\"persistent\":true,\"stored_bytes\":" + size + "}");
    EXPECT_EQ(format_trace(parse_trace(text, "t")), tiny) << size;
  }
  const std::vector<std::string> more{
      newer("\"recorded_by\":\"hand\"", "\"recorded_by\":\"hand\",\"stack\":\"torch 2.9\""),
      newer("\"persistent\":true}", "\"persistent\":true,\"stored_bytes\":26}"),
      newer("\"parameter\"", "\"expert\""),
      newer("\"activation\"", "\"kv_cache\""),
      newer("\"forward\"", "\"prefill\""),
      newer("\"backward\"", "\"decode\""),
      with_keys("\"kernel\":\"matmul\",\"shape\":[0,1,2,1099511627776]"),
      with_keys(
          "\"kernel\":\"attention_backward\",\"shape\":[1,2,3,4,5,6],\"causal\":true,\"attention_kernel\":\"cudnn\""),
      with_keys("\"kernel\":\"elementwise\",\"launches\":4294967295"),
      with_keys("\"kernel\":\"matmul\",\"shape\":[1,2,3,5],\"unaligned\":true"),
      with_keys("\"kernel\":\"matmul\",\"shape\":[1,2,3,5],\"fp8\":true"),
      with_keys("\"kernel\":\"collective\",\"shape\":[8]"),
      with_keys("\"launches\":2"),
      with_keys("\"step\":4294967295"),
      with_keys("\"revealed_by\":0"),
      with_keys("\"cpu_duration_ns\":12")};
  for (const std::string& text : more) EXPECT_EQ(format_trace(parse_trace(text, "t")), text);
  for (std::size_t kind = 1; kind < kernel_kind_count; ++kind) {
    if (shape_size(static_cast<KernelKind>(kind)) != 0) continue;
    const std::string text = with_keys("\"kernel\":\"" + std::string(to_string(static_cast<KernelKind>(kind))) + "\"");
    EXPECT_EQ(format_trace(parse_trace(text, "t")), text);
  }
  for (const std::string attention : {"flash1", "flash2", "flash3"}) {
    const std::string text =
        with_keys("\"kernel\":\"attention\",\"shape\":[1,2,3,4,5,6],\"attention_kernel\":\"" + attention + "\"");
    EXPECT_EQ(format_trace(parse_trace(text, "t")), text);
  }
}

TEST(TraceFile, VersionOneHasNothingOfVersionTwo) {
  const auto message = [](const std::string& line, const std::string& what) {
    return "t:" + line + ": the " + what +
           " needs format version 2, but the header says version 1; write \"format_version\":2 there";
  };
  EXPECT_EQ(error_of(with("\"recorded_by\"", "\"stack\":\"x\",\"recorded_by\"")), message("1", "key 'stack'"));
  EXPECT_EQ(error_of(with("\"format_version\":1,", "\"stack\":\"x\",\"format_version\":1,")),
            message("1", "key 'stack'"));
  EXPECT_EQ(error_of(with("\"persistent\":true}", "\"persistent\":true,\"stored_bytes\":100}")),
            message("2", "key 'stored_bytes'"));
  EXPECT_EQ(error_of(with("\"parameter\"", "\"kv_cache\"")), message("2", "role 'kv_cache'"));
  EXPECT_EQ(error_of(with("\"activation\"", "\"expert\"")), message("3", "role 'expert'"));
  EXPECT_EQ(error_of(with("\"forward\"", "\"prefill\"")), message("5", "phase 'prefill'"));
  EXPECT_EQ(error_of(with("\"backward\"", "\"decode\"")), message("6", "phase 'decode'"));
  for (const std::string key : {"kernel", "shape", "causal", "attention_kernel", "unaligned", "fp8", "launches", "step",
                                "revealed_by", "cpu_duration_ns"}) {
    EXPECT_EQ(error_of(with("\"reads\":[1,0]", "\"" + key + "\":1,\"reads\":[1,0]")),
              message("6", "key '" + key + "'"));
  }
}

TEST(TraceFile, RefusesKernelsThatCannotBe) {
  const auto error = [](const std::string& keys) { return error_of(with_keys(keys)); };
  const std::string matmul = "\"kernel\":\"matmul\"", attention = "\"kernel\":\"attention\"";
  EXPECT_EQ(error("\"kernel\":\"gemm\""),
            "t:6: unknown kernel 'gemm'; it is one of matmul, attention, attention_backward, elementwise, norm, "
            "norm_backward, "
            "reduction, copy, gather, optimizer, collective");
  EXPECT_THAT(error("\"kernel\":\"unknown\""), HasSubstr("t:6: unknown kernel 'unknown'; it is one of matmul"));
  EXPECT_EQ(error(matmul), "t:6: 'shape' is missing; a kernel of kind 'matmul' takes 4: batch, m, n, k");
  EXPECT_EQ(error(matmul + ",\"shape\":[1,2,3]"),
            "t:6: 'shape' has 3 numbers; a kernel of kind 'matmul' takes 4: batch, m, n, k");
  EXPECT_EQ(error("\"shape\":[1,2,3,4]," + attention),
            "t:6: 'shape' has 4 numbers; a kernel of kind 'attention' takes 6: batch, heads, key-value heads, queries, "
            "keys, head dimension");
  EXPECT_EQ(error(attention + ",\"shape\":[1,2,3,4,5,6,7]"),
            "t:6: 'shape' has more than 6 numbers; no kernel has more");
  EXPECT_EQ(error(matmul + ",\"shape\":[1,2,3,1099511627777]"),
            "t:6: 'shape' is 1099511627777; it takes a whole number from 0 to 1099511627776");
  EXPECT_THAT(error(matmul + ",\"shape\":[1,2,3,-4]"), HasSubstr("t:6: 'shape' is -4; it takes a whole number"));
  EXPECT_THAT(error(matmul + ",\"shape\":4"), HasSubstr("t:6: 'shape' is 4; it takes a list of whole numbers"));
  for (const std::string other : {"", "\"kernel\":\"norm\","}) {
    EXPECT_EQ(
        error(other + "\"shape\":[]"),
        "t:6: 'shape' is for the kernels matmul, attention, attention_backward and collective; leave it out of others");
    EXPECT_EQ(error(other + "\"causal\":false"),
              "t:6: 'causal' is for the kernels attention and attention_backward; leave it out of others");
    EXPECT_EQ(error(other + "\"attention_kernel\":\"flash2\""),
              "t:6: 'attention_kernel' is for the kernels attention and attention_backward; leave it out of others");
    EXPECT_EQ(error(other + "\"unaligned\":true"), "t:6: 'unaligned' is for the kernel matmul; leave it out of others");
    EXPECT_EQ(error(other + "\"fp8\":true"), "t:6: 'fp8' is for the kernel matmul; leave it out of others");
  }
  EXPECT_EQ(error("\"kernel\":\"collective\""),
            "t:6: 'shape' is missing; a kernel of kind 'collective' takes 1: ranks");
  EXPECT_THAT(error("\"attention_kernel\":\"\""),
              HasSubstr("t:6: unknown attention_kernel ''; it is one of flash1, flash2, flash3, cudnn"));
  EXPECT_THAT(error("\"causal\":1"), HasSubstr("t:6: 'causal' is 1; it takes true or false"));
  for (const std::string launches : {"0", "4294967296"}) {
    EXPECT_EQ(error("\"launches\":" + launches),
              "t:6: 'launches' is " + launches + "; it takes a whole number from 1 to 4294967295");
  }
  EXPECT_THAT(error("\"step\":4294967296"), HasSubstr("t:6: 'step' is 4294967296; it takes a whole number"));
  for (const std::string op : {"1", "2", "4294967294"}) {
    EXPECT_EQ(error("\"revealed_by\":" + op), "t:6: 'revealed_by' is " + op + "; it takes the id of an earlier op");
  }
  EXPECT_THAT(error("\"cpu_duration_ns\":-1"), HasSubstr("t:6: 'cpu_duration_ns' is -1"));
  EXPECT_EQ(error_of(newer("\"persistent\":true}", "\"persistent\":true,\"stored_bytes\":1125899906842625}")),
            "t:2: 'stored_bytes' is 1125899906842625; it takes a whole number from 0 to 1125899906842624");
  EXPECT_THAT(error("\"cpu_duration_ns\":2305843009213693952"), HasSubstr("no error"));
}

// What no file can say, but a program that makes traces can.
TEST(TraceFile, ValidationRefusesKernelsAndDetailsThatCannotBe) {
  const auto error = [](auto change) -> std::string {
    Trace trace = parse_trace(tiny, "t");
    change(trace);
    try {
      trace.validate("t");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto with_kernel = [&](const Kernel& kernel) {
    return error([&](Trace& trace) { trace.ops[1].kernel = trace.kernels.intern(kernel); });
  };
  const auto with_detail = [&](const OpDetail& detail) {
    return error([&](Trace& trace) { trace.ops[1].detail = trace.add_detail(detail); });
  };
  EXPECT_EQ(with_kernel({.kind = KernelKind::matmul, .shape = {1, 2, 3, 4}}), "no error");
  EXPECT_EQ(with_kernel({.kind = KernelKind::matmul, .shape = {1, 2, 3, 4, 5}}),
            "t: op 'mm_back' has more than the 4 numbers that the shape of a kernel of kind 'matmul' has; leave the "
            "others out");
  EXPECT_EQ(with_kernel({.kind = KernelKind::attention, .shape = {(std::uint64_t{1} << 40) + 1}}),
            "t: op 'mm_back' has a number above 2^40 in its shape; give the true size");
  EXPECT_THAT(with_kernel({.launches = 0}), HasSubstr("has a kernel that is launched 0 times"));
  EXPECT_THAT(with_kernel({.kind = KernelKind::copy, .causal = true}), HasSubstr("has a causal mask"));
  EXPECT_THAT(with_kernel({.kind = KernelKind::copy, .unaligned = true}), HasSubstr("has unaligned rows"));
  EXPECT_THAT(with_kernel({.kind = KernelKind::copy, .fp8 = true}), HasSubstr("has operands in fp8"));
  EXPECT_EQ(with_detail({.revealed_by = 0}), "no error");
  EXPECT_EQ(with_detail({.revealed_by = 1}),
            "t: op 'mm_back' is revealed by op 1, which does not come before it; name an earlier op");
  EXPECT_THAT(with_detail({.cpu_duration_ns = -1}), HasSubstr("negative time on the CPU"));
  EXPECT_THAT(error([](Trace& trace) { trace.ops[0].kernel = 1; }), HasSubstr("a kernel or a detail that does not"));
  EXPECT_THAT(error([](Trace& trace) { trace.ops[0].detail = 1; }), HasSubstr("a kernel or a detail that does not"));
}

// Whatever else a later version says in its header, the version is what the message is about.
TEST(TraceFile, SaysThatAFileIsOfALaterVersion) {
  EXPECT_EQ(error_of(with("\"format_version\":1,\"model\":\"tiny\"", "\"format_version\":8,\"shards\":8")),
            "t:1: format version 8 is not supported; this program reads versions 1 to 7: read it with the TenCache "
            "that wrote "
            "it, or a newer one");
}

TEST(TraceFile, NamesTheLineOfBadInput) {
  EXPECT_EQ(error_of(""), "t: is empty; a trace begins with a line of kind 'header'");
  EXPECT_THAT(error_of("\n"), HasSubstr("t:1: the line is empty"));
  EXPECT_THAT(error_of(tiny + "\n"), HasSubstr("t:8: the line is empty"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("t:1: not a JSON object"));
  EXPECT_THAT(error_of("hello"), HasSubstr("t:1: not a JSON object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("t:1: the key 'kind' is missing"));
  EXPECT_THAT(error_of(tensor_lines), HasSubstr("t:1: a tensor before the header"));
  EXPECT_THAT(error_of(op_lines), HasSubstr("t:1: an op before the header"));
  EXPECT_THAT(error_of(header_line + header_line), HasSubstr("t:2: a second header"));
  EXPECT_THAT(error_of(header_line + tensor_lines), HasSubstr("announces 3 ops, the file has 0"));
  EXPECT_THAT(error_of(with(op_lines, op_lines + tensor_lines)), HasSubstr("t:8: a tensor after the first op"));
  EXPECT_THAT(error_of(with("\"kind\":\"op\"", "\"kind\":\"opus\"")),
              HasSubstr("t:5: unknown kind 'opus'; it is header, tensor, op or choice"));
  EXPECT_THAT(error_of(with("\"format_version\":1", "\"format_version\":8")),
              HasSubstr("t:1: format version 8 is not supported"));
  EXPECT_THAT(error_of(with("\"format_version\":1,", "")),
              HasSubstr("t:1: missing 'format_version'; the keys are kind, format_version, model"));
  EXPECT_THAT(error_of(with("\"flops\":7", "\"flop\":7")),
              HasSubstr("t:5: unknown key 'flop'; the keys are kind, id, name, phase"));
  EXPECT_THAT(error_of(with("\"flops\":7", "\"flops\":7,\"flops\":7")), HasSubstr("t:5: the key 'flops' stands twice"));
  EXPECT_THAT(error_of(with("\"phase\":\"forward\",\"device\":\"gpu\",", "")),
              HasSubstr("t:5: missing 'phase', 'device'; the keys are"));
  EXPECT_THAT(error_of(with("parameter", "weights")),
              HasSubstr("t:2: unknown role 'weights'; it is one of parameter, gradient"));
  EXPECT_THAT(error_of(with("backward", "back")), HasSubstr("t:6: unknown phase 'back'; it is one of forward, loss"));
  EXPECT_THAT(error_of(with("\"cpu\"", "\"tpu\"")), HasSubstr("t:7: unknown device 'tpu'; it is one of gpu, cpu"));
  EXPECT_THAT(error_of(with("modelled", "guessed")),
              HasSubstr("t:6: unknown duration_source 'guessed'; it is one of measured, modelled"));
  EXPECT_THAT(error_of(with("\"id\":1,\"name\":\"a\"", "\"id\":2,\"name\":\"a\"")),
              HasSubstr("t:3: 'id' is 2; it takes 1: the ids of tensors count up"));
  EXPECT_THAT(error_of(with("\"id\":1,\"name\":\"mm_back\"", "\"id\":0,\"name\":\"mm_back\"")),
              HasSubstr("t:6: 'id' is 0; it takes 1: the ids of ops"));
  EXPECT_THAT(error_of(with("\"reads\":[1,0]", "\"reads\":[1,3]")),
              HasSubstr("t:6: 'reads' names tensor 3, but the file has only 3"));
  EXPECT_THAT(error_of(with("\"reads\":[0]", "\"reads\":[2]")),
              HasSubstr("t:5: op 'mm' reads tensor 'g' before any op"));
  EXPECT_THAT(error_of(with("\"tensor_count\":3", "\"tensor_count\":4")),
              HasSubstr("announces 4 tensors, the file has 3"));
  EXPECT_THAT(error_of(with("}\n", "}{}\n")), HasSubstr("t:1: something follows"));
  EXPECT_THAT(error_of(with("\"tiny\"", "\"ti\xff\xfeny\"")), HasSubstr("t:1: not valid JSON"));
}

TEST(TraceFile, RefusesWrongTypesAndAbsurdNumbers) {
  for (const std::string bytes : {"0", "-1", "1.5", "1e3", "\"100\"", "null", "true", "[]", "{}", "1125899906842625",
                                  "18446744073709551616", "0100", "99999999999999999999999999"}) {
    EXPECT_THAT(error_of(with("\"bytes\":100", "\"bytes\":" + bytes)), HasSubstr("t:2: 'bytes' is ")) << bytes;
  }
  for (const std::string duration : {"-1", "2305843009213693953", "1.0", "\"1\""}) {
    EXPECT_THAT(
        error_of(with("\"duration_ns\":1000", "\"duration_ns\":" + duration)),
        HasSubstr("t:5: 'duration_ns' is " + duration + "; it takes a whole number from 0 to 2305843009213693952"));
  }
  EXPECT_THAT(error_of(with("\"duration_ns\":1000", "\"duration_ns\":2305843009213693952")),
              HasSubstr("t:5: the durations and gaps add up"));
  EXPECT_THAT(error_of(with("\"rank\":1", "\"rank\":65536")), HasSubstr("t:7: 'rank' is 65536"));
  EXPECT_THAT(error_of(with("\"group\":4", "\"group\":-1")), HasSubstr("t:7: 'group' is -1"));
  EXPECT_THAT(error_of(with("\"persistent\":true", "\"persistent\":1")),
              HasSubstr("t:2: 'persistent' is 1; it takes true or false"));
  EXPECT_THAT(error_of(with("\"name\":\"w\"", "\"name\":7")), HasSubstr("t:2: 'name' is 7; it takes a text"));
  EXPECT_THAT(error_of(with("\"reads\":[0]", "\"reads\":0")), HasSubstr("t:5: 'reads' is 0; it takes a list"));
  EXPECT_THAT(error_of(with("\"reads\":[0]", "\"reads\":[\"0\"]")),
              HasSubstr("t:5: 'reads' is \"0\"; it takes a list"));
  EXPECT_THAT(error_of(with("\"reads\":[0]", "\"reads\":[-1]")), HasSubstr("t:5: 'reads' is -1"));
}

TEST(TraceFile, EveryPrefixIsAnError) {
  for (std::size_t size = 0; size + 1 < tiny.size(); ++size) {
    EXPECT_NE(error_of(tiny.substr(0, size)), "no error") << size;
  }
  EXPECT_EQ(error_of(tiny.substr(0, tiny.size() - 1)), "no error") << "the last newline may be missing";
}

TEST(TraceFile, EveryDamagedByteIsAnErrorOrAValidTrace) {
  int errors = 0;
  for (std::size_t position = 0; position < tiny.size(); ++position) {
    for (int value = 0; value < 256; ++value) {
      std::string text = tiny;
      text[position] = static_cast<char>(value);
      const std::string error = error_of(text);
      if (error == "no error") {
        const std::string written = format_trace(parse_trace(text, "t"));
        ASSERT_EQ(format_trace(parse_trace(written, "t")), written);
      } else {
        ASSERT_EQ(error.find('\n'), std::string::npos) << "messages stay on one line";
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 200'000);
}

TEST(TraceFile, SummaryCountsWhatIsThere) {
  const TraceSummary summary = summarize(parse_trace(tiny, "t"));
  EXPECT_EQ(summary.all_ops.count, 3u);
  EXPECT_EQ(summary.all_tensors.count, 3u);
  EXPECT_EQ(summary.all_tensors.bytes, 220u);
  EXPECT_EQ(summary.persistent.bytes, 100u);
  EXPECT_EQ(summary.unused.count, 0u);
  EXPECT_EQ(summary.module_count, 1u);
  EXPECT_EQ(summary.rank_count, 2u);
  EXPECT_EQ(summary.all_ops.duration_ns, 3500);
  EXPECT_EQ(summary.gap_ns, 5);
  EXPECT_DOUBLE_EQ(summary.measured_share(), 1500.0 / 3500.0);
  EXPECT_EQ(summary.flops, 7u);
  EXPECT_EQ(summary.ops[static_cast<std::size_t>(Phase::optimizer)][static_cast<std::size_t>(Device::cpu)].count, 1u);
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::gradient)].bytes, 100u);
  // w always (100); a in ops 0 and 1 (20); g in ops 1 and 2 (100): 120, 220, 200.
  EXPECT_EQ(summary.peak_demand.bytes, 220u);
  EXPECT_EQ(summary.peak_demand.op, 1u);
  // Op 2 reads and writes w: once.
  EXPECT_EQ(summary.working_set.bytes, 220u);
  EXPECT_EQ(summary.working_set.op, 1u);
}

TEST_F(Files, TracesSurviveCompression) {
  const Trace trace = parse_trace(tiny, "t");
  write_trace(trace, path("t.trace.jsonl"));
  write_trace(trace, path("t.trace.jsonl.zst"));
  EXPECT_EQ(raw(path("t.trace.jsonl")), tiny);
  EXPECT_EQ(raw(path("t.trace.jsonl.zst")).substr(0, 4), "\x28\xb5\x2f\xfd");
  EXPECT_EQ(format_trace(read_trace(path("t.trace.jsonl.zst"))), tiny);
  EXPECT_EQ(format_trace(read_trace(path("t.trace.jsonl"))), tiny);
  const std::string first = raw(path("t.trace.jsonl.zst"));
  write_trace(trace, path("t.trace.jsonl.zst"));
  EXPECT_EQ(raw(path("t.trace.jsonl.zst")), first) << "same trace, same bytes";
  EXPECT_EQ(file_count(), 2u) << "no temporary files stay";
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST_F(Files, RecogniseCompressionByContent) {
  const std::string text = tiny + std::string(100'000, 'x');
  write_file(path("a.zst"), text);
  std::filesystem::rename(path("a.zst"), path("b"));
  EXPECT_EQ(read_file(path("b")), text);
  EXPECT_GE(read_file(path("b")).capacity(), text.size() + read_padding_bytes);
  write_file(path("c"), gzip(text) + gzip("more"));
  EXPECT_EQ(read_file(path("c")), text + "more");
  write_file(path("d"), raw(path("b")) + raw(path("b")));
  EXPECT_EQ(read_file(path("d")), text + text);
  write_file(path("e"), "");
  EXPECT_EQ(read_file(path("e")), "");
}

TEST_F(Files, DamagedCompressionIsAnError) {
  std::mt19937_64 random(7);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + random() % 20);
  write_file(path("a.zst"), text);
  for (const std::string& packed : {raw(path("a.zst")), gzip(text)}) {
    const auto read = [&](const std::string& bytes) {
      std::ofstream(path("b"), std::ios::binary | std::ios::trunc) << bytes;
      return read_file(path("b"));
    };
    EXPECT_EQ(read(packed), text);
    for (std::size_t size = 4; size < packed.size(); ++size) {
      EXPECT_THROW(read(packed.substr(0, size)), Error) << size;
    }
    EXPECT_THROW(read(packed + "tail"), Error);
    for (std::size_t position = 0; position < packed.size(); ++position) {
      std::string damaged = packed;
      damaged[position] = static_cast<char>(damaged[position] ^ 0x10);
      try {
        read(damaged);
      } catch (const Error&) {
        continue;
      }
    }
  }
}

TEST_F(Files, SizesAreBounded) {
  write_file(path("bomb.zst"), std::string(10'000'000, '\0'));
  write_file(path("bomb.gz"), gzip(std::string(10'000'000, '\0')));
  write_file(path("plain"), std::string(2'000'000, '\0'));
  for (const std::string name : {"bomb.zst", "bomb.gz", "plain"}) {
    try {
      read_file(path(name), 1'000'000);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("holds more than 976.56 KiB")) << name;
    }
  }
  EXPECT_EQ(read_file(path("bomb.zst"), 10'000'000).size(), 10'000'000u);
  EXPECT_EQ(read_file(path("plain"), 2'000'000).size(), 2'000'000u);
}

TEST_F(Files, OfAKilledProgramAreAsBeforeAndLeaveNothing) {
  write_file(path("kept"), "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile kept(path("kept")), fresh(path("fresh"));
    kept.write(std::string(10'000'000, 'n'));
    fresh.write(std::string(10'000'000, 'n'));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(raw(path("kept")), "old");
  const int nameless = ::open(path(".").c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system knows no files without a name";
  ::close(nameless);
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(Files, AreWrittenWholeOrNotAtAll) {
  write_file(path("kept"), "old");
  {
    AtomicFile file(path("kept"));
    file.write("new");
    EXPECT_EQ(raw(path("kept")), "old");
  }
  EXPECT_EQ(raw(path("kept")), "old");
  EXPECT_EQ(file_count(), 1u);
  write_file(path("kept"), "new");
  EXPECT_EQ(raw(path("kept")), "new");
  std::filesystem::create_symlink(path("kept"), path("link"));
  write_file(path("link"), "through the link");
  EXPECT_EQ(raw(path("kept")), "through the link");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  struct stat status {};
  ASSERT_EQ(::stat(path("kept").c_str(), &status), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(status.st_mode & 0777, 0666 & ~mask);
}

std::string write_error(const std::string& path, const std::string& bytes) {
  try {
    write_file(path, bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Files, SayWhyTheyCannotBeReadOrWritten) {
  EXPECT_THAT(write_error(path("absent/file"), "x"),
              HasSubstr("No such file or directory; create the directory '" + path("absent") + "' first"));
  EXPECT_THAT(write_error(directory_.string(), "x"), HasSubstr("it is a directory"));
  EXPECT_THAT(write_error("/dev/full", "x"),
              HasSubstr("/dev/full: cannot be written: No space left on device; make room"));
  EXPECT_EQ(write_error("/dev/null", "x"), "no error");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null")) << "a device is not replaced by a file";
  EXPECT_THROW(read_file(path("absent")), Error);
  EXPECT_THROW(read_file(directory_.string()), Error);
  EXPECT_EQ(file_count(), 0u);
}

// A disk that fills up half way, played by a limit on the size of files.
TEST_F(Files, LeaveNothingBehindWhenTheDiskIsFull) {
  write_file(path("old"), "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = write_error(path("old"), std::string(5'000'000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("old: cannot be written: File too large"));
  EXPECT_EQ(raw(path("old")), "old");
  EXPECT_EQ(file_count(), 1u);
}

// FIPS 180-4 examples and lengths around the block boundaries (the latter as `sha256sum` prints them).
TEST_F(Files, AreHashedWithSha256) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha256_hex(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256_hex(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(sha256_hex(std::string(119, 'a')), "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");
  Sha256 pieces;
  for (int i = 0; i < 1000; ++i) pieces.update(std::string(static_cast<std::size_t>(i % 100), 'a'));
  EXPECT_EQ(pieces.hex_digest(), sha256_hex(std::string(49'500, 'a')));
  write_file(path("f"), "abc");
  EXPECT_EQ(sha256_of_file(path("f")), sha256_hex("abc"));
}

}  // namespace
}  // namespace tencache
