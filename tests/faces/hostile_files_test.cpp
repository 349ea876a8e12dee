// Files from others through the program: they cost no more memory than they justify, write nothing but the named
// output, and load nothing.
#include "tests/cli_fixture.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HostileFiles : public CommandLine {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    write_file(path(name), text);
    return path(name);
  }
  // Of a shipped machine, in other words at one place.
  std::string machine(const std::string& name, const std::string& key, const std::string& line) const {
    std::istringstream shipped(content(TENCACHE_SOURCE_DIR "/configs/machines/small-host.yaml"));
    std::string text;
    for (std::string each; std::getline(shipped, each);)
      text += (each.find(key) == std::string::npos ? each : line) + "\n";
    return write(name, text);
  }
  std::set<std::string> all_files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      const std::string name = fs::relative(entry.path(), folder_).string();
      if (name != "out" && name != "err") names.insert(name);
    }
    return names;
  }
};

// ---- Memory ---------------------------------------------------------------------------------------------------------

TEST_F(HostileFiles, ArePromisesThatCostNoMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space without limits";
#endif
  const std::string header = R"({"kind":"header","format_version":1,"model":"x","tensor_count":)";
  write("many.trace.jsonl", header + "1152921504606846976}\n");
  write("more.trace.jsonl", header + "4294967290,\"op_count\":4294967290}\n");
  {
    AtomicFile bomb(path("bomb.trace.jsonl.zst"));  // 2 GiB in 64 KiB
    const std::string zeros(64 << 20, '\0');
    for (int i = 0; i < 32; ++i) bomb.write(zeros);
    bomb.commit();
  }
  {
    AtomicFile bomb(path("blank.trace.jsonl.zst"));  // the same of an object that never ends
    const std::string blanks(64 << 20, ' ');
    bomb.write("{");
    for (int i = 0; i < 32; ++i) bomb.write(blanks);
    bomb.commit();
  }
  write("zeros.trace.jsonl", "");
  fs::resize_file(path("zeros.trace.jsonl"), std::uintmax_t{7} << 30);
  write("deep.json", std::string(3'000'000, '['));
  write("deep.yaml", std::string(200'000, '['));
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    const std::string one = "*a" + std::to_string(i - 1), four = one + ", " + one + ", " + one + ", " + one;
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + four + ", " + four + "]\n";
  }
  write("laughs.yaml", laughs + "name: x\ntiers: *a19\n");
  machine("staging.yaml", "staging:", "staging: {tier: cpu, count: 1000000, bytes: 1TiB}");
  write("layers.yaml",
        "name: x\nfamily: gpt2\nlayers: 2000000000\nhidden: 64\nheads: 1\nvocabulary: 10\nmax_sequence: 10\n");
  Trace petabyte = small_trace();
  petabyte.tensors.front().bytes = Bytes{1} << 50;
  write_trace(petabyte, path("petabyte.trace.jsonl"));
  std::string numbers = "[1";
  for (int i = 2; i < 3000; ++i) numbers += ", " + std::to_string(i);
  write("sweep.yaml",
        "name: x\nworkloads: [{generate: {model: gpt2, batch: 1, seq: 64}}]\n"
        "machines: [{name: g5.xlarge, gpu_memory: &n " +
            numbers + "], cpu_memory: *n}]\npolicies: [lru]\n");

  const std::string small = path("small.trace.jsonl");
  const std::vector<std::pair<std::vector<std::string>, std::string>> commands = {
      {{"info", "many.trace.jsonl"}, "it takes a whole number from 0 to 4294967294"},
      {{"info", "more.trace.jsonl"}, "the file has 0; lines were lost or added"},
      {{"info", "bomb.trace.jsonl.zst"}, "bomb.trace.jsonl.zst:1: not a JSON object"},
      {{"info", "zeros.trace.jsonl"}, "zeros.trace.jsonl:1: not a JSON object"},
      {{"replay", "zeros.trace.jsonl", "-m", "small-host", "-p", "lru"}, "zeros.trace.jsonl:1: not a JSON object"},
      {{"info", "blank.trace.jsonl.zst"}, "does not fit into this computer's memory"},
      {{"info", "deep.json"}, "not a JSON object"},
      {{"import", "pytorch", "deep.json", "-o", "o.trace.jsonl"}, "nested deeper than 64 levels"},
      {{"report", "deep.json", "-o", "o.html"}, "begins as JSON and is none"},
      {{"replay", small, "-m", "./laughs.yaml", "-p", "lru"}, "unknown key 'a0'"},
      {{"replay", small, "-m", "./deep.yaml", "-p", "lru"}, "not valid YAML"},
      {{"run", "replay", small, "-m", "./staging.yaml", "-p", "lru"}, "of memory may be needed"},
      {{"generate", "--model", "./layers.yaml", "--batch", "1", "--seq", "8", "-o", "o.trace.jsonl"},
       "from 1 to 16384"},
      {{"replay", "petabyte.trace.jsonl", "-m", "small-host", "-p", "deepum"}, "chunks, of which at most"},
      {{"sweep", "sweep.yaml"}, "more than 10000 machines"},
  };
  for (const auto& [words, message] : commands) {
    SCOPED_TRACE(words[0] + " " + words[1] + " " + words[2 % words.size()]);
    std::vector<std::string> limited = {"-c", "ulimit -v 1500000; exec \"$0\" \"$@\"", program};
    limited.insert(limited.end(), words.begin(), words.end());
    const Answer answer = run(limited, "/bin/sh");
    EXPECT_EQ(answer.code, 2);
    EXPECT_THAT(answer.err, HasSubstr(message));
  }
}

// ---- Places ---------------------------------------------------------------------------------------------------------

TEST_F(HostileFiles, NamesInATraceAreNoPlacesAndNoPrograms) {
  Trace trace = small_trace();
  const std::string names[] = {"../../evil",
                               "/tmp/tencache-evil",
                               "$(touch evil)",
                               "`touch evil`",
                               "|touch evil",
                               "<script>alert(1)</script>",
                               "'\"><img src=x onerror=alert(1)>"};
  Trace hostile;
  hostile.header = trace.header;
  hostile.header.model = "../../<script>alert(1)</script>";
  std::vector<TensorId> tensors;
  for (const std::string& name : names) tensors.push_back(hostile.add_tensor(name, 4096, Role::parameter, true));
  for (std::size_t i = 0; i < std::size(names); ++i) {
    Op op;
    op.name = hostile.names.intern(names[i]);
    op.module = hostile.names.intern(names[i]);
    op.duration_ns = 1'000'000;
    hostile.add_op(op, std::span(&tensors[i], 1), std::span(&tensors[i], 1));
  }
  write_trace(hostile, path("h.trace.jsonl"));
  const std::set<std::string> before = all_files();
  const std::vector<std::vector<std::string>> commands = {
      {"info", "h.trace.jsonl"},
      {"replay", "h.trace.jsonl", "-m", "small-host", "-p", "lru", "--timeline", "t.json"},
      {"replay", "h.trace.jsonl", "-m", "small-host", "-p", "lru", "--timeline", "t.csv"},
      {"import", "trace", "h.trace.jsonl", "-o", "i.trace.jsonl"},
      {"run", "replay", "h.trace.jsonl", "-m", "small-host", "-p", "lru", "--directory", ".", "--iterations", "2"},
      {"report", "h.trace.jsonl", "t.json", "-o", "r.html"},
  };
  for (const auto& words : commands) {
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 0) << words[0] << ": " << answer.err;
  }
  std::set<std::string> expected = before;
  for (const char* output : {"t.json", "t.csv", "i.trace.jsonl", "r.html"})
    expected.insert(std::string("work/") + output);
  EXPECT_EQ(all_files(), expected);
  EXPECT_FALSE(fs::exists("/tmp/tencache-evil"));
  const std::string page = content(path("r.html"));
  EXPECT_THAT(page, HasSubstr("&lt;script"));
  EXPECT_THAT(page, Not(AnyOf(HasSubstr("<script"), HasSubstr("<img"))));
}

// ---- Programs -------------------------------------------------------------------------------------------------------

TEST_F(HostileFiles, NoLibraryIsLoadedButThoseOfTheCommandLine) {
  const std::string library = TENCACHE_BINARY_DIR "/tests/faulty_marker.so";
  ASSERT_EQ(run({"policies", "--policy-library", library}).code, 0);
  ASSERT_TRUE(fs::exists(path("loaded"))) << "loading it can be seen";
  fs::remove(path("loaded"));

  // In the working directory, under every name that is ever loaded or started.
  for (const char* name : {"marker.so", "lru.so", "libtencache-mpi.so", "libcuda.so.1", "libcufile.so.0"}) {
    fs::copy_file(library, path(name));
  }
  fs::create_directory(path("policies"));
  fs::copy_file(library, path("policies/marker.so"));
  // Named in files.
  const std::string small = content(path("small.trace.jsonl"));
  const std::string header = small.substr(0, small.find('\n'));
  write("h.trace.jsonl",
        header.substr(0, header.size() - 1) + ",\"policy_library\":\"./marker.so\"}" + small.substr(header.size()));
  machine("m.yaml", "issue_ahead", "policy_library: ./marker.so");
  const std::string sweep = "name: x\nworkloads: [{trace: small.trace.jsonl}]\nmachines: [small-host]\n";
  write("policy.yaml", sweep + "policies: [./marker.so]\n");
  write("key.yaml", sweep + "policies: [lru]\npolicy_library: ./marker.so\n");
  ASSERT_EQ(
      run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "lru", "--json"}, program, path("r.json")).code, 0);
  nlohmann::json result = nlohmann::json::parse(content(path("r.json")));
  result["manifest"]["run"]["policy_library"] = path("marker.so");
  result["manifest"]["hashes"]["policy_library"] = std::string(64, '0');
  write("r.json", result.dump());

  EXPECT_EQ(run({"policies"}).code, 0);
  EXPECT_EQ(run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "lru"}).code, 0);
  EXPECT_EQ(run({"run", "replay", "small.trace.jsonl", "-m", "small-host", "-p", "lru", "--iterations", "2"}).code, 0);
  expect_bad_usage({"info", "h.trace.jsonl"}, HasSubstr("unknown key 'policy_library'"));
  expect_bad_usage({"replay", "small.trace.jsonl", "-m", "./m.yaml", "-p", "lru"}, HasSubstr("policy_library"));
  expect_bad_usage({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "./marker.so"}, HasSubstr("marker.so"));
  expect_bad_usage({"sweep", "policy.yaml"}, HasSubstr("marker.so"));
  expect_bad_usage({"sweep", "key.yaml"}, HasSubstr("policy_library"));
  expect_bad_usage({"reproduce", "r.json"}, HasSubstr("--policy-library"));
  EXPECT_FALSE(fs::exists(path("loaded")));
}

// ---- Terminals ------------------------------------------------------------------------------------------------------

// Nothing of a file is obeyed by a terminal, and no name makes a line of its own.
TEST_F(HostileFiles, NamesAndErrorsAreNothingThatTerminalsObey) {
  const std::string evil = "\x1b]0;evil\x07\x7f\xc2\x9b\xe2\x80\xae\nforged\r", no_utf8 = evil + "\x9b\x8d";
  const auto expect_tame = [&](const std::vector<std::string>& words) {
    SCOPED_TRACE(words[0] + " " + words[words.size() - 1]);
    Answer answer = run(words);
    for (const std::string& text : {answer.out, answer.err}) {
      for (const char* obeyed : {"\x1b", "\x07", "\x7f", "\xc2\x9b", "\xe2\x80\xae", "\x9b\x8d", "\r", "\nforged"}) {
        EXPECT_THAT(text, Not(HasSubstr(obeyed)));
      }
      EXPECT_FALSE(text.starts_with("forged"));
    }
    return answer;
  };
  const Trace plain = small_trace();
  Trace trace;
  trace.header = plain.header;
  trace.header.model = trace.header.hardware = trace.header.precision = trace.header.recorded_by = "x" + evil;
  trace.header.provenance.made_with = {{"x" + evil, "x" + evil}};
  for (const Tensor& tensor : plain.tensors) {
    trace.add_tensor(std::string(plain.name(tensor)) + evil, tensor.bytes, tensor.role, tensor.persistent);
  }
  for (const Op& one : plain.ops) {
    Op op = one;
    op.name = trace.names.intern(std::string(plain.name(one)) + evil);
    op.module = trace.names.intern(std::string(plain.module(one)) + evil);
    trace.add_op(op, plain.reads(one), plain.writes(one));
  }
  write_trace(trace, path("evil.trace.jsonl"));
  const auto on = [](std::vector<std::string> words, const std::vector<std::string>& more = {}) {
    words.insert(words.end(), {"evil.trace.jsonl", "-m", "small-host", "--no-rescale"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_THAT(expect_tame({"info", "evil.trace.jsonl"}).out,
              HasSubstr(R"(x\x1b]0;evil\x07\x7f\u{9b}\u{202e}\x0aforged\x0d)"));
  for (const char* memory : {"16MiB", "5MiB"}) {
    EXPECT_THAT(expect_tame(on({"replay"}, {"-p", "lru", "--gpu-memory", memory})).out, HasSubstr(R"(\x0aforged)"));
    expect_tame(on({"compare"}, {"-p", "lru,on-demand", "--gpu-memory", memory}));
    expect_tame(on({"fit"}, {"-p", "lru", "--gpu-memory", memory}));
    expect_tame(on({"explain"}, {"-p", "lru", "--gpu-memory", memory}));
    expect_tame(on({"endurance"}, {"-p", "lru", "--gpu-memory", memory}));
    expect_tame(on({"bound"}, {"--gpu-memory", memory}));
    expect_tame(on({"tune"}, {"-p", "lru", "--gpu-memory", memory}));
    expect_tame(on({"sensitivity"}, {"-p", "lru", "--gpu-memory", memory, "--over", "pcie=1GB/s,2GB/s"}));
  }
  write(no_utf8, "{}");
  machine("m.yaml", "name: small-host", R"(name: "m\e]0;evil\a\nforged")");
  write("keys.yaml", "\"name\\e]0;evil\\a\": x\n");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"info", no_utf8},
           {"report", no_utf8, "-o", "o.html"},
           {"replay", "small.trace.jsonl", "-m", "./keys.yaml", "-p", "lru"},
           {"replay", "small.trace.jsonl", "-m", "./m.yaml", "-p", "lru"},
           {"replay", "small.trace.jsonl", "-m", no_utf8, "-p", "lru"},
           {"replay", "small.trace.jsonl", "-m", "small-host", "-p", no_utf8},
           {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "lru", "--set", "a=" + no_utf8},
           {"replay", "--" + no_utf8},
           {no_utf8}}) {
    EXPECT_EQ(expect_tame(words).code, 2);
  }
}

}  // namespace
}  // namespace tencache
