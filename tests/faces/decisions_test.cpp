// The decision log: what it says of a run whose decisions are known by hand.
#include "answers/timeline/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

// GPU of 100, whole tensors, links of 1 byte/ns. op0 makes a (60), op1 reads w (50, on the CPU): a must leave, it is
// read by op3. op2 writes w, op3 reads a: w, written, must leave.
Trace small_trace() {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 60, Role::activation, false);
  const TensorId w = trace.add_tensor("w", 50, Role::parameter, true);
  add_op(trace, 10, {}, {a});
  add_op(trace, 10, {w}, {});
  add_op(trace, 10, {w}, {w});
  add_op(trace, 10, {a}, {});
  return trace;
}

std::string log_of(const Trace& trace, const std::string& file, std::uint64_t* count = nullptr) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / file).string();
  const MadePolicy made = make_policy("on-demand", {{"chunk", "whole"}});
  const Program program{trace, {}};
  DecisionLog log(path);
  const RunResult result =
      simulate(program, small_machine(100), *made.policy, {.max_iterations = 1, .until_steady = false},
               {.timeline = nullptr, .log = nullptr, .on_iteration = {}, .on_decision = log.sink()});
  EXPECT_TRUE(result.fits) << result.misfit;
  log.commit();
  if (count != nullptr) *count = log.count();
  std::string bytes = read_file(path);
  std::filesystem::remove(path);
  return bytes;
}

Json without(Json line, const std::vector<std::string>& fields) {
  for (const std::string& field : fields) line.erase(field);
  return line;
}

TEST(DecisionsTest, EachLineSaysWhy) {
  std::uint64_t count = 0;
  std::istringstream text(log_of(small_trace(), "decisions.jsonl", &count));
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  EXPECT_EQ(lines.size(), count);
  std::vector<std::string> summary;
  for (const Json& line : lines) {
    summary.push_back(std::to_string(line["time_ns"].get<int>()) + " " + line["op"].get<std::string>() + " " +
                      line["action"].get<std::string>() + " " + line["tensor"].get<std::string>() + ": " +
                      line["why"]["reason"].get<std::string>());
  }
  EXPECT_THAT(summary, testing::ElementsAre("0 op0 allocate a: demand",        //
                                            "10 op1 fetch w: demand",          //
                                            "10 op1 evict a: room",            // 10 to 70; w comes until 120
                                            "140 op2 release w: overwritten",  // the CPU's copy
                                            "140 op3 fetch a: demand",         //
                                            "140 op3 evict w: room",           // 140 to 190; a comes until 250
                                            "260 op3 release a: dead",         // on the GPU …
                                            "260 op3 release a: dead"));       // … and below
  EXPECT_EQ(lines[2], Json::parse(R"({"time_ns": 10, "iteration": 0, "op": "op1", "op_index": 1, "action": "evict",
      "tensor": "a", "tensor_id": 0, "role": "activation", "chunk": 0, "chunks": 1, "bytes": 60, "state": "dirty",
      "next_use_in_ops": 2, "from": "gpu", "to": "cpu",
      "why": {"reason": "room", "op": "op1", "op_index": 1, "for_tensor": "w", "for_chunk": 0, "for_prefetch": false}})"));
  EXPECT_EQ(without(lines[1], {"why"}),
            Json::parse(R"({"time_ns": 10, "iteration": 0, "op": "op1", "op_index": 1, "action": "fetch",
      "tensor": "w", "tensor_id": 1, "role": "parameter", "chunk": 0, "chunks": 1, "bytes": 50, "state": "dirty",
      "next_use_in_ops": 1, "from": "cpu", "to": "gpu"})"));
  EXPECT_EQ(lines[6]["state"], "dead");
  EXPECT_TRUE(lines[6]["next_use_in_ops"].is_null());
}

TEST(DecisionsTest, TheSameInputGivesTheSameBytes) {
  const std::string first = log_of(small_trace(), "first.jsonl");
  EXPECT_EQ(log_of(small_trace(), "again.jsonl"), first);
  EXPECT_EQ(log_of(small_trace(), "compressed.jsonl.zst"), first) << "read_file decompresses";
}

// A prefetch by a policy, which says in answer to what.
TEST(DecisionsTest, PoliciesAreNamedByTheirEvent) {
  const Trace trace = small_trace();
  const Program program{trace, {}};
  ScriptedPolicy policy(whole_tensors(), [](const Event& event, const View&, Actions& actions) {
    if (event.kind == EventKind::op_issued && event.op == 0) actions.fetch(1), actions.clean(1);
  });
  std::vector<Decision> decisions;
  simulate(program, small_machine(200), policy, {.max_iterations = 1, .until_steady = false},
           {.timeline = nullptr,
            .log = nullptr,
            .on_iteration = {},
            .on_decision = [&](const Decision& decision, const View&) { decisions.push_back(decision); }});
  ASSERT_GE(decisions.size(), 2U);
  EXPECT_EQ(decisions[0].kind, Decision::Kind::fetch);
  EXPECT_EQ(decisions[0].why, (Why{.reason = Reason::policy, .event = EventKind::op_issued, .op = 0}));
  EXPECT_EQ(decisions[1].kind, Decision::Kind::refuse);
  EXPECT_EQ(decisions[1].refusal, Refusal::stale) << "w is not on the GPU yet";
  EXPECT_EQ(decisions[1].why.reason, Reason::policy);
}

}  // namespace
}  // namespace tencache
