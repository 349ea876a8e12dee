// A GPT of more than five million parameters, trained with its memory paged: the same bits as plain LibTorch with the
// same optimizer, under every policy, with less memory than it needs. And the gate: the log of each of these runs,
// replayed through a new engine and a new policy object, gives the same decisions.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/engine/replay_log.h"
#include "executor/torch/programs.h"
#include "executor/torch/record.h"
#include "executor/torch/recorded_durations.h"
#include "executor/torch/train.h"
#include "gmock/gmock.h"
#include "policies/registry.h"
#include "tests/live/live_training_support.h"
#include "traces/file/trace_file.h"
#include "traces/transform/lower.h"
#include "traces/transform/median_trace.h"

namespace tencache::training_test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t steps = 20;
// The third is the first whose schedule the policy knows, the fourth begins where that one left the tensors.
constexpr std::uint64_t paged_steps = 4;

MachineSpec with_files_behind(Bytes gpu_bytes, const std::string& folder) {
  MachineSpec machine = with_cpu_memory_behind(gpu_bytes);
  machine.name = "files-behind";
  machine.tiers[1].capacity = 16 * MiB;  // the CPU's optimizer needs that much at once, the rest goes to files
  machine.tiers.push_back(tier("nvme", TierKind::nvme, 160 * MiB));
  machine.tiers[2].directories = {folder};
  machine.links.push_back(link("nvme_read", 2, 1));
  machine.links.push_back(link("nvme_write", 1, 2));
  machine.staging = {.tier = 1, .count = 4, .bytes = 4 * MiB};
  machine.validate();
  return machine;
}

struct PolicyCase {
  std::string name;
  std::map<std::string, std::string> settings;
};

// Every policy of the registry; those that give up by default where they could evict are told to evict.
std::vector<PolicyCase> all_policies() {
  std::vector<PolicyCase> cases;
  for (const PolicyInfo& info : list_policies()) {
    PolicyCase& added = cases.emplace_back();
    added.name = info.name;
    for (const Options::Info& option : info.options) {
      const bool evicts = std::find(option.choices.begin(), option.choices.end(), "evict") != option.choices.end();
      if (option.name == "overflow" && evicts) added.settings = {{"overflow", "evict"}};
    }
  }
  return cases;
}

class LiveTraining : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    config_ = new TrainingConfig(five_million_parameters());
    data_ = new TextData(text_for(*config_));
    plain_ = new TrainingResult(train_plain(*config_, *data_, {.steps = steps, .keep_weights = false, .on_step = {}}));
    short_plain_ =
        new TrainingResult(train_plain(*config_, *data_, {.steps = paged_steps, .keep_weights = true, .on_step = {}}));
    demand_ = new PagedTraining(measure_demand(*config_, *data_));
  }
  static void TearDownTestSuite() {
    delete demand_;
    delete short_plain_;
    delete plain_;
    delete data_;
    delete config_;
  }

  static Bytes percent_of_peak(std::uint64_t percent) {
    const Bytes bytes = demand_->peak_live_bytes * percent / 100;
    return std::max(bytes, demand_->largest_op_bytes * 11 / 10) / (4 * KiB) * (4 * KiB);
  }

  // Trains, compares with plain training bit by bit, and replays the log.
  static void train_and_compare(const MachineSpec& machine, const PolicyCase& choice) {
    const MadePolicy made = make_policy(choice.name, choice.settings);
    EventLog log;
    LiveOptions live;
    live.engine.log = &log;
    live.machine.pace = false;
    const PagedTraining paged = train_paged(*config_, *data_, machine, *made.policy, live,
                                            {.steps = paged_steps, .keep_weights = true, .on_step = {}});
    EXPECT_EQ(paged.training.losses, short_plain_->losses);
    EXPECT_TRUE(same_bits(paged.training.weights, short_plain_->weights));
    EXPECT_EQ(paged.deviations, 0u) << paged.first_deviation;
    EXPECT_LE(paged.run.peak_bytes[0], paged.machine.tiers[0].capacity);

    const MadePolicy again = make_policy(choice.name, choice.settings);
    const ReplayedLog replayed = replay_log(log, paged.machine, *again.policy);
    EXPECT_EQ(replayed.diverged, "");
    EXPECT_EQ(first_difference(log.decisions, replayed.decisions), "");
    EXPECT_EQ(log.decisions.size(), replayed.decisions.size());
    EXPECT_GT(log.decisions.size(), paged_steps);
  }

  static void train_at(std::uint64_t percent, bool files) {
    const Folder folder;
    const Bytes gpu_bytes = percent_of_peak(percent);
    for (const PolicyCase& choice : all_policies()) {
      if (!files && (choice.name == "flashneuron" || choice.name == "ssdtrain")) continue;  // they need an SSD
      SCOPED_TRACE(choice.name + " at " + std::to_string(percent) + " % of the peak, " +
                   (files ? "files" : "CPU memory") + " behind");
      try {
        train_and_compare(files ? with_files_behind(gpu_bytes, folder.path()) : with_cpu_memory_behind(gpu_bytes),
                          choice);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }

  static inline TrainingConfig* config_ = nullptr;
  static inline TextData* data_ = nullptr;
  static inline TrainingResult* plain_ = nullptr;
  static inline TrainingResult* short_plain_ = nullptr;
  static inline PagedTraining* demand_ = nullptr;
};

TEST_F(LiveTraining, TheProgramIsLargeEnoughAndLearns) {
  EXPECT_GE(plain_->parameter_count, 5'000'000u);
  ASSERT_EQ(plain_->losses.size(), steps);
  EXPECT_LT(plain_->losses.back(), plain_->losses.front() - 1);
  // Parameters, gradients and two moments, four bytes each, are alive at once.
  EXPECT_GE(demand_->peak_live_bytes, 16 * plain_->parameter_count);
}

// Three of the six pairs, for time: mapping and unmapping memory is most of it. At 100 % there is room for all but what
// a policy fetches or keeps without need; at 25 % an op's room is a large part of all there is, and evictions and late
// demands are everywhere. Files bring copies of two hops, staging buffers and a CPU tier that is full at times: at half
// of the peak prefetches still have room to get in the way of demand.
TEST_F(LiveTraining, AllOfThePeakWithCpuMemoryBehind) { train_at(100, false); }
TEST_F(LiveTraining, QuarterOfThePeakWithCpuMemoryBehind) { train_at(25, false); }
TEST_F(LiveTraining, HalfOfThePeakWithFilesBehind) { train_at(50, true); }

TEST_F(LiveTraining, TheLargestOpIsEnoughAndLessIsNot) {
  LiveOptions live;
  live.machine.pace = false;
  const TrainingOptions options{.steps = 3, .keep_weights = false, .on_step = {}};
  const Bytes least = demand_->largest_op_bytes;
  const MadePolicy enough = make_policy("on-demand");
  const PagedTraining paged =
      train_paged(*config_, *data_, with_cpu_memory_behind(least), *enough.policy, live, options);
  EXPECT_EQ(paged.training.losses, std::vector<float>(plain_->losses.begin(), plain_->losses.begin() + 3));
  EXPECT_EQ(paged.run.peak_bytes[0], least);

  const MadePolicy less = make_policy("on-demand");
  try {
    train_paged(*config_, *data_, with_cpu_memory_behind(least - 4 * KiB), *less.policy, live, options);
    FAIL() << "ran with less memory than its largest op needs";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr(demand_->largest_op));
    EXPECT_EQ(error.op(), demand_->largest_op);
    EXPECT_GT(error.bytes_missing(), 0u);
    EXPECT_TRUE(std::string(error.what()).find(std::to_string(error.bytes_missing())) != std::string::npos ||
                std::string(error.what()).find(format_bytes(error.bytes_missing())) != std::string::npos)
        << error.what();
  }
}

// ---- The optimizer's split ------------------------------------------------------------------------------------------

TEST(Optimizer, AnySubGroupSizeTrainsToTheSameBits) {
  at::set_num_threads(1);
  TrainingConfig config = tiny();
  const TextData data = text_for(config);
  const TrainingOptions options{.steps = 4, .keep_weights = true, .on_step = {}};
  const TrainingResult reference = train_plain(config, data, options);
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{5'000}, std::uint64_t{1'000'000'000}}) {
    config.sub_group_parameters = size;
    EXPECT_TRUE(same_bits(train_plain(config, data, options).weights, reference.weights)) << size;
  }
  config.seed += 1;
  EXPECT_FALSE(same_bits(train_plain(config, data, options).weights, reference.weights));
}

// ---- Where updates run ----------------------------------------------------------------------------------------------

// A prediction asks the policy once, with the whole recorded step (traces/transform/lower.h). From the third step on
// the run must have its updates there too, in that order; each of these policies moves some, or puts them into another
// order.
TEST(UpdatesOfALiveRun, AreWhereAPredictionHasThem) {
  at::set_num_threads(1);
  TrainingConfig config = tiny();
  config.layers = 4;
  const TextData data = text_for(config);
  const PagedTraining demand = measure_demand(config, data);
  const Bytes gpu = std::max(demand.peak_live_bytes / 2, demand.largest_op_bytes * 11 / 10) / (4 * KiB) * (4 * KiB);
  MachineSpec machine = with_cpu_memory_behind(gpu);
  for (Link& link : machine.links) link.bandwidth = 20'000'000;  // so that it pays to leave the states on the CPU
  for (const PolicyCase& choice :
       {PolicyCase{"foresight", {}}, PolicyCase{"zero-offload", {{"overflow", "evict"}}}, PolicyCase{"10cache", {}},
        PolicyCase{"deep-optimizer-states", {{"overflow", "evict"}}},
        PolicyCase{"mlp-offload", {{"overflow", "evict"}}}, PolicyCase{"lru", {}}}) {
    SCOPED_TRACE(choice.name);
    Timeline timeline;
    LiveOptions live;
    live.machine.pace = false;
    live.engine.timeline = &timeline;
    const MadePolicy made = make_policy(choice.name, choice.settings);
    const PagedTraining paged = train_paged(config, data, machine, *made.policy, live, {.steps = 4, .on_step = {}});
    ASSERT_EQ(paged.deviations, 0u) << paged.first_deviation;
    const Program predicted = lower(paged.recorded, *make_policy(choice.name, choice.settings).policy, machine);
    EXPECT_EQ(predicted.changes.empty(), choice.name == "lru");
    ASSERT_EQ(predicted.trace.ops.size(), paged.program.trace.ops.size());

    std::vector<std::string> expected, ran;
    for (const Op& op : predicted.trace.ops) {
      if (op.phase == Phase::optimizer && op.device == Device::cpu)
        expected.push_back(std::string(predicted.trace.name(op)));
    }
    for (const Span& span : timeline.spans) {
      if (span.kind != SpanKind::op || span.lane != 1 || span.iteration < 2) continue;
      ran.push_back(std::string(paged.program.trace.name(paged.program.trace.ops[span.op])));
    }
    ran.resize(std::min(ran.size(), expected.size()));  // the fourth step's follow
    EXPECT_EQ(ran, expected);
    for (OpIndex op = 0; op < predicted.trace.ops.size(); ++op) {
      EXPECT_EQ(predicted.trace.name(predicted.trace.ops[op]), paged.program.trace.name(paged.program.trace.ops[op]));
      EXPECT_EQ(predicted.trace.ops[op].device, paged.program.trace.ops[op].device) << op;
    }
  }
}

// A run that has a recording asks by its durations, whatever its own step took; one of another program it leaves alone.
TEST(UpdatesOfALiveRun, ArePlacedByTheDurationsOfARecording) {
  class Records final : public Policy {
   public:
    void place(const Trace& trace, const MachineSpec&, std::vector<Device>&) const override {
      if (trace.ops.size() > 1) asked_.push_back(trace);
    }
    void order(const Trace& trace, const MachineSpec&, std::vector<std::int32_t>&) const override {
      asked_.push_back(trace);
    }
    mutable std::vector<Trace> asked_;
  };
  at::set_num_threads(1);
  const TrainingConfig config = tiny();
  const TextData data = text_for(config);
  const PagedTraining demand = measure_demand(config, data);
  Trace recording = demand.recorded;
  for (OpIndex op = 0; op < recording.ops.size(); ++op) recording.ops[op].duration_ns = 1'000'000 + op;
  LiveOptions live;
  live.machine.pace = false;
  const auto asked = [&](const Trace& with) {
    Records records;
    const std::unique_ptr<Policy> policy = with_durations_of(with, records);
    train_paged(config, data, with_cpu_memory_behind(demand.peak_live_bytes), *policy, live,
                {.steps = 3, .on_step = {}});
    return records.asked_;
  };
  const std::vector<Trace> by_recording = asked(recording);
  ASSERT_GE(by_recording.size(), 2u);
  for (const Trace& trace : by_recording) {
    ASSERT_EQ(trace.ops.size(), recording.ops.size());
    for (OpIndex op = 0; op < trace.ops.size(); ++op) EXPECT_EQ(trace.ops[op].duration_ns, 1'000'000 + op);
  }
  Trace of_another = recording;
  of_another.ops.pop_back();
  for (const Trace& trace : asked(of_another)) EXPECT_NE(trace.ops.front().duration_ns, 1'000'000);
}

// ---- Recording ------------------------------------------------------------------------------------------------------

TEST(Recording, IsOneSteadyStepOfTheProgram) {
  at::set_num_threads(1);
  const TrainingConfig config = tiny();
  const TextData data = text_for(config);
  const Recording recording = record_training(config, data, {.steps = 3, .on_step = {}});
  const Trace& trace = recording.trace;
  EXPECT_EQ(trace.header.batch, 4u);
  EXPECT_EQ(trace.header.sequence_length, 16u);
  EXPECT_EQ(trace.header.model, "gpt-test");
  EXPECT_EQ(trace.header.precision, "fp32");

  Bytes parameters = 0, gradients = 0, states = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.role == Role::parameter) parameters += tensor.bytes;
    if (tensor.role == Role::gradient) gradients += tensor.bytes;
    if (tensor.role == Role::optimizer_state) states += tensor.bytes;
    if (tensor.role == Role::parameter || tensor.role == Role::optimizer_state) {
      EXPECT_TRUE(tensor.persistent) << trace.name(tensor);
    }
    if (tensor.role == Role::gradient || tensor.role == Role::activation) {
      EXPECT_FALSE(tensor.persistent) << trace.name(tensor);
    }
  }
  EXPECT_EQ(parameters, gradients);
  EXPECT_EQ(states, 2 * parameters);

  std::map<std::string, int> modules;
  int placeable = 0;
  for (const Op& op : trace.ops) {
    ++modules[std::string(trace.module(op))];
    if (op.placeable) {
      ++placeable;
      EXPECT_EQ(op.phase, Phase::optimizer);
      EXPECT_GT(op.duration_ns, 0) << trace.name(op);
    }
  }
  for (const char* module : {"embedding", "block.0", "block.1", "head"}) EXPECT_GT(modules[module], 0) << module;
  EXPECT_GE(placeable, 3);  // a norm, the clipping, an update
}

// The shipped recordings are of the programs that there are: the same ops on the same tensors.
TEST(Recording, OfABuiltInProgramIsWhatIsShipped) {
  if (TORCH_VERSION_MAJOR != 1) GTEST_SKIP() << "they are LibTorch 1.13's; others take other temporary tensors";
  at::set_num_threads(1);
  ASSERT_FALSE(list_programs().empty());
  for (const ProgramInfo& program : list_programs()) {
    SCOPED_TRACE(program.name);
    const Trace trace = record_program(program.name, {.steps = 1, .on_step = {}}).trace;
    const Trace shipped =
        read_trace(TENCACHE_SOURCE_DIR "/traces/samples/" + program.name + std::string(".trace.jsonl.zst"));
    EXPECT_EQ(trace.header.model, shipped.header.model);
    EXPECT_EQ(trace.header.batch, shipped.header.batch);
    ASSERT_EQ(trace.ops.size(), shipped.ops.size());
    ASSERT_EQ(trace.tensors.size(), shipped.tensors.size());
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      ASSERT_EQ(trace.name(trace.ops[op]), shipped.name(shipped.ops[op])) << op;
      ASSERT_TRUE(std::ranges::equal(trace.reads(trace.ops[op]), shipped.reads(shipped.ops[op]))) << op;
      ASSERT_TRUE(std::ranges::equal(trace.writes(trace.ops[op]), shipped.writes(shipped.ops[op]))) << op;
    }
  }
  try {
    record_program("rnn", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown program 'rnn'; there are: resnet, lstm, lora-encoder"));
  }
}

Trace two_ops(Nanoseconds first_ns, Nanoseconds second_ns, const char* second_name = "second") {
  Trace trace;
  const TensorId tensor = trace.add_tensor("x", 8, Role::parameter, true);
  Op op;
  op.name = trace.names.intern("first");
  op.duration_ns = first_ns;
  trace.add_op(op, std::vector<TensorId>{tensor}, {});
  op.name = trace.names.intern(second_name);
  op.duration_ns = second_ns;
  op.gap_before_ns = 2 * second_ns;
  trace.add_op(op, std::vector<TensorId>{tensor}, {});
  return trace;
}

// Ids of live tensors are used again; the timeline must say the recording's instead, from the third step on.
TEST(MeasuredTimeline, NamesTheRecordingsOpsAndTensors) {
  const TrainingConfig config = tiny();
  const TextData data = text_for(config);
  const PagedTraining demand = measure_demand(config, data);
  MachineSpec machine = uncapped_machine();
  machine.tiers[0].capacity = std::max(demand.peak_live_bytes / 2, demand.largest_op_bytes) / (4 * KiB) * (4 * KiB);
  Timeline timeline;
  LiveOptions live;
  live.engine.timeline = &timeline;
  TrainingOptions options;
  options.steps = 4;
  const MadePolicy made = make_policy("on-demand");
  const PagedTraining paged = train_paged(config, data, machine, *made.policy, live, options);
  ASSERT_EQ(paged.deviations, 0u);
  const Trace& trace = paged.program.trace;
  std::size_t op_count = 0, transfer_count = 0;
  for (const Span& span : timeline.spans) {
    if (span.iteration < 2) continue;
    if (span.kind == SpanKind::op) {
      ++op_count;
      EXPECT_LT(span.op, trace.ops.size());
    }
    if (span.kind == SpanKind::transfer && span.tensor < trace.tensors.size()) {
      ++transfer_count;
      // Each of these tensors is one chunk, so it moves whole.
      EXPECT_EQ(span.bytes, trace.tensors[span.tensor].bytes) << trace.name(trace.tensors[span.tensor]);
    }
  }
  EXPECT_GE(op_count, 2 * trace.ops.size());
  EXPECT_GT(transfer_count, 0u);
  const Timeline named = from_iteration(timeline, 2);
  std::size_t known = 0;
  for (const OccupancySample& sample : named.occupancy) {
    if (sample.tensor == none) continue;
    ++known;
    ASSERT_LT(sample.tensor, trace.tensors.size());
    EXPECT_EQ(sample.role, trace.tensors[sample.tensor].role) << trace.name(trace.tensors[sample.tensor]);
  }
  EXPECT_GT(known, named.occupancy.size() * 9 / 10);
}

// The ops' medians are 20 and 7, the steps take 15, 37 and 1020: both ops are scaled by 37 / 27.
TEST(MedianTrace, TakesEachOpsMedianAndTheMedianStep) {
  const Trace median = median_trace({two_ops(10, 5), two_ops(30, 7), two_ops(20, 1000)});
  EXPECT_EQ(median.ops[0].duration_ns, 27);
  EXPECT_EQ(median.ops[1].duration_ns, 9);
  EXPECT_EQ(median.ops[1].gap_before_ns, 14);
}

TEST(MedianTrace, RefusesStepsThatDiffer) {
  try {
    median_trace({two_ops(1, 1), two_ops(1, 1, "other")});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("op 1 is 'other', was 'second'"));
  }
}

// ---- Configuration and text -----------------------------------------------------------------------------------------

class TrainingConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = folder_.path() + "/config.yaml";
    std::ofstream(path) << text;
    return path;
  }
  std::string error_of(const std::string& text) {
    try {
      read_training_config(write(text));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  const Folder folder_;
  const std::string rest_ = "name: a\ndata: {text: x}\noptimizer: {}\n";
};

TEST_F(TrainingConfigFile, IsRead) {
  const TrainingConfig config =
      read_training_config(write("name: a\nmodel: {layers: 3, width: 32, heads: 2, dropout: 0.25, precision: bf16, "
                                 "recompute: block}\ndata:\n  text: some/text.md\n  batch: 5\n"
                                 "optimizer: {learning_rate: 0.5, clip: 0}\nsteps: 7\n"));
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.batch, 5);
  EXPECT_EQ(config.steps, 7);
  EXPECT_EQ(config.dropout, 0.25);
  EXPECT_EQ(config.precision, TrainingPrecision::bf16);
  EXPECT_EQ(config.recompute, Recompute::block);
  EXPECT_EQ(config.clip, 0.0);
  EXPECT_EQ(config.adamw.learning_rate, 0.5);
  EXPECT_EQ(config.text, fs::path(folder_.path() + "/some/text.md").lexically_normal().string());
}

TEST_F(TrainingConfigFile, UnknownKeysAreErrorsThatListTheValidOnes) {
  const std::string error = error_of(rest_ + "model:\n  layers: 2\n  widht: 3\n");
  EXPECT_THAT(error, HasSubstr("config.yaml:6: unknown key 'widht'"));
  EXPECT_THAT(
      error,
      HasSubstr("valid keys: layers, width, heads, context, vocabulary, dropout, tied_head, precision, recompute"));
}

TEST_F(TrainingConfigFile, BadValuesAreErrorsWithTheirLine) {
  EXPECT_THAT(error_of(rest_ + "model: {layers: 0}"), HasSubstr("config.yaml:4: layers must be a whole number from 1"));
  EXPECT_THAT(error_of(rest_ + "model: {layers: many}"), HasSubstr("config.yaml:4: layers must be"));
  EXPECT_THAT(error_of(rest_ + "model: {dropout: 1}"), HasSubstr("config.yaml:4: dropout must be a number"));
  EXPECT_THAT(error_of(rest_ + "model: {precision: fp16}"), HasSubstr("precision must be fp32 or bf16"));
  EXPECT_THAT(error_of(rest_ + "model: {width: 10, heads: 3}"), HasSubstr("not a multiple of heads"));
  EXPECT_THAT(error_of(rest_ + "model: {}\nsteps: 1\nsteps: 2"), HasSubstr("config.yaml:6: 'steps' is given twice"));
  EXPECT_THAT(error_of("name: a\n"), HasSubstr("the key 'model' is missing"));
  EXPECT_THAT(error_of("name: [\n"), HasSubstr("config.yaml:"));
}

TEST(ShippedTrainingConfigs, AreRead) {
  for (const auto& entry : fs::directory_iterator(TENCACHE_SOURCE_DIR "/configs/training")) {
    if (entry.path().extension() != ".yaml") continue;  // the text
    const TrainingConfig config = read_training_config(entry.path().string());
    EXPECT_EQ(config.name, entry.path().stem().string());
    EXPECT_GT(read_text(config.text).size(), static_cast<std::size_t>(config.context));
  }
}

TEST(Text, BatchesAreAFunctionOfTheStep) {
  const std::string text = "0123456789abcdefghijklmnopqrstuvwxyz";
  const TextData data(text, 3, 8, 5);
  const TokenBatch batch = data.batch(4);
  ASSERT_EQ(batch.tokens.size(), 24u);
  for (std::size_t i = 0; i < 24; ++i) {
    if (i % 8 != 7) {
      EXPECT_EQ(batch.targets[i], batch.tokens[i + 1]);
    }
    EXPECT_NE(text.find(static_cast<char>(batch.targets[i])), std::string::npos);
  }
  EXPECT_EQ(data.batch(4).tokens, batch.tokens);
  EXPECT_NE(data.batch(5).tokens, batch.tokens);
  EXPECT_THROW(TextData("short", 1, 8, 0), Error);
}

}  // namespace
}  // namespace tencache::training_test
