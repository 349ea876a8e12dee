// What a training step depends on: recomputation, bf16 with masters, and checkpoints, from which a run goes on as if it
// had never been interrupted. All bit by bit, plainly and with the memory paged.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "policies/registry.h"
#include "tests/live/live_training_support.h"
#include "traces/file/file_io.h"

namespace tencache::training_test {
namespace {

using testing::HasSubstr;

// ---- Recomputation and bf16 -----------------------------------------------------------------------------------------

// Trained with its memory paged, at 60 % of what it needs (or the largest op) and with the rest in CPU memory.
TrainingResult train_tiny_paged(const TrainingConfig& config, const TextData& data, const TrainingOptions& options) {
  const PagedTraining demand = measure_demand(config, data);
  const Bytes gpu = std::max(demand.peak_live_bytes * 6 / 10, demand.largest_op_bytes) / (4 * KiB) * (4 * KiB);
  const MadePolicy made = make_policy("lru");
  LiveOptions live;
  live.machine.pace = false;
  PagedTraining paged = train_paged(config, data, with_cpu_memory_behind(gpu), *made.policy, live, options);
  EXPECT_GT(paged.run.window.evictions, 0u);
  EXPECT_EQ(paged.deviations, 0u) << paged.first_deviation;
  return paged.training;
}

TEST(Recomputation, DoesNotChangeABitAndNeedsLessMemory) {
  at::set_num_threads(1);
  TrainingConfig config = tiny();
  config.layers = 4;
  config.context = 64;
  ASSERT_GT(config.dropout, 0) << "random numbers are to be drawn again";
  const TextData data = text_for(config);
  const TrainingOptions options{.steps = 4, .keep_weights = true, .on_step = {}};
  for (const TrainingPrecision precision : {TrainingPrecision::fp32, TrainingPrecision::bf16}) {
    config.precision = precision;
    config.recompute = Recompute::none;
    const TrainingResult kept = train_plain(config, data, options);
    const Bytes kept_bytes = measure_demand(config, data).peak_live_bytes;
    config.recompute = Recompute::block;
    const TrainingResult recomputed = train_plain(config, data, options);
    EXPECT_EQ(recomputed.losses, kept.losses);
    EXPECT_TRUE(same_bits(recomputed.weights, kept.weights));
    EXPECT_LT(measure_demand(config, data).peak_live_bytes, kept_bytes * 8 / 10);
    const TrainingResult paged = train_tiny_paged(config, data, options);
    EXPECT_EQ(paged.losses, kept.losses);
    EXPECT_TRUE(same_bits(paged.weights, kept.weights));
  }
}

TEST(Bfloat16Training, LearnsOnMastersInFp32) {
  at::set_num_threads(1);
  TrainingConfig config = tiny();
  config.adamw.learning_rate = 1e-3;
  const TextData data = text_for(config);
  const TrainingOptions options{.steps = 30, .keep_weights = true, .on_step = {}};
  const TrainingResult fp32 = train_plain(config, data, options);
  config.precision = TrainingPrecision::bf16;
  const TrainingResult bf16 = train_plain(config, data, options);
  EXPECT_NE(bf16.losses, fp32.losses);
  EXPECT_NEAR(bf16.losses.back(), fp32.losses.back(), 0.1);
  for (const float weight : bf16.weights) ASSERT_EQ(to_float(to_bfloat16(weight)), weight);
  // Gains of normalisation start at 1, where bf16 numbers below lie 2^-8 apart. Thirty updates of at most 2^-13 are
  // each rounded away, but add up in a master.
  config.adamw = {.learning_rate = 1.0 / 8192, .weight_decay = 0};
  const TrainingResult slow = train_plain(config, data, options);
  EXPECT_GT(std::ranges::count(slow.weights, 1.0f - 1.0f / 256), 0);
}

// ---- Checkpoints ----------------------------------------------------------------------------------------------------

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  TrainingOptions until(std::uint64_t steps) const {
    TrainingOptions options;
    options.steps = steps;
    options.keep_weights = true;
    return options;
  }
  TrainingOptions resumed(std::uint64_t steps) const {
    TrainingOptions options = until(steps);
    options.resume = file_;
    return options;
  }
  // With half of the memory that it needs, CPU memory behind.
  PagedTraining paged(const TrainingOptions& options, const std::string& policy, LiveOptions live = {}) const {
    const Bytes gpu = std::max(demand_.peak_live_bytes / 2, demand_.largest_op_bytes * 11 / 10) / (4 * KiB) * (4 * KiB);
    live.machine.pace = false;
    const MadePolicy made = make_policy(policy);
    return train_paged(config_, data_, with_cpu_memory_behind(gpu), *made.policy, live, options);
  }
  std::string error_of(const TrainingConfig& config, const TextData& data, const TrainingOptions& options) const {
    try {
      train_plain(config, data, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  void expect_the_end_of(const TrainingResult& whole, const TrainingResult& rest) const {
    EXPECT_EQ(rest.losses, std::vector<float>(whole.losses.end() - std::ssize(rest.losses), whole.losses.end()));
    EXPECT_TRUE(same_bits(rest.weights, whole.weights));
  }
  static std::string content(const std::string& file) { return read_file(file); }

  const TrainingConfig config_ = tiny();
  const TextData data_ = text_for(config_);
  const PagedTraining demand_ = measure_demand(config_, data_);
  const Folder folder_;
  const std::string file_ = folder_.path() + "/a.checkpoint";
};

TEST_F(Checkpoints, AResumedRunIsTheUninterruptedOne) {
  const TrainingResult whole = train_plain(config_, data_, until(9));
  TrainingOptions options = until(5);
  options.checkpoint = file_;
  options.checkpoint_every = 2;  // among them one while the schedule is recorded
  std::vector<std::uint64_t> saved;
  options.on_checkpoint = [&saved](std::uint64_t steps) { saved.push_back(steps); };
  const PagedTraining first = paged(options, "10cache");
  EXPECT_EQ(saved, (std::vector<std::uint64_t>{2, 4, 5}));
  EXPECT_EQ(first.deviations, 0u) << first.first_deviation;
  const std::string from_paged = content(file_);

  const TrainingResult rest = train_plain(config_, data_, resumed(9));
  EXPECT_EQ(rest.resumed_steps, 5u);
  EXPECT_EQ(rest.losses.size(), 4u);
  expect_the_end_of(whole, rest);
  expect_the_end_of(whole, paged(resumed(9), "lru").training);

  train_plain(config_, data_, options);
  EXPECT_TRUE(content(file_) == from_paged) << "equal states, equal files";
}

TEST_F(Checkpoints, OfBf16WithRecomputationResumesToo) {
  TrainingConfig config = config_;
  config.precision = TrainingPrecision::bf16;
  config.recompute = Recompute::block;
  const TrainingResult whole = train_plain(config, data_, until(4));
  TrainingOptions options = until(2);
  options.checkpoint = file_;
  train_plain(config, data_, options);
  config.recompute = Recompute::none;
  config.sub_group_parameters = 1;
  expect_the_end_of(whole, train_plain(config, data_, resumed(4)));
}

// What fails for good ends the run with one error, whenever it does, be it a copy or room; the checkpoint before it
// stays whole, and a run that goes on from it ends as if nothing had been.
TEST_F(Checkpoints, AFailureForGoodLeavesTheLastOne) {
  const TrainingResult whole = train_plain(config_, data_, until(8));
  LiveOptions counting;
  counting.machine.faults = parse_fault_plan("delay=1:1ns");
  const std::uint64_t copies =
      paged(until(8), "on-demand", counting).faults[static_cast<std::size_t>(FaultKind::delay)];
  ASSERT_GT(copies, 100u);
  std::uint64_t resumed_runs = 0;
  for (const char* kind : {"device_gone", "no_memory"}) {
    for (const std::uint64_t eighths : {1u, 4u, 5u, 6u}) {
      TrainingOptions options = until(8);
      options.checkpoint = file_;
      options.checkpoint_every = 2;
      std::uint64_t saved = 0, steps_done = 0;
      options.on_checkpoint = [&saved](std::uint64_t steps) { saved = steps; };
      options.on_step = [&](std::uint64_t step, float, Nanoseconds) { steps_done = step; };
      LiveOptions live;
      const std::string plan = std::string(kind) + "=@" + std::to_string(copies * eighths / 8) + "+";
      live.machine.faults = parse_fault_plan(plan);
      testing::internal::CaptureStderr();
      try {
        paged(options, "on-demand", live);
        ADD_FAILURE() << plan << " was survived";
      } catch (const Error& error) {
        EXPECT_THAT(std::string(error.what()), HasSubstr("3 times in a row: ")) << plan;
        EXPECT_THAT(std::string(error.what()), HasSubstr("(injected)")) << plan;
      }
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << plan;
      EXPECT_LT(steps_done, 8u) << plan;
      if (saved == 0) continue;
      const TrainingResult rest = train_plain(config_, data_, resumed(8));
      EXPECT_EQ(rest.resumed_steps, saved) << plan;
      expect_the_end_of(whole, rest);
      ++resumed_runs;
    }
  }
  EXPECT_GT(resumed_runs, 2u);
}

// What does not fail for good changes no bit.
TEST_F(Checkpoints, TrainingUnderFaultsComputesTheSameBits) {
  const TrainingResult whole = train_plain(config_, data_, until(4));
  FaultCounts counts{};
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    LiveOptions live;
    live.machine.faults = parse_fault_plan("seed=" + std::to_string(seed) +
                                           ",copy_error=0.01,delay=0.02:100us,slow_link=0.1:3x,no_memory=0.01");
    SCOPED_TRACE(to_string(*live.machine.faults));
    const PagedTraining disturbed = paged(until(4), seed % 2 == 0 ? "on-demand" : "10cache", live);
    expect_the_end_of(whole, disturbed.training);
    for (std::size_t kind = 0; kind < counts.size(); ++kind) counts[kind] += disturbed.faults[kind];
  }
  for (const FaultKind kind : {FaultKind::copy_error, FaultKind::delay, FaultKind::slow_link, FaultKind::no_memory}) {
    EXPECT_GT(counts[static_cast<std::size_t>(kind)], 0u) << to_string(kind);
  }
}

// The disk is full while a checkpoint is written: no file may be longer than the limit.
TEST_F(Checkpoints, AWriteThatFailsLeavesTheOneBefore) {
  TrainingOptions options = until(1);
  options.checkpoint = file_;
  train_plain(config_, data_, options);
  const std::string before = content(file_);

  struct rlimit was {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {100'000, was.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  options.steps = 2;
  const std::string error = error_of(config_, data_, options);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("a.checkpoint: cannot be written"));
  EXPECT_TRUE(content(file_) == before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1) << "nothing temporary is left";
}

TEST_F(Checkpoints, WhatDoesNotSuitIsOneClearError) {
  TrainingOptions options = until(2);
  options.checkpoint = file_;
  train_plain(config_, data_, options);
  EXPECT_THAT(error_of(config_, data_, resumed(2)), HasSubstr("2 steps behind it, and 2 are asked for"));

  TrainingConfig other = config_;
  other.file = "other.yaml";
  other.layers = 3;
  EXPECT_THAT(error_of(other, data_, resumed(4)), HasSubstr("its layers is 2, that of other.yaml is 3"));
  const TextData other_text(data_.text() + "!", config_.batch, config_.context, config_.seed);
  EXPECT_THAT(error_of(config_, other_text, resumed(4)), HasSubstr("its text_sha256 is"));

  const std::string whole = content(file_);
  for (const std::size_t at : {std::size_t{5}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(file_, damaged);
    EXPECT_THAT(error_of(config_, data_, resumed(4)), HasSubstr("is damaged (its SHA-256 is wrong)"));
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{64}, whole.size() / 2, whole.size() - 1}) {
    write_file(file_, whole.substr(0, size));
    EXPECT_THAT(error_of(config_, data_, resumed(4)), HasSubstr("is damaged")) << size;
  }
  const auto with_digest = [](const std::string& text) { return text + sha256_hex(text); };
  write_file(file_, with_digest("{\"format\":\"tencache checkpoint\",\"version\":2}\n"));
  EXPECT_THAT(error_of(config_, data_, resumed(4)), HasSubstr("of version 2; this program reads version 1"));
  write_file(file_, with_digest("{}\n"));
  EXPECT_THAT(error_of(config_, data_, resumed(4)), HasSubstr("is no checkpoint"));
  EXPECT_THAT(error_of(config_, data_,
                       [&] {
                         TrainingOptions absent = until(4);
                         absent.resume = folder_.path() + "/none";
                         return absent;
                       }()),
              HasSubstr("cannot be opened"));
}

}  // namespace
}  // namespace tencache::training_test
