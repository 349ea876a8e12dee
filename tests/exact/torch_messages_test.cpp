// Jobs and messages between `tencache` and `tencache-torch` come back as they were written.
#include "executor/torch_messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "core/error.h"
#include "gmock/gmock.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;

// Of what was written to a stream, one after the other.
class Stream {
 public:
  void write(const TorchMessage& message) { write_message(file_.get(), message); }
  template <typename Kind>
  Kind read() {
    std::rewind(file_.get());
    const std::optional<TorchMessage> message = read_message(file_.get());
    return std::get<Kind>(message.value());
  }
  std::FILE* file() { return file_.get(); }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), std::fclose};
};

template <typename Kind>
Kind through(const Kind& message) {
  Stream stream;
  stream.write(message);
  return stream.read<Kind>();
}

Trace small_trace() {
  Trace trace;
  const TensorId tensor = trace.add_tensor("weights", 64, Role::parameter, true);
  Op op;
  op.name = trace.names.intern("multiply \"it\"");
  op.duration_ns = 5;
  trace.add_op(op, std::vector<TensorId>{tensor}, {});
  return trace;
}

TEST(TorchMessages, AJobComesBack) {
  TorchJob job{.task = TorchTask::train, .config = "a b.yaml", .steps = 3, .device = "auto", .policy = "lru"};
  job.settings = {{"victim", "fifo"}};
  job.policy_libraries = {"/x.so"};
  job.timeline = true;
  const TorchJob read = read_job(write_job(job));
  EXPECT_EQ(read.task, TorchTask::train);
  EXPECT_EQ(read.config, job.config);
  EXPECT_EQ(read.steps, 3u);
  EXPECT_EQ(read.settings, job.settings);
  EXPECT_EQ(read.policy_libraries, job.policy_libraries);
  EXPECT_TRUE(read.timeline);
}

TEST(TorchMessages, WhatIsNoJobIsRefused) {
  const auto message = [](const std::string& text) {
    try {
      read_job(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(""), HasSubstr("tencache run train"));
  EXPECT_THAT(message("{}"), HasSubstr("tencache run train"));
  EXPECT_THAT(message(R"({"build":["0.0",1,1,1],"job":{}})"), HasSubstr("another build"));
}

TEST(TorchMessages, LossesKeepTheirBits) {
  EXPECT_EQ(through(StepDone{7, 0.1f, 12}).loss, 0.1f);
  EXPECT_EQ(through(StepDone{7, 0.1f, 12}).duration_ns, 12);
  EXPECT_TRUE(std::isnan(through(StepDone{1, std::numeric_limits<float>::quiet_NaN(), 1}).loss));
}

TEST(TorchMessages, TimelinesComeAsTheyLieInMemory) {
  TimelinePart part;
  part.timeline.spans.resize(3);
  part.timeline.spans[2].end_ns = 10;  // as a line's end
  part.timeline.spans[2].op = 4;
  part.timeline.occupancy.resize(1);
  part.timeline.occupancy[0].used = 99;
  part.program = small_trace();
  Stream stream;
  stream.write(part);
  stream.write(CheckpointDone{5});
  const TimelinePart read = stream.read<TimelinePart>();
  ASSERT_EQ(read.timeline.spans.size(), 3u);
  EXPECT_EQ(read.timeline.spans[2].end_ns, 10);
  EXPECT_EQ(read.timeline.spans[2].op, 4u);
  EXPECT_EQ(read.timeline.occupancy.at(0).used, 99u);
  EXPECT_EQ(format_trace(read.program), format_trace(part.program));
  EXPECT_EQ(std::get<CheckpointDone>(read_message(stream.file()).value()).steps, 5u);
  EXPECT_FALSE(read_message(stream.file()));
}

// Every counter: bytes that are not zero come back wherever there is a member.
TEST(TorchMessages, AResultComesBackWhole) {
  TrainingDone done;
  std::memset(static_cast<void*>(&done.result.run.window), 1, sizeof(Counters));
  done.result.run.iteration_ns = {1, 2};
  done.result.run.policy_notes = {"note"};
  done.result.run.allocators[1] = AllocatorKind::best_fit;
  done.result.recorded = small_trace();
  done.result.program = {small_trace(), {"placed"}};
  done.result.largest_op = "multiply";
  done.result.training.parameter_count = 12;
  done.result.faults[2] = 3;
  done.on_gpu = true;
  const TrainingDone read = through(done);
  constexpr std::size_t words = sizeof(Counters) / 8;
  std::array<std::uint64_t, words> content{};
  std::memcpy(content.data(), &read.result.run.window, sizeof(Counters));
  constexpr std::size_t tiers = offsetof(Counters, tiers) / 8, tier = sizeof(TierCounters) / 8;
  for (std::size_t i = 0; i < max_tiers; ++i) content[tiers + (i + 1) * tier - 1] = 1;  // padding behind `placeless`
  EXPECT_LE(std::ranges::count(content, 0u), 1) << "a member of Counters is not sent";  // padding before 16-byte ones
  EXPECT_EQ(read.result.run.iteration_ns, done.result.run.iteration_ns);
  EXPECT_EQ(read.result.run.policy_notes, done.result.run.policy_notes);
  EXPECT_EQ(read.result.run.allocators, done.result.run.allocators);
  EXPECT_EQ(format_trace(read.result.recorded), format_trace(done.result.recorded));
  EXPECT_EQ(read.result.program.changes, done.result.program.changes);
  EXPECT_EQ(read.result.largest_op, "multiply");
  EXPECT_EQ(read.result.training.parameter_count, 12u);
  EXPECT_EQ(read.result.faults, done.result.faults);
  EXPECT_TRUE(read.on_gpu);
}

TEST(TorchMessages, AFailureIsRaisedAsItWas) {
  const Failure failure = through(Failure{"no room", 1, true, "multiply", 64});
  try {
    failure.raise();
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(), "no room");
    EXPECT_EQ(error.op(), "multiply");
    EXPECT_EQ(error.bytes_missing(), 64u);
  }
  try {
    Failure{"bad", 2}.raise();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_usage);
  }
}

}  // namespace
}  // namespace tencache
