// The JSON Schemas of inputs (docs/schemas) and of answers (made from their descriptions) against what TenCache writes and
// ships, and against what they must refuse. Validated by Python's jsonschema; skipped where that is not installed.
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "answers/intervals.h"
#include "answers/recompute_plan.h"
#include "answers/result.h"
#include "answers/schemas.h"
#include "configs/machine_yaml.h"
#include "configs/shipped_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/in_process.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

constexpr int jsonschema_is_missing = 77;

// A line for each document: "valid" or why not. Nothing where Python or its package is missing.
std::vector<std::string> validate(const std::string& schema, const std::vector<Json>& documents) {
  const fs::path folder =
      fs::path(::testing::TempDir()) / ("tencache_schema_test_" + schema + "_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  {
    std::ofstream file(folder / "documents");
    for (const Json& document : documents) file << document.dump() << '\n';
  }
  const std::string source = TENCACHE_SOURCE_DIR;
  fs::path description = fs::path(source) / "docs/schemas" / (schema + ".schema.json");
  for (const AnswerSchema& one : answer_schemas()) {
    if (one.name != schema) continue;
    description = folder / "schema";
    write_file(description.string(), one.schema.dump());
  }
  const std::string command = "python3 '" + source + "/tests/validate_schema.py' '" + description.string() + "' '" +
                              (folder / "documents").string() + "' >'" + (folder / "answers").string() + "'";
  const int status = std::system(command.c_str());
  std::vector<std::string> answers;
  std::ifstream file(folder / "answers");
  for (std::string line; std::getline(file, line);) answers.push_back(line);
  file.close();
  fs::remove_all(folder);
  if (WIFEXITED(status) && (WEXITSTATUS(status) == jsonschema_is_missing || WEXITSTATUS(status) == 127)) return {};
  EXPECT_EQ(status, 0);
  EXPECT_EQ(answers.size(), documents.size());
  return answers;
}

// Adds documents that are valid, and others of which a part of the complaint is known; then checks all at once.
class Checked {
 public:
  explicit Checked(std::string schema) : schema_(std::move(schema)) {}
  void valid(Json document) { add(std::move(document), "valid"); }
  void refused(Json document, const std::string& complaint) { add(std::move(document), complaint); }

  bool check() const {
    const std::vector<std::string> answers = validate(schema_, documents_);
    if (answers.empty()) return false;
    for (std::size_t i = 0; i < std::min(answers.size(), documents_.size()); ++i) {
      if (expected_[i] == "valid") {
        EXPECT_EQ(answers[i], "valid") << documents_[i].dump().substr(0, 500);
      } else {
        EXPECT_THAT(answers[i], HasSubstr(expected_[i])) << documents_[i].dump().substr(0, 500);
      }
    }
    return true;
  }

 private:
  void add(Json document, const std::string& expected) {
    documents_.push_back(std::move(document));
    expected_.push_back(expected);
  }

  std::string schema_;
  std::vector<Json> documents_;
  std::vector<std::string> expected_;
};

#define CHECK_OR_SKIP(checked) \
  if (!(checked).check()) GTEST_SKIP() << "Python's package jsonschema is not installed (python3-jsonschema)"

Json json_of(const YAML::Node& node) {
  if (node.IsMap()) {
    Json map = Json::object();
    for (const auto& entry : node) map[entry.first.Scalar()] = json_of(entry.second);
    return map;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const YAML::Node& item : node) list.push_back(json_of(item));
    return list;
  }
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  std::int64_t whole = 0;
  double real = 0;
  bool truth = false;
  if (YAML::convert<std::int64_t>::decode(node, whole)) return whole;
  if (YAML::convert<double>::decode(node, real)) return real;
  if (YAML::convert<bool>::decode(node, truth)) return truth;
  return text;
}

Json json_of_yaml(const std::string& text) { return json_of(YAML::Load(text)); }

std::string sample_trace() { return std::string(TENCACHE_SOURCE_DIR) + "/traces/samples/gpt-small.trace.jsonl.zst"; }

TEST(Schema, RecomputePlan) {
  Checked checked("recompute-plan");
  RecomputePlan plan;
  plan.model_sha256 = sha256_hex("of a model");
  plan.predicted.keep.reason = "out of memory";
  plan.layers = {{"h.0", 0, RecomputeLevel::block}, {"h.1", 0, RecomputeLevel::keep}};
  Json document = Json::parse(format_plan(plan));
  checked.valid(document);
  document["layers"][1]["level"] = "attention";
  checked.refused(std::move(document), "'attention' is not one of ['keep', 'block']");
}

TEST(Schema, TraceLines) {
  Checked checked("trace-line");
  std::istringstream lines(read_file(sample_trace()));
  std::size_t ops = 0;
  for (std::string line; std::getline(lines, line) && ops < 100;) {
    Json document = Json::parse(line);
    if (document["kind"] == "op") ++ops;
    checked.valid(std::move(document));
  }
  EXPECT_EQ(ops, 100u);
  const Json op = Json::parse(
      R"({"kind":"op","id":0,"name":"all_gather","phase":"forward","device":"gpu","duration_ns":5,)"
      R"("duration_source":"modelled","rank":1,"rendezvous":"step 0","group":2,"placeable":true,"reads":[0],"writes":[]})");
  checked.valid(op);
  const auto changed = [](Json document, const char* key, Json value) {
    document[key] = std::move(value);
    return document;
  };
  const std::string no_line = "is not valid under any of the given schemas";
  checked.refused(changed(op, "rendezvous", 3), no_line);
  checked.refused(changed(op, "phase", "sideways"), no_line);
  checked.refused(changed(op, "duration_ns", -1), no_line);
  checked.refused(changed(op, "speed", 1), no_line);
  checked.refused(Json::parse(R"({"kind":"tensor","id":0,"name":"a","bytes":0,"role":"input","persistent":true})"),
                  no_line);
  checked.valid(Json::parse(R"({"kind":"header","format_version":6})"));
  checked.valid(Json::parse(R"({"kind":"choice","module":"layer","before":7,"block":[1,2]})"));
  checked.refused(Json::parse(R"({"kind":"choice","module":"layer","before":7,"half":[1]})"), no_line);
  checked.refused(Json::parse(R"({"kind":"header","format_version":7})"), no_line);
  checked.refused(Json::parse(R"({"kind":"header","format_version":3,"made_by":"guessed"})"), no_line);
  checked.refused(Json::parse(R"({"kind":"header","format_version":3,"made_with":{"batch":2}})"), no_line);
  for (const char* version : {"2", "3"}) {
    std::istringstream newer(
        read_file(TENCACHE_SOURCE_DIR "/tests/data/version-" + std::string(version) + ".trace.jsonl"));
    for (std::string line; std::getline(newer, line);) checked.valid(Json::parse(line));
  }
  const Json least = Json::parse(  // the complaint has the op in it, and is cut
      R"({"kind":"op","id":0,"name":"a","phase":"decode","device":"gpu","duration_ns":5,)"
      R"("duration_source":"modelled","reads":[],"writes":[]})");
  for (const char* kernel : {"elementwise", "norm", "norm_backward", "reduction", "copy", "gather", "optimizer"}) {
    checked.valid(changed(least, "kernel", kernel));
    checked.refused(changed(changed(least, "kernel", kernel), "shape", {1, 2, 3, 4}), no_line);
  }
  const Json matmul = changed(changed(least, "kernel", "matmul"), "shape", {1, 2, 3, 4});
  const Json attention = changed(changed(least, "kernel", "attention_backward"), "shape", {1, 2, 3, 4, 5, 6});
  const Json collective = changed(changed(least, "kernel", "collective"), "shape", {8});
  checked.valid(collective);
  checked.refused(changed(least, "kernel", "collective"), no_line);
  checked.refused(changed(collective, "shape", {1, 2}), no_line);
  checked.valid(changed(matmul, "unaligned", true));
  checked.refused(changed(least, "unaligned", true), no_line);
  checked.valid(changed(matmul, "launches", 2));
  checked.valid(changed(attention, "causal", true));
  checked.valid(changed(attention, "attention_kernel", "cudnn"));
  checked.valid(changed(least, "launches", 7));
  checked.refused(changed(least, "kernel", "matmul"), no_line);
  checked.refused(changed(least, "kernel", "unknown"), no_line);
  checked.refused(changed(least, "shape", {1, 2, 3, 4}), no_line);
  checked.refused(changed(least, "causal", true), no_line);
  checked.refused(changed(least, "launches", 0), no_line);
  checked.refused(changed(matmul, "shape", {1, 2, 3}), no_line);
  checked.refused(changed(matmul, "shape", {1, 2, 3, 1ull << 41}), no_line);
  checked.refused(changed(matmul, "attention_kernel", "flash2"), no_line);
  checked.refused(changed(attention, "shape", {1, 2, 3, 4}), no_line);
  checked.refused(changed(attention, "attention_kernel", "flash9"), no_line);
  checked.refused(changed(attention, "unaligned", true), no_line);
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Machines) {
  Checked checked("machine");
  for (const MachineSpec& machine : list_machines()) {
    checked.valid(json_of_yaml(read_file(machine.file)));
    checked.valid(json_of_yaml(write_machine_yaml(machine)));
  }
  const std::string gpu = "name: a\ntiers: [{name: gpu, kind: gpu, capacity: 1GiB";
  checked.valid(json_of_yaml(gpu + "}]"));
  checked.refused(json_of_yaml(gpu + "}]\nspeed: 1"), "'speed' was unexpected");
  checked.refused(json_of_yaml(gpu + ", shared_by: some}]"), "$.tiers");
  checked.refused(json_of_yaml(gpu + ", reserved: 1 horse}]"), "$.tiers");
  checked.refused(json_of_yaml(gpu + ", reserved: {value: 1MiB, confidence: sure}}]"), "$.tiers");
  checked.refused(json_of_yaml(gpu + "}]\nranks: 65"), "$.ranks");
  checked.refused(json_of_yaml(gpu + "}]\nlinks: [{name: h2d, from: cpu, to: gpu, bandwidth: 0}]"), "$.links");
  checked.refused(json_of_yaml(gpu + "}]\nlinks: [{name: h2d, from: cpu, to: gpu, bandwidth: 12}]"), "$.links");
  checked.refused(json_of_yaml(gpu + "}]\nhost: {per_module: 40}"), "$.host");
  checked.refused(json_of_yaml("name: a"), "is not valid under any of the given schemas");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Results) {
  Checked checked("result");
  Scenario scenario;
  scenario.trace.file = sample_trace();
  scenario.machine.name = "demo-small-gpu";
  Workload workload = load_workload(scenario);
  const References references = references_of(workload);
  Json result;
  for (const char* policy : {"ideal", "on-demand", "zero-offload"}) {
    const Outcome outcome = simulate_policy(workload, policy, {});
    ResultAnswer answer = result_answer(workload, outcome, references);
    checked.valid(to_json_of(answer));
    const Intervals intervals =
        sample_intervals(workload, {{policy, {}, outcome.result.iteration_seconds()}}, {.samples = 4, .seed = 1});
    add_interval(answer, intervals, intervals.policies.front());
    result = to_json_of(answer);
    checked.valid(result);
  }
  // Of modelled durations: an A10G, which nobody measured.
  const Json modelled = Json::parse(run_in_process({"replay", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m",
                                                    "g5.xlarge", "-p", "on-demand", "--samples", "4", "--json"})
                                        .out);
  EXPECT_EQ(modelled["gpu_time"]["gpu"], "a10g");
  EXPECT_EQ(modelled["gpu_time"]["extrapolated_share"], 1);
  checked.valid(modelled);

  workload.machine.tiers[0].capacity = 8 * MiB;
  const Json misfit = to_json_of(result_answer(workload, simulate_policy(workload, "on-demand", {}), references));
  EXPECT_EQ(misfit["fits"], false);
  checked.valid(misfit);

  const auto changed = [&](const char* key, Json value) {
    Json document = result;
    document[key] = std::move(value);
    return document;
  };
  checked.refused(changed("iteration_seconds", "fast"), "$.iteration_seconds");
  checked.refused(changed("interval_seconds", {1.0}), "$.interval_seconds");
  checked.refused(changed("stall_seconds", {{"h2d", 1.0}}), "$.stall_seconds");
  Json without = result;
  without.erase("manifest");
  checked.refused(without, "'manifest' is a required property");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Replays) {
  const InProcessAnswer replayed = run_in_process({"run", "replay", sample_trace(), "-m", "demo-small-gpu", "-p", "lru",
                                                   "--device", "host", "--scale-bytes", "1/64", "--scale-time", "0",
                                                   "--gpu-memory", "8MiB", "--iterations", "2", "--predict", "--json"});
  if (replayed.err.find("not part of this build") != std::string::npos) GTEST_SKIP() << "built without the executor";
  Checked checked("replayed");
  const Json result = Json::parse(replayed.out);
  checked.valid(result);
  EXPECT_EQ(schema_of_answer(result)->name, "replayed");
  for (const char* key : {"/verification/tensors", "/prediction/comparison/iteration_seconds/error", "/measured"}) {
    Json changed = result;
    changed[Json::json_pointer(key)] = "some";
    checked.refused(changed, "$.");
  }
  Json changed = result;
  changed["speed"] = 1;
  checked.refused(changed, "'speed' was unexpected");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Bounds) {
  Checked checked("bound");
  Json bound;
  for (const char* gpu_memory : {"64MiB", "8MiB"}) {
    bound = Json::parse(
        run_in_process({"bound", sample_trace(), "-m", "demo-small-gpu", "--gpu-memory", gpu_memory, "--json"}).out);
    checked.valid(bound);
  }
  EXPECT_EQ(bound["fits"], false);
  bound["terms"][0]["seconds"] = "soon";
  checked.refused(bound, "$.terms");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Tunings) {
  Checked checked("tune");
  Json tuned;
  for (const char* gpu_memory : {"240MiB", "8MiB"}) {
    tuned = Json::parse(run_in_process({"tune", sample_trace(), "-m", "demo-small-gpu", "-p", "lru", "--gpu-memory",
                                        gpu_memory, "--budget", "20", "--jitter", "5%", "--copies", "2", "--json"})
                            .out);
    checked.valid(tuned);
  }
  EXPECT_EQ(tuned["best"]["fits"], false);
  tuned["best"]["relative_time"] = "fast";
  checked.refused(tuned, "$.best");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Sweeps) {
  Checked checked("sweep");
  const std::string file = std::string(::testing::TempDir()) + "tencache_schema_sweep.yaml";
  std::ofstream(file) << "name: some\nworkloads: [" << sample_trace() << "]\n"
                      << "machines: [{name: g5.xlarge, gpu_memory: [24GiB, 8MiB]}]\npolicies: [lru, ideal]\n";
  Json results = Json::parse(run_in_process({"sweep", file, "--json"}).out);
  fs::remove(file);
  EXPECT_EQ(results["rows"].size(), 4u);
  checked.valid(results);
  Json changed = results;
  changed["rows"][0]["iteration_seconds"] = "fast";
  checked.refused(changed, "$.rows");
  changed = results;
  changed["rows"][0].erase("reason");
  checked.refused(changed, "'reason' is a required property");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, SweepFiles) {
  Checked checked("sweep-file");
  for (const auto& [name, path] : shipped_files("sweeps")) checked.valid(json_of_yaml(read_file(path)));
  const std::string start = "name: a\nmachines: g5*\npolicies: all\nworkloads: ";
  checked.valid(json_of_yaml(start + "t.trace.jsonl"));
  checked.refused(json_of_yaml(start + "[{trace: a, generate: {model: gpt2, batch: 1}}]"), "$.workloads");
  checked.refused(json_of_yaml(start + "[{generate: {model: gpt2}}]"), "$.workloads");
  checked.refused(json_of_yaml(start + "t\nlimits: {gpus: 0}"), "$.limits.gpus");
  checked.refused(json_of_yaml("name: a"), "required property");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, PriceTables) {
  Checked checked("prices");
  for (const auto& [name, path] : shipped_files("prices")) checked.valid(json_of_yaml(read_file(path)));
  const std::string start = "cloud: a\nsource: b\nretrieved: c\nconfidence: published\nprices: ";
  checked.refused(json_of_yaml(start + "{g5.xlarge: {on_demand: 0}}"), "$.prices");
  checked.refused(json_of_yaml(start + "{g5.xlarge: {hourly: 1}}"), "$.prices");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Sensitivities) {
  Checked checked("sensitivity");
  Json analysis;
  for (const char* over : {"h2d=100MB/s,1TB/s", "gpu_memory=1MiB,2MiB", "h2d=1TB/s,2TB/s"}) {
    analysis = Json::parse(run_in_process({"sensitivity", sample_trace(), "-m", "demo-small-gpu", "-p", "lru", "--over",
                                           over, "--over", "gpu_speed=1,2", "--json"})
                               .out);
    checked.valid(analysis);
  }
  analysis["lines"][0]["knee_state"] = "somewhere";
  checked.refused(analysis, "$.lines[0].knee_state");
  analysis.erase("parameters");
  checked.refused(analysis, "parameters");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Explanations) {
  Checked checked("explain");
  Json explained;
  for (const char* gpu_memory : {"60MiB", "1MiB"}) {
    explained = Json::parse(run_in_process({"explain", sample_trace(), "-m", "demo-small-gpu", "-p", "10cache",
                                            "--gpu-memory", gpu_memory, "--policies", "lru", "--top", "2", "--json"})
                                .out);
    checked.valid(explained);
  }
  explained["causes"].push_back({{"cause", "weather"}});
  checked.refused(explained, "$.causes[0]");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Endurances) {
  Checked checked("endurance");
  Json wear;
  for (const char* gpu_memory : {"1GiB", "16MiB", "16GiB"}) {
    wear =
        Json::parse(run_in_process({"endurance", "--model", "gpt2", "--batch", "8", "--seq", "256", "-m", "g5.xlarge",
                                    "-p", "on-demand", "--gpu-memory", gpu_memory, "--cpu-memory", "512MiB", "--json"})
                        .out);
    checked.valid(wear);
  }
  wear["tiers"][0]["ssds"] = -1;
  checked.refused(wear, "$.tiers[0].ssds");
  CHECK_OR_SKIP(checked);
}

TEST(Schema, Validations) {
  Checked checked("validation");
  Json validation = Json::parse(run_in_process({"validate", "deep-optimizer-states", "--quick", "--json"}).out);
  ASSERT_FALSE(validation["systems"].empty());
  checked.valid(validation);
  checked.valid(Json::parse(run_in_process({"validate", "gpu-other", "gpu-kernels", "--quick", "--json"}).out));
  validation["systems"][0]["rows"][0]["verdict"] = "right";
  checked.refused(validation, "$.systems");
  CHECK_OR_SKIP(checked);
}

}  // namespace
}  // namespace tencache
