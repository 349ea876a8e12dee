// The example of a C++ program (docs/examples/live_gpt): trained with its memory paged it has the bits of plain LibTorch,
// under every policy, with less memory than it needs, and with faults. And the gate: the log of each of these runs,
// replayed through a new engine and a new policy object, gives the same decisions.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

#include "tests/live/live_example_support.h"
#include "tests/replay_log.h"

namespace tencache::live_gpt {
namespace {

using live_test::machine_of;
using testing::HasSubstr;

// The third is the first whose schedule the policy knows, the fourth begins where that one left the tensors.
constexpr std::uint64_t steps = 4;

struct PolicyCase {
  std::string name;
  std::map<std::string, std::string> settings;
};

// Every policy of the registry but that without a limit; those that give up by default where they could evict are told
// to evict.
std::vector<PolicyCase> all_policies() {
  std::vector<PolicyCase> cases;
  for (const PolicyInfo& info : list_policies()) {
    if (info.name == "ideal") continue;
    PolicyCase& added = cases.emplace_back(PolicyCase{info.name, {}});
    for (const tencache::Options::Info& option : info.options) {
      const bool evicts = std::ranges::count(option.choices, "evict") == 1;
      if (option.name == "overflow" && evicts) added.settings = {{"overflow", "evict"}};
    }
  }
  return cases;
}

class LiveExample : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    plain_ = new Result(train(tiny(steps), nullptr));
    demand_ = new Demand(measure_demand(tiny(2)));
  }
  static void TearDownTestSuite() {
    delete plain_;
    delete demand_;
  }

  static Bytes percent_of_peak(std::uint64_t percent) {
    return std::max(demand_->peak_bytes * percent / 100, demand_->largest_op_bytes * 11 / 10) / (4 * KiB) * (4 * KiB);
  }

  static void expect_the_end_of(const Result& whole, const Result& rest) {
    EXPECT_EQ(rest.losses, std::vector<float>(whole.losses.end() - std::ssize(rest.losses), whole.losses.end()));
    EXPECT_TRUE(same_bits(rest.weights, whole.weights));
  }

  // Trains, compares with plain training bit by bit, and replays the log.
  static void train_and_compare(const MachineSpec& machine, const PolicyCase& choice) {
    const MadePolicy made = make_policy(choice.name, choice.settings);
    EventLog log;
    LiveOptions live;
    live.engine.log = &log;
    const Paged paged = train_paged(tiny(steps), machine, *made.policy, live);
    expect_the_end_of(*plain_, paged.result);
    EXPECT_EQ(paged.deviations, 0u) << paged.first_deviation;
    EXPECT_LE(paged.run.peak_bytes[0], machine.tiers[0].capacity);

    const MadePolicy again = make_policy(choice.name, choice.settings);
    const ReplayedLog replayed = replay_log(log, paged.machine, *again.policy);
    EXPECT_EQ(replayed.diverged, "");
    EXPECT_EQ(first_difference(log.decisions, replayed.decisions), "");
    EXPECT_EQ(log.decisions.size(), replayed.decisions.size());
    EXPECT_GT(log.decisions.size(), steps);
  }

  static void train_at(std::uint64_t percent, bool files) {
    const Folder folder;
    const Bytes gpu_bytes = percent_of_peak(percent);
    for (const PolicyCase& choice : all_policies()) {
      if (!files && (choice.name == "flashneuron" || choice.name == "ssdtrain")) continue;  // they need an SSD
      SCOPED_TRACE(choice.name + " at " + std::to_string(percent) + " % of the peak, " +
                   (files ? "files" : "CPU memory") + " behind");
      try {
        train_and_compare(machine_of(gpu_bytes, files ? folder.path() : ""), choice);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }

  static inline Result* plain_ = nullptr;
  static inline Demand* demand_ = nullptr;
};

TEST_F(LiveExample, Learns) {
  const Result longer = train(tiny(30), nullptr);
  EXPECT_LT(longer.losses.back(), longer.losses.front() - 1);
  // Parameters, gradients and two moments, four bytes each, are alive at once.
  EXPECT_GE(demand_->peak_bytes, 16 * longer.parameters);
}

// At 100 % there is room for all but what a policy fetches or keeps without need; at 25 % an op's room is a large part
// of all there is, and evictions and late demands are everywhere. Files bring copies of two hops.
TEST_F(LiveExample, AllOfThePeakWithCpuMemoryBehind) { train_at(100, false); }
TEST_F(LiveExample, QuarterOfThePeakWithCpuMemoryBehind) { train_at(25, false); }
TEST_F(LiveExample, HalfOfThePeakWithFilesBehind) { train_at(50, true); }

TEST_F(LiveExample, TheLargestOpIsEnoughAndLessIsNot) {
  const Bytes least = demand_->largest_op_bytes;
  const MadePolicy enough = make_policy("on-demand");
  const Paged paged = train_paged(tiny(steps), machine_of(least), *enough.policy, {});
  expect_the_end_of(*plain_, paged.result);
  EXPECT_EQ(paged.run.peak_bytes[0], least);

  const MadePolicy less = make_policy("on-demand");
  try {
    train_paged(tiny(steps), machine_of(least - 4 * KiB), *less.policy, {});
    FAIL() << "ran with less memory than its largest op needs";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr(demand_->largest_op));
    EXPECT_EQ(error.op(), demand_->largest_op);
    EXPECT_GT(error.bytes_missing(), 0u);
  }
}

// Ids of live tensors are used again; the timeline must say the recording's instead, from the third step on.
TEST_F(LiveExample, TheTimelineNamesTheRecordingsOpsAndTensors) {
  Timeline timeline;
  LiveOptions live;
  live.engine.timeline = &timeline;
  const MadePolicy made = make_policy("on-demand");
  const Paged paged = train_paged(tiny(steps), machine_of(percent_of_peak(50)), *made.policy, live);
  ASSERT_EQ(paged.deviations, 0u);
  const Trace& trace = paged.program.trace;
  std::size_t op_count = 0, transfer_count = 0;
  for (const Span& span : timeline.spans) {
    if (span.iteration < 2 || span.iteration >= steps) continue;
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

// ---- Checkpoints and faults -----------------------------------------------------------------------------------------

class LiveExampleCheckpoints : public LiveExample {
 protected:
  Options saving(std::uint64_t until, std::uint64_t every) const {
    Options options = tiny(until);
    options.checkpoint = file_;
    options.checkpoint_every = every;
    return options;
  }
  Options resumed(std::uint64_t until) const {
    Options options = tiny(until);
    options.resume = file_;
    return options;
  }
  Paged paged(const Options& options, const std::string& policy, LiveOptions live = {}) const {
    const MadePolicy made = make_policy(policy);
    return train_paged(options, machine_of(percent_of_peak(50)), *made.policy, live);
  }
  static std::string error_of(const Options& options) {
    try {
      train(options, nullptr);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  static std::string content(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  const Folder folder_;
  const std::string file_ = folder_.path() + "/a.checkpoint";
};

TEST_F(LiveExampleCheckpoints, AResumedRunIsTheUninterruptedOne) {
  const Result whole = train(tiny(9), nullptr);
  Options options = saving(5, 2);  // among them one while the schedule is recorded
  std::vector<std::uint64_t> saved;
  options.on_checkpoint = [&saved](std::uint64_t count) { saved.push_back(count); };
  const Paged first = paged(options, "10cache");
  EXPECT_EQ(saved, (std::vector<std::uint64_t>{2, 4, 5}));
  EXPECT_EQ(first.deviations, 0u) << first.first_deviation;

  const Result rest = train(resumed(9), nullptr);
  EXPECT_EQ(rest.resumed_steps, 5u);
  EXPECT_EQ(rest.losses.size(), 4u);
  expect_the_end_of(whole, rest);
  expect_the_end_of(whole, paged(resumed(9), "lru").result);
}

// What fails for good ends the run with one error, whenever it does, be it a copy or room; the checkpoint before it
// stays whole, and a run that goes on from it ends as if nothing had been.
TEST_F(LiveExampleCheckpoints, AFailureForGoodLeavesTheLastOne) {
  const Result whole = train(tiny(8), nullptr);
  LiveOptions counting;
  counting.machine.faults = parse_fault_plan("delay=1:1ns");
  const std::uint64_t copies = paged(tiny(8), "on-demand", counting).faults[static_cast<std::size_t>(FaultKind::delay)];
  ASSERT_GT(copies, 100u);
  std::uint64_t resumed_runs = 0;
  for (const char* kind : {"device_gone", "no_memory"}) {
    for (const std::uint64_t eighths : {1u, 4u, 5u, 6u}) {
      Options options = saving(8, 2);
      std::uint64_t saved = 0, steps_done = 0;
      options.on_checkpoint = [&saved](std::uint64_t count) { saved = count; };
      options.on_step = [&](std::uint64_t step, float, Nanoseconds) { steps_done = step; };
      LiveOptions live;
      const std::string plan = std::string(kind) + "=@" + std::to_string(copies * eighths / 8) + "+";
      live.machine.faults = parse_fault_plan(plan);
      try {
        paged(options, "on-demand", live);
        ADD_FAILURE() << plan << " was survived";
      } catch (const Error& error) {
        EXPECT_THAT(std::string(error.what()), HasSubstr("3 times in a row: ")) << plan;
        EXPECT_THAT(std::string(error.what()), HasSubstr("(injected)")) << plan;
      }
      EXPECT_LT(steps_done, 8u) << plan;
      if (saved == 0) continue;
      const Result rest = train(resumed(8), nullptr);
      EXPECT_EQ(rest.resumed_steps, saved) << plan;
      expect_the_end_of(whole, rest);
      ++resumed_runs;
    }
  }
  EXPECT_GT(resumed_runs, 2u);
}

// What does not fail for good changes no bit.
TEST_F(LiveExampleCheckpoints, TrainingUnderFaultsComputesTheSameBits) {
  FaultCounts counts{};
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    LiveOptions live;
    live.machine.faults = parse_fault_plan("seed=" + std::to_string(seed) +
                                           ",copy_error=0.01,delay=0.02:100us,slow_link=0.1:3x,no_memory=0.01");
    SCOPED_TRACE(to_string(*live.machine.faults));
    const Paged disturbed = paged(tiny(steps), seed % 2 == 0 ? "on-demand" : "10cache", live);
    expect_the_end_of(*plain_, disturbed.result);
    for (std::size_t kind = 0; kind < counts.size(); ++kind) counts[kind] += disturbed.faults[kind];
  }
  for (const FaultKind kind : {FaultKind::copy_error, FaultKind::delay, FaultKind::slow_link, FaultKind::no_memory}) {
    EXPECT_GT(counts[static_cast<std::size_t>(kind)], 0u) << to_string(kind);
  }
}

// The disk is full while a checkpoint is written: no file may be longer than the limit.
TEST_F(LiveExampleCheckpoints, AWriteThatFailsLeavesTheOneBefore) {
  train(saving(1, 0), nullptr);
  const std::string before = content(file_);
  struct rlimit was {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {100'000, was.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of(saving(2, 0));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("a.checkpoint: cannot be written"));
  EXPECT_TRUE(content(file_) == before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "nothing temporary is left";
}

TEST_F(LiveExampleCheckpoints, WhatDoesNotSuitIsOneClearError) {
  train(saving(2, 0), nullptr);
  Options other = resumed(4);
  other.layers = 3;
  EXPECT_THAT(error_of(other), HasSubstr("a.checkpoint: this checkpoint is of another model"));
  other = resumed(4);
  other.resume += ".none";
  EXPECT_THAT(error_of(other), HasSubstr("the checkpoint cannot be read"));
}

}  // namespace
}  // namespace tencache::live_gpt
