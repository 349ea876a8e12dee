// The dashboard's simulations: knobs, other traces, ranks, ghosts, and the thread that simulates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "configs/generate_settings.h"
#include "core/error.h"
#include "gui/model/describe.h"
#include "gui/model/session.h"
#include "tests/faces/gui_cases.h"
#include "tests/generate_cases.h"

namespace tencache::gui {
namespace {

using ::testing::HasSubstr;

// ---- Simulating in the background -----------------------------------------------------------------------------------

TEST(SimulatorThread, TheLatestRequestWins) {
  Simulator simulator;
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = gui_machine();
  for (const char* policy : {"on-demand", "lru", "fifo", "on-demand", "lru"}) {
    workload.scenario.policy.name = policy;
    simulator.request(workload);
  }
  simulator.wait();
  const SimulatedPointer done = simulator.take();
  ASSERT_NE(done, nullptr);
  EXPECT_EQ(done->workload.scenario.policy.name, "lru");
  EXPECT_TRUE(done->fits) << done->reason;
  EXPECT_GE(done->iteration_seconds(), done->bound_seconds * 0.999);
  EXPECT_EQ(simulator.take(), nullptr);
}

// The case of bound_test.cpp: 800 ns as recorded, 200 ns whatever is recomputed.
TEST(SimulatorThread, HasBothBoundsOfATraceWithChoices) {
  Trace trace = five_layers(1, 100);
  trace.tensors[0].bytes = trace.tensors[4].bytes = 200;
  RecomputeChoice choice{.module = trace.names.intern("layer"), .before = 6, .again = {}};
  choice.again.back() = {1, 2, 3};
  trace.choices.push_back(choice);
  Workload workload;
  workload.trace = std::make_shared<const Trace>(std::move(trace));
  workload.machine = small_machine(300);
  workload.scenario.policy.name = "lru";
  Simulator simulator;
  simulator.request(workload);
  simulator.wait();
  const SimulatedPointer done = simulator.take();
  ASSERT_NE(done, nullptr);
  EXPECT_TRUE(done->fits) << done->reason;
  EXPECT_TRUE(done->result.steady);
  EXPECT_NEAR(done->bound_seconds * 1e9, 800, 1e-6);
  EXPECT_NEAR(done->bound_choice_seconds.value() * 1e9, 200, 1e-6);
  EXPECT_EQ(done->least_seconds(), *done->bound_choice_seconds);
}

TEST(WhatIfModel, KnobsChangeTheMachineTheyAreNamedFor) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = small_machine_with_slow_storage(5'600'000);
  workload.machine.resources.push_back({"dram", 10 * byte_per_ns});
  workload.machine.resources.push_back({"ssd", byte_per_ns});
  workload.machine.links[2].uses = workload.machine.links[3].uses = {0, 1};
  workload.scenario.policy.name = "on-demand";
  WhatIf what_if(workload);
  EXPECT_FALSE(what_if.changed());
  const auto with = [&](Knob::Kind kind, const std::string& typed) {
    what_if.reset();
    for (Knob& knob : what_if.knobs()) {
      if (knob.kind == kind) knob.parse(typed);
    }
    EXPECT_TRUE(what_if.changed());
    return what_if.workload();
  };
  EXPECT_EQ(with(Knob::Kind::gpu_memory, "8MB").machine.tiers[0].capacity, 8'000'000u);
  EXPECT_EQ(with(Knob::Kind::cpu_memory, "2MB").machine.tiers[1].capacity, 2'000'000u);
  const MachineSpec pcie = with(Knob::Kind::pcie, "2GB/s").machine;
  EXPECT_EQ(pcie.links[0].bandwidth, 2 * byte_per_ns);
  EXPECT_EQ(pcie.links[2].bandwidth, workload.machine.links[2].bandwidth);
  const MachineSpec nvme = with(Knob::Kind::nvme, "0.5GB/s").machine;
  EXPECT_EQ(nvme.links[0].bandwidth, byte_per_ns);
  EXPECT_EQ(nvme.links[2].bandwidth, byte_per_ns / 2);
  EXPECT_EQ(nvme.resources[0].bandwidth, 10 * byte_per_ns);
  EXPECT_EQ(nvme.resources[1].bandwidth, 2 * byte_per_ns);
  EXPECT_EQ(with(Knob::Kind::dram, "20GB/s").machine.resources[0].bandwidth, 20 * byte_per_ns);
  const Workload faster = with_changed_trace(with(Knob::Kind::gpu_speed, "2"));
  EXPECT_EQ(faster.trace->ops[0].duration_ns, 300'000);
  EXPECT_EQ(workload.trace->ops[0].duration_ns, 600'000);
  EXPECT_THROW(what_if.knobs()[0].parse("much"), Error);
  for (Knob& knob : what_if.knobs()) {
    if (knob.kind != Knob::Kind::gpu_speed) continue;
    EXPECT_NEAR(knob.original_share(), 0.5, 1e-9);
    for (const char* wrong : {"nan", "inf", "0", "-1"}) EXPECT_THROW(knob.parse(wrong), Error) << wrong;
    knob.parse("64");  // beyond the slider, which grows
    EXPECT_EQ(knob.value, 64);
    EXPECT_EQ(knob.most, 64);
  }
  what_if.reset();
  EXPECT_FALSE(what_if.changed());
}

// Of a generated trace the batch is a knob: it is generated anew.
Workload generated_workload() {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(
      generate_trace({{"model", "gpt2"}, {"batch", "4"}, {"seq", "128"}, {"micro-batches", "2"}, {"gpu", "a100-40g"}}));
  workload.machine = gui_machine(2 * GiB);
  workload.machine.tiers[1].capacity = 16 * GiB;
  workload.scenario.policy.name = "on-demand";
  workload.scenario.trace.rescale.where_known = true;
  return workload;
}

TEST(WhatIfModel, TheTraceOfAModelIsGeneratedAgain) {
  const Json run = {{"trace", "tencache generate --model gpt2 --batch 1 --seq 64 --gpu a10g"},
                    {"machine", "g5.xlarge"},
                    {"generate", {{"model", "gpt2"}, {"batch", "1"}, {"seq", "64"}}}};
  const Workload workload = workload_of({{"policy", "lru"}, {"manifest", {{"run", run}}}}, "c.json");
  EXPECT_EQ(workload.trace->header.recorded_by, run["trace"].get<std::string>());
  EXPECT_EQ(trace_name(workload), "gpt2");
}

TEST(WhatIfModel, TheBatchOfAGeneratedTraceIsAKnob) {
  WhatIf what_if(generated_workload());
  ASSERT_EQ(what_if.knobs().back().kind, Knob::Kind::batch);
  what_if.change("batch=7");  // of two micro-batches
  EXPECT_EQ(what_if.knobs().back().text(), "8");
  EXPECT_EQ(what_if.workload().scenario.trace.batch, 8u);
  const Workload larger = with_changed_trace(what_if.workload());
  EXPECT_EQ(larger.trace->header.batch, 8u);
  EXPECT_EQ(larger.scenario.trace.batch, 0u);
  EXPECT_GT(larger.trace->ops[5].duration_ns, 0);
  const SimulatedPointer before = simulate_workload(what_if.base()), now = simulate_workload(what_if.workload());
  ASSERT_TRUE(now->fits) << now->reason;
  EXPECT_GT(now->iteration_seconds(), before->iteration_seconds());
  EXPECT_EQ(now->workload.trace->header.tokens_per_iteration(), 8u * 128);
  Workload recorded = what_if.base();
  auto trace = std::make_shared<Trace>(*recorded.trace);
  trace->header.provenance = {MadeBy::recorded, {}};
  recorded.trace = trace;
  EXPECT_NE(WhatIf(recorded).knobs().back().kind, Knob::Kind::batch);
  recorded.scenario.trace.batch = 8;
  EXPECT_THAT(simulate_workload(recorded)->reason, HasSubstr("cannot be changed"));
}

TEST(WhatIfModel, ChangesAreMadeByName) {
  WhatIf what_if(generated_workload());
  what_if.change("gpu-memory=1GiB");
  what_if.change("policy=lru");
  EXPECT_TRUE(what_if.machine_changed());
  EXPECT_EQ(what_if.workload().machine.tiers[0].capacity, GiB);
  EXPECT_EQ(what_if.workload().scenario.policy.name, "lru");
  EXPECT_THROW(what_if.change("policy=nonsense"), Error);
  EXPECT_THROW(what_if.change("gpu-memory"), Error);
  EXPECT_THROW(what_if.change("gpu-memory=much"), Error);
  try {
    what_if.change("memory=1GiB");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("policy, gpu-memory, cpu-memory, pcie, gpu-speed, batch"));
  }
}

// A trace of another GPU takes that of the machine, as `tencache replay` has it; another batch of it too.
TEST(WhatIfModel, DurationsAreThoseOfTheMachinesGpu) {
  Workload workload = generated_workload();
  const Trace generated = *workload.trace;
  workload.machine.gpu = "h100";
  set_trace(workload, generated);
  EXPECT_EQ(durations_text(workload), "durations rescaled from a100-40g to h100");
  EXPECT_LT(workload.trace->ops[5].duration_ns, generated.ops[5].duration_ns);
  workload.scenario.trace.batch = 8;
  const Workload larger = with_changed_trace(workload);
  workload.machine.gpu = "a100-40g";
  set_trace(workload, generated);
  EXPECT_EQ(durations_text(workload), "");
  EXPECT_LT(larger.trace->ops[5].duration_ns, with_changed_trace(workload).trace->ops[5].duration_ns);
  Trace recorded = generated;
  recorded.header.hardware = "some processor";
  set_trace(workload, recorded);
  EXPECT_EQ(durations_text(workload), "durations as recorded on some processor, not on a100-40g");
  workload.scenario.trace.rescale.assume_gpu = "nonsense";
  EXPECT_THROW(set_trace(workload, recorded), Error);
}

// The first simulation stays as the ghost of what is changed from the command line.
TEST(SessionModel, ChangesLeaveAGhost) {
  Session session;
  session.wanted.machine.name = "demo-small-gpu";
  session.changes = {"pcie=4GB/s"};
  session.open_sample();
  session.wait();
  ASSERT_NE(session.ghost(), nullptr);
  EXPECT_LT(session.simulated()->iteration_seconds(), session.ghost()->iteration_seconds());
  EXPECT_TRUE(session.changes.empty());
}

TEST(SessionModel, ChangesAreMadeAllOrNone) {
  Session session;
  session.changes = {"pcie=4GB/s", "nonsense=1"};
  session.open_sample();
  session.wait();
  EXPECT_THAT(session.messages().errors(), ::testing::ElementsAre(HasSubstr("nonsense")));
  EXPECT_TRUE(session.messages().last_is_error());
  EXPECT_FALSE(session.what_if->changed());
  EXPECT_EQ(session.ghost(), nullptr);
}

// What was measured on a machine says nothing of it with another memory.
TEST(SessionModel, AlteredMachinesAreExtrapolated) {
  Session session;
  const auto validity = [&](bool altered, bool rescaled) {
    Simulated simulated;
    simulated.workload.trace = std::make_shared<const Trace>([] {
      Trace trace = gui_trace();
      trace.header.provenance = {MadeBy::generated, {{"model", "mlp-offload-40b"}}};
      return trace;
    }());
    simulated.workload.machine.name = "mlp-offload-4gpu";
    simulated.workload.scenario.policy.name = "mlp-offload";
    simulated.workload.scenario.policy.settings = {{"buffers", "32"}};
    if (altered) simulated.workload.scenario.machine.gpu_memory = "12GiB";
    if (rescaled) simulated.workload.rescaling = Rescaling{.from = "a", .to = "b", .precision = "fp32"};
    return validity_of(session, simulated);
  };
  EXPECT_THAT(validity(false, false), HasSubstr("validated within"));
  EXPECT_EQ(validity(true, false), "extrapolated");
  EXPECT_EQ(validity(false, true), "extrapolated, durations rescaled from a to b");
  session.wanted.machine.gpu_memory = "12GiB";
  session.wanted.machine.name = "10cache-l40s";
  session.open_sample();
  session.wait();
  ASSERT_NE(session.simulated(), nullptr);
  EXPECT_FALSE(is_like_measured(session.simulated()->workload));
}

// Two stages of a pipeline: the slowest is shown, the other can be chosen besides.
TEST(SessionModel, RanksAreRunsToChooseFrom) {
  Workload workload = generated_workload();
  workload.trace = std::make_shared<const Trace>(generate_trace({{"model", "gpt2"},
                                                                 {"batch", "4"},
                                                                 {"seq", "128"},
                                                                 {"micro-batches", "2"},
                                                                 {"pipeline-parallel", "2"},
                                                                 {"gpu", "a100-40g"}}));
  const SimulatedPointer alone = simulate_workload(workload);
  EXPECT_THAT(alone->reason, HasSubstr("2 ranks"));
  workload.machine.other_ranks.push_back(workload.machine);
  std::size_t asked = 0;  // what is not wanted any more stops at the next iteration, not at the end
  Workload long_one = workload;
  long_one.scenario.iterations = 500;
  EXPECT_EQ(simulate_workload(long_one, [&asked] { return ++asked > 4; }), nullptr);
  EXPECT_EQ(asked, 5u);
  Session session;
  session.what_if.emplace(workload);
  session.rerun();
  session.wait();
  ASSERT_TRUE(session.simulated()->fits) << session.simulated()->reason;
  EXPECT_GE(session.simulated()->iteration_seconds(), session.simulated()->bound_seconds);
  ASSERT_EQ(session.shown().all().size(), 2u);
  ASSERT_EQ(session.runs().size(), 1u);
  EXPECT_EQ(session.runs()[0], session.simulated()->run);
  EXPECT_EQ(session.shown().all()[1]->title(), "predicted: on-demand, rank 1");
  session.choose(0, true);
  session.choose(1, true);
  EXPECT_EQ(session.runs().size(), 2u);
  session.what_if->change("gpu-speed=2");
  session.rerun();
  session.wait();
  EXPECT_EQ(session.runs().size(), 2u);  // what was chosen stays chosen
  session.choose(0, false);
  session.choose(1, false);
  EXPECT_EQ(session.runs().size(), 1u);  // one remains
}

// On the machine that it was made for, an old plan moves the same tensors and takes about the same time.
TEST(RecordedPlanModel, DoesWhatThePolicyDid) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = gui_machine();
  workload.scenario.policy.name = "g10";
  std::unique_ptr<RecordedPlan> plan;
  const SimulatedPointer planned = simulate_workload(workload, {}, &plan);
  ASSERT_TRUE(planned->fits) << planned->reason;
  ASSERT_NE(plan, nullptr);
  EXPECT_DOUBLE_EQ(planned->iteration_seconds(), simulate_workload(workload)->iteration_seconds());
  const SimulatedPointer again = simulate_old_plan(workload, *plan);
  ASSERT_TRUE(again->fits) << again->reason;
  EXPECT_TRUE(again->old_plan);
  EXPECT_NEAR(again->iteration_seconds() / planned->iteration_seconds(), 1, 0.1);
  Workload without = workload;
  without.scenario.policy.name = "on-demand";
  EXPECT_LT(again->iteration_seconds(), simulate_workload(without)->iteration_seconds());
  workload.machine.links[0].bandwidth *= 2;
  const SimulatedPointer elsewhere = simulate_old_plan(workload, *plan);
  ASSERT_TRUE(elsewhere->fits);
  EXPECT_LT(elsewhere->iteration_seconds(), again->iteration_seconds());
}

// Updates run where the plan has them, though the policy would place them elsewhere on the new machine.
TEST(RecordedPlanModel, PlacesUpdatesAsItDid) {
  Session session;
  session.wanted.machine.name = "demo-small-gpu";
  session.wanted.machine.gpu_memory = session.wanted.machine.cpu_memory = "3GiB";
  session.wanted.policy.name = "zero-offload";
  session.open(std::string(TENCACHE_SOURCE_DIR) + "/traces/samples/gpt-small.trace.jsonl.zst");
  session.wait();
  ASSERT_TRUE(session.what_if.has_value()) << session.messages().last();
  std::unique_ptr<RecordedPlan> plan;
  Workload workload = session.what_if->workload();
  const SimulatedPointer planned = simulate_workload(workload, {}, &plan);
  ASSERT_TRUE(planned->fits) << planned->reason;
  workload.machine.cpu.adam_parameters_per_second *= 1e-3;
  const SimulatedPointer old = simulate_old_plan(workload, *plan);
  ASSERT_TRUE(old->fits) << old->reason;
  const auto on_cpu = [](const gui::Run& run) {
    std::set<OpIndex> ops;
    for (const Span& span : run.spans()) {
      if (span.kind == SpanKind::op && span.lane == 1) ops.insert(span.op);
    }
    return ops;
  };
  EXPECT_FALSE(on_cpu(*planned->run).empty());
  EXPECT_EQ(on_cpu(*old->run), on_cpu(*planned->run));
}

struct AgainAndBefore {
  double before_ns, again_ns;
};
AgainAndBefore with_old_plan(Trace trace, const std::string& policy, const std::map<std::string, std::string>& settings,
                             const MachineSpec& machine) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(std::move(trace));
  workload.machine = machine;
  workload.scenario.policy = {policy, settings};
  std::unique_ptr<RecordedPlan> plan;
  const SimulatedPointer planned = simulate_workload(workload, {}, &plan);
  EXPECT_TRUE(planned->fits) << planned->reason;
  if (plan == nullptr) return {0, 0};
  const SimulatedPointer again = simulate_old_plan(workload, *plan);
  EXPECT_TRUE(again->fits) << again->reason;
  EXPECT_DOUBLE_EQ(planned->iteration_seconds(), simulate_workload(workload)->iteration_seconds());
  return {planned->iteration_seconds() * 1e9, again->iteration_seconds() * 1e9};
}

// Kernels of 40 ns read two layers of 100 bytes; at 1 byte/ns the first one's weights take 100 ns where they lie.
TEST(RecordedPlanModel, ReadsInPlaceWhatThePolicyDid) {
  Trace trace;
  for (const char* name : {"layers.0.w", "layers.1.w"}) {
    add_op(trace, 40, {trace.add_tensor(name, 100, Role::parameter, true)}, {});
  }
  const AgainAndBefore took = with_old_plan(trace, "vllm-uva", {{"cpu_offload", "100B"}}, small_machine(1000));
  EXPECT_NEAR(took.before_ns, 140, 1e-3);
  EXPECT_NEAR(took.again_ns, 140, 1e-3);
}

// A gate of 10 ns chooses both experts of 10 bytes. Expert 0 is on the GPU, 10 ns; the CPU takes 15 ns for the other
// one, beside it or after it; a copy and the GPU would take 20 ns.
TEST(RecordedPlanModel, ComputesExpertsWhereThePolicyDid) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 2, Role::activation, false);
  const OpIndex gate = trace.add_op(make_op(trace, "gate", "mlp", Phase::decode, 10), {}, std::vector{x});
  for (const char* name : {"mlp.experts.0", "mlp.experts.1"}) {
    const TensorId weight = trace.add_tensor(std::string(name) + ".w", 10, Role::expert, true);
    Op op = make_op(trace, "expert", name, Phase::decode, 10);
    op.placeable = true;
    op.detail = trace.add_detail({.revealed_by = gate, .cpu_duration_ns = 15});
    trace.add_op(op, std::vector{x, weight}, std::vector{x});
  }
  trace.validate();
  for (const auto& [policy, setting] :
       {std::pair("fiddler", std::pair("resident", "1")), {"ktransformers", {"gpu_experts", "0.5"}}}) {
    const AgainAndBefore took = with_old_plan(trace, policy, {setting}, small_machine(1000));
    EXPECT_GE(took.before_ns, 25) << policy;
    EXPECT_NEAR(took.again_ns, took.before_ns, 1e-3) << policy;
  }
}

// Keys and values of two layers, whose inputs are copied in half of the time: kvpr makes some of them again.
TEST(RecordedPlanModel, RecomputesWhatThePolicyDid) {
  GenerateOptions options = small("opt-6.7b");
  options.model.layers = 2;
  options.batch = 8;
  options.sequence_lengths = {256};
  options.forward_only = true;
  options.recompute = Recompute::choose;
  options.generation = TextGeneration{.new_tokens = 2, .page_tokens = 64};
  MachineSpec machine = small_machine(200'000'000'000);
  machine.tiers[1].capacity = 200'000'000'000;
  for (Link& link : machine.links) link.bandwidth = 2'000'000'000;
  const AgainAndBefore took = with_old_plan(generate(options), "kvpr", {}, machine);
  EXPECT_NEAR(took.again_ns / took.before_ns, 1, 0.01);
}

// Layers 1 and 3 come while the layer before each runs, 40 of 100 ns, and only once the other one is done:
// vllm-prefetch hears of ends alone, and would take a start for one.
TEST(RecordedPlanModel, HearsWhatThePolicyHears) {
  Trace trace;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    add_op(trace, 40, {trace.add_tensor(name + ".w", 100, Role::parameter, true)}, {});
    trace.ops.back().module = trace.names.intern(name);
  }
  const AgainAndBefore took = with_old_plan(trace, "vllm-prefetch", {{"group_size", "2"}}, small_machine(1000));
  EXPECT_NEAR(took.before_ns, 2 * (40 + 100), 1e-3);
}

// The second request is simulated at once, by the other thread than the first: the same comes of it.
TEST(SimulatorThread, WhatWasQuickIsSimulatedAtOnce) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = gui_machine();
  workload.scenario.policy.name = "on-demand";
  Simulator simulator;
  for (const std::uint64_t faster : {1U, 2U, 3U}) {
    workload.machine.links[0].bandwidth = faster * gui_machine().links[0].bandwidth;
    simulator.request(workload);
    simulator.wait();
    const SimulatedPointer done = simulator.take();
    ASSERT_NE(done, nullptr);
    EXPECT_FALSE(done->old_plan);
    EXPECT_DOUBLE_EQ(done->iteration_seconds(), simulate_workload(workload)->iteration_seconds());
    EXPECT_GT(done->ideal_seconds, 0);  // which follow, behind drawing
  }
  workload.machine = gui_machine(1'200'000);
  simulator.request(workload);
  simulator.wait();
  EXPECT_FALSE(simulator.take()->fits);
}

TEST(SimulatorThread, ReferencesAndIntervalsFollow) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = gui_machine();
  workload.machine.facts.push_back({"links.h2d.bandwidth", "guessed", "estimated", "", 0});
  workload.scenario.policy.name = "on-demand";
  const SimulatedPointer simulated = with_interval(with_references(simulate_workload(workload)), 20);
  EXPECT_DOUBLE_EQ(simulated->ideal_seconds, 12 * 600e-6 + 300e-6 + 12 * 900e-6);
  EXPECT_GT(simulated->bound_seconds, 0);
  EXPECT_LE(simulated->bound_seconds, simulated->iteration_seconds());
  EXPECT_EQ(simulated->samples, 20u);
  EXPECT_LT(simulated->low_seconds, simulated->iteration_seconds());
  EXPECT_GT(simulated->high_seconds, simulated->iteration_seconds());
  EXPECT_EQ(with_interval(simulated, 20, [] { return true; }), nullptr);
}

TEST(SimulatorThread, IntervalsDrawModelledGpuTimes) {
  Workload workload;
  workload.machine = gui_machine();
  workload.scenario.policy.name = "on-demand";
  Trace trace = gui_trace();
  for (Op& op : trace.ops) op.duration_source = DurationSource::modelled;
  trace.header.hardware = "modelled: h100";
  set_trace(workload, std::move(trace));
  ASSERT_TRUE(workload.gpu_time);
  const SimulatedPointer simulated = with_interval(simulate_workload(workload), 20);
  EXPECT_EQ(simulated->samples, 20u);
  EXPECT_LT(simulated->low_seconds, simulated->iteration_seconds());
  EXPECT_GT(simulated->high_seconds, simulated->iteration_seconds());
  EXPECT_THAT(validity_of(Session(), *simulated), HasSubstr("GPU times modelled for the h100 ±"));
}

TEST(SimulatorThread, WhatIsForgottenIsNotGiven) {
  Simulator simulator;
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = gui_machine();
  workload.scenario.policy.name = "on-demand";
  simulator.request(workload);
  simulator.forget();
  simulator.wait();
  EXPECT_EQ(simulator.take(), nullptr);
}

TEST(SimulatorThread, WhatDoesNotFitSaysWhy) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.machine = gui_machine(1'200'000);
  workload.scenario.policy.name = "on-demand";
  const SimulatedPointer done = simulate_workload(workload);
  EXPECT_FALSE(done->fits);
  EXPECT_FALSE(done->reason.empty());
}

}  // namespace
}  // namespace tencache::gui
