// Allocation events from files, logs, recordings and traces.
#include "traces/allocations.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "core/error.h"
#include "gmock/gmock.h"
#include "traces/file/allocation_file.h"
#include "traces/import/allocation_log.h"
#include "traces/import/pytorch/kineto_allocations.h"
#include "traces/transform/allocations_of.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// "+0:512", "-0", "|" an iteration; "+1:512@2" on stream 2.
std::vector<std::string> words_of(const Allocations& allocations) {
  std::vector<std::string> words;
  for (const AllocationEvent& event : allocations.events) {
    const std::string block = std::to_string(event.block);
    const std::string stream = event.stream == 0 ? "" : "@" + std::to_string(event.stream);
    switch (event.kind) {
      case AllocationEvent::Kind::allocate:
        words.push_back("+" + block + ":" + std::to_string(event.bytes) + stream);
        break;
      case AllocationEvent::Kind::release:
        words.push_back("-" + block);
        break;
      case AllocationEvent::Kind::iteration:
        words.emplace_back("|");
        break;
    }
  }
  return words;
}

class AllocationFiles : public testing::Test {
 protected:
  AllocationFiles() : folder_(std::filesystem::temp_directory_path() / ("allocations_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~AllocationFiles() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

void expect_error(const std::function<void()>& work, const testing::Matcher<const char*>& message) {
  try {
    work();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), message);
  }
}

TEST_F(AllocationFiles, ANumberIsUsedAgainAfterAFree) {
  const Allocations read = parse_allocations(
      "{\"recorded\":{\"allocated_bytes\":5,\"reserved_bytes\":7}}\n"
      "{\"alloc\":7,\"bytes\":512}\n{\"mark\":\"iteration\"}\n{\"alloc\":9,\"bytes\":1024,\"stream\":2}\n{\"free\":7}\n"
      "{\"alloc\":7,\"bytes\":3}\n",
      "x");
  EXPECT_THAT(words_of(read), ElementsAre("+0:512", "|", "+1:1024@2", "-0", "+2:3"));
  EXPECT_EQ(read.blocks, 3u);
  EXPECT_EQ(read.recorded_allocated, 5u);
  EXPECT_EQ(read.recorded_reserved, 7u);

  for (const std::string name : {"a.alloc.jsonl", "a.alloc.jsonl.zst"}) {
    write_allocations(read, path(name));
    const Allocations again = read_allocations(path(name));
    EXPECT_EQ(words_of(again), words_of(read));
    EXPECT_EQ(again.recorded_reserved, 7u);
  }
}

TEST_F(AllocationFiles, MistakesNameTheLine) {
  const auto parse = [](const char* text) { return [text] { parse_allocations(text, "x.alloc.jsonl"); }; };
  expect_error(parse("{\"alloc\":1,\"bytes\":5}\n{\"alloc\":1,\"bytes\":5}\n"), HasSubstr("x.alloc.jsonl:2: block 1"));
  expect_error(parse("{\"alloc\":1,\"bytes\":5}\n{\"free\":2}\n"), HasSubstr("x.alloc.jsonl:2: block 2 is freed"));
  expect_error(parse("{\"alloc\":1,\"bytes\":5}\n{\"free\":1}\n{\"free\":1}\n"), HasSubstr(":3: block 1 is freed"));
  expect_error(parse("{\"alloc\":1,\"bytes\":0}\n"), HasSubstr(":1: 'bytes' is 0"));
  expect_error(parse("{\"alloc\":1,\"bytes\":-4}\n"), HasSubstr("'bytes' is no whole number"));
  expect_error(parse("{\"alloc\":1}\n"), HasSubstr("'bytes' is missing"));
  expect_error(parse("{\"alloc\":1,\"bytes\":5,\"size\":1}\n"), HasSubstr("unknown key 'size'"));
  expect_error(parse("{\"alloc\":1,\"bytes\":5}\n{\"alloc\":"), HasSubstr(":2: is no JSON object"));
  expect_error(parse("{\"mark\":\"step\"}\n"), HasSubstr("'mark' is \"iteration\""));
  expect_error(parse("{\"mark\":\"iteration\"}\n"), HasSubstr("has no allocation"));
  expect_error(parse("\n"), HasSubstr(":1: is no JSON object"));
}

TEST(AllocationLog, HasMarksOfIterations) {
  const std::string log =
      "1 0x7f0000000000 1024 0\nIteration Index :0\nmicro-batch : F\n1 0x7f0000000400 600 0x55\n"
      "0 0x7f0000000000 1024 0\r\nlayers.0.mlp->MoELayer Layer : F-start\n1 0x7f0000000000 2048 0\n"
      "0 (nil) 0 0\n0 0 512 0\n";
  ASSERT_TRUE(is_allocation_log(log));
  expect_error([&] { parse_allocation_log(log, "log"); }, HasSubstr("log:8:"));
  const Allocations read = parse_allocation_log(log.substr(0, log.find("0 (nil)")), "log");
  EXPECT_THAT(words_of(read), ElementsAre("+0:1024", "|", "+1:600@1", "-0", "+2:2048"));
  expect_error([] { parse_allocation_log("1 0x5 8 0\n1 0x5 8 0\n", "log"); }, HasSubstr("log:2: 0x5 is allocated"));
  expect_error([] { parse_allocation_log("1 0x5 8 0\n0 0x6 8 0\n", "log"); }, HasSubstr("log:2: 0x6 is freed"));
  expect_error([] { parse_allocation_log("1 0x5 8 0\n1 5\n", "log"); }, HasSubstr("log:2: an event is"));
  expect_error([] { parse_allocation_log("1 0x5 8 0\nhello\n", "log"); }, HasSubstr("log:2: is neither"));
  EXPECT_FALSE(is_allocation_log("micro-batch : F\nhello\n1 0x5 8 0\n"));
}

TEST_F(AllocationFiles, OfAKinetoRecordingWhatWasThereBeforeIsBornFirst) {
  const auto memory = [](double time, std::uint64_t address, std::int64_t bytes, std::uint64_t allocated, int type = 1,
                         int device = 0) {
    std::ostringstream event;
    event << R"({"ph":"i","name":"[memory]","ts":)" << time << R"(,"args":{"Addr":)" << address << R"(,"Bytes":)"
          << bytes << R"(,"Total Allocated":)" << allocated << R"(,"Total Reserved":4096,"Device Type":)" << type
          << R"(,"Device Id":)" << device << "}},";
    return event.str();
  };
  // 2000 bytes were there: 500 are freed in it, of the others only the sum is known.
  const std::string text = "{\"traceEvents\":[" + memory(30, 64, -500, 2500) + memory(20, 8, 1000, 3000) +
                           memory(20.5, 8, 64, 64, 0) + memory(20.5, 8, 64, 64, 1, 3) + memory(50, 64, 700, 3200) +
                           R"({"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","ts":40,"dur":9}]})";
  const std::string file = write("kineto.json", text);
  const Allocations read = read_kineto_allocations(file);
  EXPECT_THAT(words_of(read), ElementsAre("+0:500", "+1:1500", "+2:1000", "-0", "|", "+3:700"));
  EXPECT_EQ(read.recorded_allocated, 3200u);
  EXPECT_EQ(read.recorded_reserved, 4096u);
  EXPECT_THAT(read.notes, ElementsAre(HasSubstr("1 blocks, 500 B"), HasSubstr("taken as one")));
  EXPECT_THAT(words_of(read_kineto_allocations(file, 3)), ElementsAre("+0:64", "|"));
  expect_error([&] { read_kineto_allocations(file, 5); }, HasSubstr("no allocation on GPU 5; it has some on 0, 3"));
  const std::string without = write("plain.json", "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"a\",\"ts\":1}]}");
  expect_error([&] { read_kineto_allocations(without); }, HasSubstr("profile_memory=True"));
}

// A weight and its gradient, an activation, a workspace that one op alone has, and a state of the optimizer.
Trace small_trace(Bytes activation) {
  Trace trace;
  const auto tensor = [&](const char* name, Bytes bytes, Role role, bool persistent) {
    trace.add_tensor(name, bytes, role, persistent);
  };
  tensor("weight", 1000, Role::parameter, true);
  tensor("state", 2000, Role::optimizer_state, true);
  tensor("activation", activation, Role::activation, false);
  tensor("gradient", 1000, Role::gradient, false);
  tensor("workspace", 64, Role::workspace, false);
  const auto op = [&](Phase phase, std::vector<TensorId> reads, std::vector<TensorId> writes) {
    Op added;
    added.phase = phase;
    added.duration_ns = 1;
    added.accesses = {static_cast<std::uint32_t>(trace.accesses.size()), static_cast<std::uint32_t>(reads.size()),
                      static_cast<std::uint32_t>(writes.size())};
    trace.accesses.insert(trace.accesses.end(), reads.begin(), reads.end());
    trace.accesses.insert(trace.accesses.end(), writes.begin(), writes.end());
    trace.ops.push_back(added);
  };
  op(Phase::forward, {0}, {4, 2});
  op(Phase::backward, {2, 0}, {3});
  op(Phase::optimizer, {3, 1}, {0, 1});
  return trace;
}

TEST(AllocationsOf, ATraceAreThoseOfItsTensors) {
  const Trace trace = small_trace(300);
  EXPECT_THAT(words_of(allocations_of({&trace}, {2, false})),
              ElementsAre("+0:1000", "|", "+1:64", "+2:300", "-1", "+3:1000", "-2", "+4:2000", "-3",  //
                          "|", "+5:64", "+6:300", "-5", "+7:1000", "-6", "-7"))
      << "the weight is there before, the state is born in the first step";
  EXPECT_THAT(words_of(allocations_of({&trace}, {2, true})),
              ElementsAre("+0:1000", "|", "+1:64", "+2:300", "-1", "+3:1000", "-2", "+4:2000",  //
                          "|", "-3", "+5:64", "+6:300", "-5", "+7:1000", "-6"))
      << "gradients live until the next step begins";
}

TEST(AllocationsOf, SeveralTracesAreIterationsOfOneModel) {
  const Trace one = small_trace(300), other = small_trace(900);
  EXPECT_THAT(words_of(allocations_of({&one, &other}, {1, false})),
              ElementsAre("+0:1000", "|", "+1:64", "+2:300", "-1", "+3:1000", "-2", "+4:2000", "-3",  //
                          "|", "+5:64", "+6:900", "-5", "+7:1000", "-6", "-7"));
  // The batch of another length takes the place of the one before.
  Trace with_input = small_trace(300), longer = small_trace(900);
  with_input.tensors[0].role = longer.tensors[0].role = Role::input;
  longer.tensors[0].bytes = 1500;
  EXPECT_THAT(words_of(allocations_of({&with_input, &longer}, {1, false})),
              ElementsAre("+0:1000", "|", "+1:64", "+2:300", "-1", "+3:1000", "-2", "+4:2000", "-3",  //
                          "|", "-0", "+5:1500", "+6:64", "+7:900", "-6", "+8:1000", "-7", "-8"));
  Trace larger = small_trace(300);
  larger.tensors[0].bytes = 1001;
  expect_error([&] { allocations_of({&one, &larger}, {1, false}); }, HasSubstr("'weight' has 1000 bytes in one trace"));
}

TEST(AllocationsOf, WhatOnlyTheCpuUsesIsNotThere) {
  Trace trace = small_trace(300);
  trace.ops[2].device = Device::cpu;
  EXPECT_THAT(words_of(allocations_of({&trace}, {1, false})),
              ElementsAre("+0:1000", "|", "+1:64", "+2:300", "-1", "+3:1000", "-2", "-3"));
}

}  // namespace
}  // namespace tencache
