// What gates decide is not known before they are done: traces are sealed, policies hear of it, and none decides
// otherwise because of what is still to be revealed.
#include "core/reveal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/forwarding_policy.h"
#include "policies/planning/expert_odds.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "studies/tune_run.h"
#include "tests/generate_cases.h"
#include "tests/small_cases.h"
#include "traces/generate/generate.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<TensorId> list(std::span<const TensorId> tensors) { return {tensors.begin(), tensors.end()}; }

// A layer of three experts of two weights each; its gate, then ops of experts 2 and 0; then the gate again and expert 2.
//   0 gate   1 up of 2   2 down of 2   3 up of 0   4 down of 0   5 gate   6 up of 2   7 down of 2
struct TwoGates {
  TwoGates() {
    x = trace.add_tensor("x", 8, Role::activation, false);
    for (const char* expert : {"0", "1", "2"}) {
      for (const char* weight : {".up", ".down"}) {
        weights.push_back(trace.add_tensor(std::string("mlp.experts.") + expert + weight, 10, Role::expert, true));
      }
    }
    add("gate", "mlp", none, {}, {x});
    run_expert(2, 0);
    run_expert(0, 0);
    add("gate", "mlp", none, {}, {x});
    run_expert(2, 5);
  }
  void run_expert(std::size_t expert, OpIndex gate) {
    const std::string module = "mlp.experts." + std::to_string(expert);
    const TensorId inner = trace.add_tensor(module + ".inner", 4, Role::activation, false);
    add("up", module, gate, {x, weights[2 * expert]}, {inner});
    add("down", module, gate, {inner, weights[2 * expert + 1]}, {x});
  }
  void add(const char* name, const std::string& module, OpIndex gate, std::vector<TensorId> reads,
           std::vector<TensorId> writes) {
    Op op = make_op(trace, name, module, Phase::decode, 10);
    op.detail = trace.add_detail({.revealed_by = gate});
    trace.add_op(op, reads, writes);
  }

  Trace trace;
  TensorId x = none;
  std::vector<TensorId> weights;  // 1 to 6
};

TEST(Sealed, HidesWhichExpertsAndNotHowMany) {
  const TwoGates made;
  const Trace trace = sealed(made.trace);
  ASSERT_EQ(trace.ops.size(), made.trace.ops.size());
  for (const OpIndex op : {1, 2, 3, 4, 6, 7}) {
    EXPECT_THAT(trace.reads(trace.ops[op]), testing::Each(testing::AnyOf(0u, 7u, 8u, 9u))) << op;
    EXPECT_EQ(trace.detail(trace.ops[op]).expert_bytes, 10u) << op;
    EXPECT_EQ(trace.detail(trace.ops[op]).revealed_by, op < 5 ? 0u : 5u);
    for (const TensorId tensor : trace.writes(trace.ops[op])) {
      EXPECT_THAT(std::string(trace.name(trace.tensors[tensor])), testing::Not(HasSubstr("experts")));
    }
  }
  EXPECT_EQ(trace.module(trace.ops[1]), "mlp.chosen 0");
  EXPECT_EQ(trace.module(trace.ops[2]), "mlp.chosen 0");
  EXPECT_EQ(trace.module(trace.ops[3]), "mlp.chosen 1");
  EXPECT_EQ(trace.module(trace.ops[6]), "mlp.chosen 0");
  EXPECT_EQ(trace.module(trace.ops[5]), "mlp");
  EXPECT_EQ(trace.tensors.size(), made.trace.tensors.size());
  trace.validate();
  // A choice of others is the same to see.
  TwoGates other;
  for (TensorId& tensor : other.trace.accesses) {
    if (tensor >= 1 && tensor <= 6) tensor = (tensor + 1) % 6 + 1;
  }
  const Trace same = sealed(other.trace);
  EXPECT_EQ(same.accesses, trace.accesses);
}

TEST(Experts, AreNamedAfterTheirGatesModule) {
  const TwoGates made;
  const Experts experts(made.trace);
  EXPECT_THAT(list(experts.gates()), ElementsAre(0, 5));
  EXPECT_EQ(experts.layers(), 1u);
  EXPECT_EQ(experts.count(0), 3u);
  EXPECT_EQ(experts.count(1), 0u);
  EXPECT_THAT(list(experts.weights(5, 1)), ElementsAre(3, 4));
  EXPECT_EQ(experts.place(5).expert, 2u);
  EXPECT_EQ(experts.place(0).layer, none);
}

// As many as were chosen, of those that may be, whole and each once a gate; the same seed draws the same.
TEST(DrawExperts, ChoosesAsManyOthers) {
  const TwoGates made;
  std::map<std::vector<TensorId>, int> seen;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Trace trace = draw_experts(sealed(made.trace), seed);
    trace.validate();
    std::vector<TensorId> chosen;
    for (const OpIndex op : {1, 3, 6}) {
      const TensorId up = trace.reads(trace.ops[op]).back(), down = trace.reads(trace.ops[op + 1]).back();
      EXPECT_TRUE(up == 1 || up == 3 || up == 5);
      EXPECT_EQ(down, up + 1);
      chosen.push_back(up);
    }
    EXPECT_NE(chosen[0], chosen[1]);
    EXPECT_EQ(draw_experts(sealed(made.trace), seed).accesses, trace.accesses);
    ++seen[chosen];
  }
  EXPECT_EQ(seen.size(), 3u * 2 * 3);
  for (const auto& [chosen, times] : seen) EXPECT_NEAR(times, 300. / 18, 15);
  EXPECT_EQ(draw_experts(made.trace).accesses, made.trace.accesses);  // not sealed
}

// Twice what was recorded as [2, 0] and [2]: first [0, 1] and [2], then [1], which leaves expert 0 as it was, and [0].
TEST(RepeatStep, ReadsWhatEachStepChose) {
  TwoGates made;
  made.trace.header.provenance.made_by = MadeBy::recorded;
  EXPECT_EQ(repeated_steps(made.trace), 1u);
  const std::vector<StepChoices> choices = {{{0, 1}, {2}}, {{1}, {0}}};
  const Trace trace = repeat_step(made.trace, choices);
  trace.validate();
  EXPECT_EQ(repeated_steps(trace), 2u);
  ASSERT_EQ(trace.ops.size(), 16u);
  const auto up = [&](OpIndex op) { return trace.reads(trace.ops[op]).back(); };
  const std::vector<TensorId> expected = {1, 3, 5, 3, 1, 1};
  std::size_t next = 0;
  for (const OpIndex op : {1, 3, 6, 9, 11, 14}) {
    EXPECT_EQ(up(op), expected[next]) << op;
    EXPECT_EQ(up(op + 1), expected[next++] + 1) << op;
  }
  EXPECT_EQ(trace.module(trace.ops[1]), "mlp.experts.0");
  EXPECT_EQ(trace.module(trace.ops[2]), "mlp.experts.0");
  EXPECT_EQ(trace.module(trace.ops[9]), "mlp.experts.1");
  EXPECT_EQ(trace.detail(trace.ops[9]).revealed_by, 8u);
  EXPECT_EQ(trace.detail(trace.ops[14]).revealed_by, 13u);
  EXPECT_EQ(trace.detail(trace.ops[14]).step, 1u);
  EXPECT_NE(trace.writes(trace.ops[8])[0], made.x) << "what does not persist is each step's own";
  EXPECT_EQ(trace.tensors.size(), made.trace.tensors.size() + 4);
}

TEST(Experts, AreFoundByName) {
  const TwoGates made;
  const Experts experts(made.trace);
  EXPECT_EQ(experts.find(5, "experts.2"), 2u);
  EXPECT_EQ(experts.find(5, "experts.3"), none);
  EXPECT_EQ(experts.find(1, "experts.2"), none);
}

// The recorded step chose 2 and 0; this one chooses 1, and then all three.
TEST(Revelations, AreOfWhatALiveProgramChose) {
  const TwoGates made;
  const Experts experts(made.trace);
  Revelations revelations(made.trace);
  const auto reveal = [&](std::vector<std::uint32_t> chosen) {
    std::vector<TensorId> decided;
    for (const Use& use : revelations.reveal(0, experts, chosen)) decided.push_back(use.tensor);
    return decided;
  };
  EXPECT_THAT(reveal({1}), ElementsAre(3, 4));
  EXPECT_EQ(revelations.next_use(3, 0), 1u);
  EXPECT_EQ(revelations.next_use(4, 0), 2u);
  EXPECT_EQ(revelations.next_use(5, 0), none) << "the recorded choice";
  EXPECT_THAT(revelations.uses(3), IsEmpty()) << "there is no second expert";
  revelations.done(1);
  EXPECT_FALSE(revelations.shown(1));
  // Op 2 never came.
  EXPECT_THAT(reveal({0, 1, 2}), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(revelations.next_use(1, 0), 1u);
  EXPECT_EQ(revelations.next_use(4, 0), 4u);
  EXPECT_EQ(revelations.next_use(5, 0), none) << "a third expert has no ops";
}

// 10 ns an op, weights on the GPU. The view knows nothing of experts until 10 ns; then each expert's next use until that
// op is over.
TEST(Revelations, AreToldWhenTheGateIsDone) {
  const TwoGates made;
  std::vector<std::string> told;
  Layout layout = whole_tensors();
  layout.initial = for_every_role(TierId{0});
  ScriptedPolicy policy(layout, [&](const Event& event, const View& view, Actions&) {
    if (view.iteration > 0) return;
    if (event.kind != EventKind::revealed && event.kind != EventKind::op_issued) return;
    std::ostringstream line;
    line << view.now << (event.kind == EventKind::revealed ? " reveals" : " issues") << " " << event.op << ":";
    if (event.kind == EventKind::revealed) {
      for (const Use& use : event.uses) line << " " << use.tensor;
    }
    line << "; next";
    for (TensorId weight = 1; weight <= 6; ++weight) {
      const std::uint32_t distance = view.distance_to_next_use(weight);
      if (distance != none) line << " " << weight << " in " << distance;
    }
    EXPECT_EQ(view.revealed_uses(6).size(), view.now == 60 ? 1u : 0u);  // from its gate to its end
    told.push_back(line.str());
  });
  EXPECT_TRUE(simulate({made.trace, {}}, small_machine(1000), policy, {.max_iterations = 2}).fits);
  EXPECT_THAT(told,
              ElementsAre("0 issues 0:; next",  //
                          "10 reveals 0: 5 6 1 2; next 1 in 3 2 in 4 5 in 1 6 in 2",
                          "10 issues 1:; next 1 in 2 2 in 3 6 in 1",  //
                          "20 issues 2:; next 1 in 1 2 in 2",         //
                          "30 issues 3:; next 2 in 1",                //
                          "40 issues 4:; next",                       //
                          "50 issues 5:; next",                       //
                          "60 reveals 5: 5 6; next 5 in 1 6 in 2",    //
                          "60 issues 6:; next 6 in 1",                //
                          "70 issues 7:; next"));
}

// By hand: gates 0 and 5 chose {2, 0} and {2}. With 4 gates before, of which each expert has a half ((2 + 1) of 2 × 3):
// expert 0 has (1 + 2) / 6, expert 1 2 / 6, and 2, chosen last, (2 + 2) / 6 = 2/3 otherwise. One of the two that could
// be chosen again was: (1 + 4 × 2/3) / (2 + 4) = 11/18; 11/18 + 7/18 × (1 + 3/2) = 57/36.
TEST(ExpertOdds, CountChoicesAndRepetitions) {
  const TwoGates made;
  const Trace trace = sealed(made.trace);
  ExpertOdds odds(trace);
  EXPECT_DOUBLE_EQ(odds.gates_until(0, 1), 2);
  odds.chosen(0, std::vector<Use>{{5, true, false}, {6, true, false}, {1, true, false}, {2, true, false}});
  odds.chosen(5, std::vector<Use>{{5, true, false}, {6, true, false}});
  EXPECT_DOUBLE_EQ(odds.gates_until(0, 0), 2);
  EXPECT_DOUBLE_EQ(odds.gates_until(0, 1), 3);
  EXPECT_DOUBLE_EQ(odds.gates_until(0, 2), 57. / 36);
  EXPECT_TRUE(odds.of_expert(3));
  EXPECT_FALSE(odds.of_expert(0));
}

// A gate that chooses all says nothing of which come next: (1 + 2) of 1 + 4 for each, 5/3.
TEST(ExpertOdds, AGateThatChoosesAllRepeatsNothing) {
  const TwoGates made;
  const Trace trace = sealed(made.trace);
  ExpertOdds odds(trace);
  std::vector<Use> all;
  for (TensorId weight = 1; weight <= 6; ++weight) all.push_back({weight, true, false});
  odds.chosen(0, all);
  for (const std::uint32_t expert : {0u, 1u, 2u}) EXPECT_DOUBLE_EQ(odds.gates_until(0, expert), 5. / 3);
}

// As above, but half of the experts are kept: of expert 2 three quarters of 57/36 and one of 3/2.
TEST(ExpertOdds, TheLastGateCountsAsWhatIsNotKept) {
  const TwoGates made;
  const Trace trace = sealed(made.trace);
  ExpertOdds odds(trace, 0.5);
  odds.chosen(0, std::vector<Use>{{5, true, false}, {6, true, false}, {1, true, false}, {2, true, false}});
  odds.chosen(5, std::vector<Use>{{5, true, false}, {6, true, false}});
  EXPECT_DOUBLE_EQ(odds.gates_until(0, 2), 57. / 48 + 3. / 8);
  EXPECT_DOUBLE_EQ(odds.gates_until(0, 0), 2);
}

// ---- No leak --------------------------------------------------------------------------------------------------------

Trace small_mixture(std::uint64_t requests) {
  GenerateOptions options = small("mixtral-8x7b");
  options.model.layers = 3;
  options.batch = requests;
  options.sequence_lengths = {20};
  options.forward_only = true;
  options.generation = TextGeneration{.new_tokens = 5, .placeable = Placeable::all};
  return generate(options);
}

// From that step on every gate chooses others of its layer's experts, as many.
Trace with_other_choices(Trace trace, std::uint32_t from_step) {
  const Experts experts(trace);
  std::mt19937_64 random(7);
  std::map<OpIndex, std::vector<std::uint32_t>> others;  // by gate
  const Trace before = trace;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    Op& op = trace.ops[index];
    const OpDetail& detail = before.detail(op);
    if (detail.revealed_by == none || detail.step < from_step) continue;
    op.module = trace.names.intern("other than " + std::string(trace.module(op)));
    std::vector<std::uint32_t>& other = others[detail.revealed_by];
    if (other.empty()) {
      other.resize(experts.count(detail.revealed_by));
      std::iota(other.begin(), other.end(), 0);
      std::shuffle(other.begin(), other.end(), random);
    }
    for (std::uint32_t i = 0; i < op.accesses.reads; ++i) {
      TensorId& tensor = trace.accesses[op.accesses.first + i];
      const Experts::Place place = experts.place(tensor);
      if (place.layer == none) continue;
      const auto weights = experts.weights_in(place.layer, place.expert);
      const auto at = std::ranges::find(weights, tensor) - weights.begin();
      tensor = experts.weights_in(place.layer, other[place.expert])[static_cast<std::size_t>(at)];
    }
  }
  trace.validate();
  return trace;
}

// All that a policy answers until the first gate of the step has decided.
class Recorded final : public ForwardingPolicy {
 public:
  Recorded(Policy& asked, OpIndex last_gate) : ForwardingPolicy(asked), last_gate_(last_gate) {}

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = asked_.layout(machine, program);
    answers_ << "start";
    for (const std::uint8_t tiers : layout.start) answers_ << " " << int{tiers};
    answers_ << "\n";
    return layout;
  }
  void on(const Event& event, const View& view, Actions& actions) override {
    over_ |= event.kind == EventKind::revealed && event.op >= last_gate_;
    ForwardingPolicy::on(event, view, actions);
    for (const Action& action : actions.list()) {
      if (over_) return;
      answers_ << view.now << " " << to_string(action.verb) << " " << action.tensor << " " << action.chunk << " "
               << int{action.tier} << " " << int{action.destination} << "\n";
    }
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    asked_.make_room(request, view, victims);
    if (over_) return;
    answers_ << view.now << " room of " << request.bytes << ":";
    for (const ChunkId chunk : victims) answers_ << " " << chunk;
    answers_ << "\n";
  }
  std::string answers() const { return answers_.str(); }
  bool over() const { return over_; }

 private:
  const OpIndex last_gate_;
  bool over_ = false;
  mutable std::ostringstream answers_;
};

MachineSpec machine_for(const Trace& trace) {
  MachineSpec machine = small_machine(bytes_of_role(trace, Role::expert, true) / 2, true);
  machine.tiers[1].capacity = machine.tiers[2].capacity = 1'000 * GiB;
  for (Link& link : machine.links) link.bandwidth = 20'000'000'000;
  machine.cpu.flops_per_second = 1e12;
  machine.cpu.bandwidth = 100'000'000'000;
  machine.cpu.adam_parameters_per_second = 1'000'000'000;
  machine.validate();
  return machine;
}

struct Answers {
  std::string text;
  bool ran = false;
};

// Until the first gate of the step in the first iteration; or why it does not run.
Answers answers_of(const std::string& name, const Settings& settings, const Trace& trace, const MachineSpec& machine,
                   std::uint32_t step) {
  OpIndex gate = none;
  for (OpIndex op = 0; op < trace.ops.size() && gate == none; ++op) {
    const OpDetail& detail = trace.detail(trace.ops[op]);
    if (detail.step >= step && detail.revealed_by != none) gate = detail.revealed_by;
  }
  const MadePolicy made = make_policy(name, settings);
  std::ostringstream text;
  try {
    prepare(trace, *made.policy, machine, rehearse);
    const Program program = lower(trace, *made.policy, machine);
    for (OpIndex op = 0; op < program.trace.ops.size(); ++op) {
      const OpIndex decided_by = program.trace.detail(program.trace.ops[op]).revealed_by;
      if (decided_by == none || decided_by < gate) text << to_string(program.trace.ops[op].device)[0];
    }
    Recorded recorded(*made.policy, gate);
    const RunResult result = simulate(program, machine, recorded, {.max_iterations = 1, .until_steady = false});
    return {text.str() + recorded.answers(), recorded.over() || !result.fits};
  } catch (const Error& error) {
    return {error.what(), false};
  }
}

// The first line in which they differ; empty: they are the same.
std::string difference(const std::string& a, const std::string& b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  if (in_a == a.end() && in_b == b.end()) return "";
  const auto line = [](const std::string& text, std::string::const_iterator at) {
    const auto begin = static_cast<std::size_t>(at - text.begin());
    const std::size_t from = begin == 0 ? 0 : text.rfind('\n', begin - 1) + 1;
    return text.substr(from, std::min(text.find('\n', begin), from + 200) - from);
  };
  return line(a, in_a) + " | " + line(b, in_b);
}

// Choices from step 2 on are others; nothing that a policy does before differs. Batch 1, and 4 requests at once.
TEST(NoLeak, WhatIsStillToBeRevealedDecidesNothing) {
  for (const std::uint64_t requests : {1, 4}) {
    const Trace trace = small_mixture(requests);
    const Trace other = with_other_choices(trace, 2);
    ASSERT_NE(trace.accesses, other.accesses);
    const MachineSpec machine = machine_for(trace);
    std::size_t ran = 0;
    for (const PolicyInfo& policy : list_policies()) {
      if (policy.name == "ideal") continue;
      const Answers answers = answers_of(policy.name, {}, trace, machine, 2);
      EXPECT_EQ(difference(answers.text, answers_of(policy.name, {}, other, machine, 2).text), "") << policy.name;
      ran += answers.ran ? 1 : 0;
      if (policy.name == "foresight") {  // which places ops by what is revealed
        EXPECT_LT(answers.text.find('c'), answers.text.find("start"));
      }
    }
    EXPECT_GT(ran, 20u);
  }
}

// Nor where experts are placed by a profile of other requests, or by the prompt.
TEST(NoLeak, PlacementsOfExpertsKnowThePastOnly) {
  Trace trace = small_mixture(1);
  std::uint16_t uses = 0;
  for (Tensor& tensor : trace.tensors) {
    if (tensor.role == Role::expert) tensor.profiled_uses = static_cast<std::uint16_t>(++uses % 7);
  }
  const Trace other = with_other_choices(trace, 2);
  const MachineSpec machine = machine_for(trace);
  for (const std::string placement : {"frequency", "dynamic"}) {
    const Settings settings = {{"gpu_experts", "0.5"}, {"placement", placement}};
    const Answers answers = answers_of("ktransformers", settings, trace, machine, 2);
    EXPECT_TRUE(answers.ran) << placement;
    EXPECT_EQ(difference(answers.text, answers_of("ktransformers", settings, other, machine, 2).text), "") << placement;
  }
}

// The test can see what oracles know.
TEST(NoLeak, OraclesKnowMore) {
  const Trace trace = small_mixture(1);
  const Trace other = with_other_choices(trace, 2);
  const MachineSpec machine = machine_for(trace);
  for (const std::string policy : {"foresight", "belady"}) {
    const Settings oracle = {{"oracle", "true"}};
    EXPECT_NE(difference(answers_of(policy, oracle, trace, machine, 2).text,
                         answers_of(policy, oracle, other, machine, 2).text),
              "")
        << policy;
  }
}

// What is tuned is tried with choices of its own.
TEST(NoLeak, TuningTriesWhatIsNotChosen) {
  const Trace trace = small_mixture(1);
  const MachineSpec machine = machine_for(trace);
  const auto tried = [&](const Trace& tuned) {
    TuneRequest request;
    request.policy = "lru";
    request.budget = 12;
    request.threads = 1;
    request.traces = {{.file = "mixture", .loaded = std::make_shared<const Trace>(tuned)}};
    request.scenario.trace.rescale.no_rescale = true;
    request.scenario.machine = {.name = "small", .loaded = std::make_shared<const MachineSpec>(machine)};
    std::ostringstream text;
    for (const Candidate& candidate : run_tune(request, {}).result.candidates) {
      for (const auto& [name, value] : candidate.settings) text << name << "=" << value << " ";
      text << candidate.median_seconds(0) << "\n";
    }
    return text.str();
  };
  EXPECT_EQ(tried(trace), tried(with_other_choices(trace, 0)));
}

// And what they know is worth something.
TEST(NoLeak, KnowingMoreIsNoWorse) {
  const Trace trace = small_mixture(1);
  const MachineSpec machine = machine_for(trace);
  const auto seconds = [&](const Settings& settings) {
    const MadePolicy made = make_policy("foresight", settings);
    prepare(trace, *made.policy, machine, rehearse);
    return simulate(lower(trace, *made.policy, machine), machine, *made.policy).iteration_seconds();
  };
  EXPECT_LE(seconds({{"oracle", "true"}}), seconds({}));
}

}  // namespace
}  // namespace tencache
