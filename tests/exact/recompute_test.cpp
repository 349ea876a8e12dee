// Choices of recomputation: the program of each level is the one that the generator makes for it, what a file may say,
// and what a policy answers.
#include "core/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "policies/planning/choose_levels.h"
#include "tests/generate_cases.h"
#include "traces/file/trace_file.h"
#include "traces/transform/edits.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Level = RecomputeLevel;

// Two micro-batches of two layers. Gaps depend on all ops before, of which a level has more.
GenerateOptions two_layers(const std::string& model, Recompute recompute) {
  GenerateOptions options = small(model);
  options.model.layers = 2;
  options.micro_batches = 2;
  options.launch_gap_ns = 3;
  options.recompute = recompute;
  return options;
}

Trace at(const Trace& trace, Level level) {
  return with_levels(trace, std::vector<Level>(trace.choices.size(), level));
}

std::vector<std::string> names_of(const Trace& trace, const std::vector<OpIndex>& ops) {
  std::vector<std::string> names;
  for (const OpIndex op : ops) names.emplace_back(trace.name(trace.ops[op]));
  return names;
}

TEST(Recompute, EachLevelIsTheProgramThatTheGeneratorMakesForIt) {
  for (const char* model : {"llama-3-8b", "gpt2", "opt-1.3b", "bloom-7b1", "falcon-7b", "bert-base-uncased",
                            "mixtral-8x7b", "qwen3-8b", "vit-base-patch16-224"}) {
    for (const Stack stack : {Stack::eager, Stack::fused}) {
      for (const Count lora_rank : {0, 4}) {
        GenerateOptions options = two_layers(model, Recompute::choose);
        options.stack = stack;
        options.lora_rank = lora_rank;
        const Trace choices = generate(options);
        ASSERT_EQ(choices.choices.size(), 4u) << model;
        for (const auto& [level, recompute] : {std::pair{Level::keep, Recompute::none},
                                               {Level::attention, Recompute::attention},
                                               {Level::block, Recompute::block}}) {
          options.recompute = recompute;
          EXPECT_EQ(format_trace(at(choices, level)), format_trace(generate(options)))
              << model << " " << to_string(stack) << " " << to_string(level);
        }
      }
    }
  }
}

// What runs again is told from the program alone: the ops that the level lists, in their order, and nothing where all
// is kept. Copies of weights in fp8 and adapters' expanded ones are made for what runs again, and for gradients besides.
TEST(Recompute, IsToldFromTheProgram) {
  for (const char* model : {"llama-3-8b", "gpt2", "falcon-7b", "mixtral-8x7b", "vit-base-patch16-224"}) {
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
      GenerateOptions options = two_layers(model, Recompute::choose);
      options.precision = precision;
      if (precision == Precision::bf16 && options.model.family != ModelFamily::vit) options.lora_rank = 4;
      const Trace choices = generate(options);
      const std::vector<bool> kept = recomputed_ops(at(choices, Level::keep));
      EXPECT_EQ(std::ranges::count(kept, true), 0) << model;
      const Trace program = at(choices, Level::block);
      const std::vector<bool> again = recomputed_ops(program);
      std::vector<std::string> listed, told;
      for (const RecomputeChoice& choice : choices.choices) {
        for (std::string& name : names_of(choices, choice.again.back())) listed.push_back(std::move(name));
      }
      for (OpIndex op = 0; op < program.ops.size(); ++op) {
        if (again[op]) told.emplace_back(program.name(program.ops[op]));
      }
      EXPECT_EQ(told, listed) << model << " " << to_string(precision);
    }
  }
}

// Recordings name each result by its op's number: gradients of the same operators are no activations of before.
TEST(Recompute, IsNotToldOfARecording) {
  const Trace trace = read_trace(TENCACHE_SOURCE_DIR "/traces/samples/gpt-small.trace.jsonl.zst");
  EXPECT_EQ(std::ranges::count(recomputed_ops(trace), true), 0);
}

TEST(Recompute, StopsEarlyAsTheGeneratorDoes) {
  for (const char* model : {"llama-3-8b", "falcon-7b", "qwen3-8b"}) {
    const Trace choices = generate(two_layers(model, Recompute::choose_early_stop));
    EXPECT_EQ(format_trace(at(choices, Level::block)),
              format_trace(generate(two_layers(model, Recompute::block_early_stop))))
        << model;
  }
}

TEST(Recompute, OfALlamaIsTheseOps) {
  GenerateOptions options = two_layers("llama-3-8b", Recompute::choose_early_stop);
  options.stack = Stack::fused;
  const Trace trace = generate(options);
  const RecomputeChoice& choice = trace.choices[0];
  EXPECT_EQ(trace.names[choice.module], "model.layers.1");
  EXPECT_EQ(choice.micro_batch, 0u);
  EXPECT_EQ(trace.choices[2].micro_batch, 1u);
  EXPECT_EQ(trace.ops[choice.before].phase, Phase::backward);
  const auto& [keep, elementwise, attention, block] = choice.again;
  EXPECT_THAT(names_of(trace, elementwise), ElementsAre("norm", "norm", "swiglu"));
  EXPECT_THAT(names_of(trace, attention), ElementsAre("norm", "q_proj", "k_proj", "v_proj", "rotary", "o_proj", "add",
                                                      "norm", "gate_proj", "up_proj", "swiglu"));
  EXPECT_THAT(names_of(trace, block), ElementsAre("norm", "q_proj", "k_proj", "v_proj", "rotary", "flash_attention",
                                                  "o_proj", "add", "norm", "gate_proj", "up_proj", "swiglu"));
}

// Without a fused kernel there is no result of attention to keep alone.
TEST(Recompute, OffersALevelOnlyWhereItDiffers) {
  GenerateOptions options = two_layers("gpt2", Recompute::choose);
  options.attention = AttentionKind::materialised;
  const Trace trace = generate(options);
  EXPECT_FALSE(trace.choices[0].offers(Level::attention));
  try {
    at(trace, Level::attention);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("cannot be recomputed at level 'attention'; the trace offers keep, elementwise"));
  }
}

// Flops of the backward pass grow by those of the layers that run again, by each layer and micro-batch alone.
TEST(Recompute, IsChosenByLayerAndMicroBatch) {
  const Trace trace = generate(two_layers("llama-3-8b", Recompute::choose));
  const Count kept = flops(trace, Phase::backward);
  const auto more = [&](std::vector<Level> levels) {
    const Trace program = with_levels(trace, levels);
    program.validate();
    return flops(program, Phase::backward) - kept;
  };
  const Count layer = more({Level::block, Level::keep, Level::keep, Level::keep});
  EXPECT_GT(layer, 0u);
  EXPECT_EQ(more({Level::keep, Level::keep, Level::block, Level::keep}), layer);
  EXPECT_EQ(more({Level::block, Level::keep, Level::elementwise, Level::block}), 2 * layer);
  const Count without_attention = more({Level::attention, Level::keep, Level::keep, Level::keep});
  EXPECT_LT(without_attention, layer);
  EXPECT_EQ(more({Level::block, Level::attention, Level::attention, Level::block}), 2 * (layer + without_attention));
}

TEST(Recompute, ChoicesAreWrittenAndReadBack) {
  const Trace trace = generate(two_layers("gpt2", Recompute::choose));
  EXPECT_EQ(format_version(trace), 6);
  const std::string text = format_trace(trace);
  const Trace read = parse_trace(text, "t");
  EXPECT_EQ(format_trace(read), text);
  ASSERT_EQ(read.choices.size(), trace.choices.size());
  EXPECT_EQ(read.choices[1].again, trace.choices[1].again);
  EXPECT_EQ(strip_names(trace).choices[1].again, trace.choices[1].again);
  EXPECT_EQ(format_trace(at(read, Level::block)), format_trace(at(trace, Level::block)));
}

// A layer of two ops, whose second changes what the first made.
const std::string program =
    R"({"kind":"header","format_version":6,"tensor_count":4,"op_count":4})"
    "\n"
    R"({"kind":"tensor","id":0,"name":"w","bytes":100,"role":"parameter","persistent":true})"
    "\n"
    R"({"kind":"tensor","id":1,"name":"x","bytes":20,"role":"activation","persistent":false})"
    "\n"
    R"({"kind":"tensor","id":2,"name":"a","bytes":20,"role":"activation","persistent":false})"
    "\n"
    R"({"kind":"tensor","id":3,"name":"g","bytes":20,"role":"gradient","persistent":false})"
    "\n"
    R"({"kind":"op","id":0,"name":"embed","phase":"forward","device":"gpu","duration_ns":1,"duration_source":"measured","reads":[0],"writes":[1]})"
    "\n"
    R"({"kind":"op","id":1,"name":"mm","phase":"forward","device":"gpu","module":"l0","duration_ns":2,"duration_source":"measured","reads":[0,1],"writes":[2]})"
    "\n"
    R"({"kind":"op","id":2,"name":"relu","phase":"forward","device":"gpu","module":"l0","duration_ns":3,"duration_source":"measured","reads":[2],"writes":[2]})"
    "\n"
    R"({"kind":"op","id":3,"name":"back","phase":"backward","device":"gpu","module":"l0","duration_ns":4,"duration_source":"measured","reads":[0,2],"writes":[3]})"
    "\n";

std::string error_with(const std::string& choice, std::string text = program) {
  text += choice + "\n";
  try {
    parse_trace(text, "t");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_lists(const std::string& rest) {
  return error_with(R"({"kind":"choice","module":"l0",)" + rest + "}");
}

TEST(Recompute, RunsAgainWhatAFileSays) {
  const Trace trace = parse_trace(program + R"({"kind":"choice","module":"l0","before":3,"block":[1,2]})" + "\n", "t");
  const Trace again = at(trace, Level::block);
  ASSERT_EQ(again.ops.size(), 6u);
  EXPECT_EQ(again.name(again.ops[3]), "mm");
  EXPECT_EQ(again.ops[3].phase, Phase::backward);
  EXPECT_EQ(again.ops[4].duration_ns, 3);
  // The copy of `a` stands before the gradient, which is made after it.
  EXPECT_THAT(again.writes(again.ops[3]), ElementsAre(3));
  EXPECT_THAT(again.reads(again.ops[4]), ElementsAre(3));
  EXPECT_THAT(again.reads(again.ops[5]), ElementsAre(0, 3));
  EXPECT_THAT(again.writes(again.ops[5]), ElementsAre(4));
  EXPECT_EQ(again.name(again.tensors[3]), "a");
  EXPECT_EQ(at(trace, Level::keep).ops.size(), 4u);
}

TEST(Recompute, ChoicesThatContradictTheUsesAreErrors) {
  const std::string prefix = "t:10: the choice for micro-batch 0 of 'l0' ";
  EXPECT_EQ(error_of_lists(R"("before":3,"block":[2])"),
            prefix +
                "runs at level 'block' op 'relu' again, which reads tensor 'a', but op 'relu' changes that before "
                "the backward pass; run what makes it again, too");
  EXPECT_EQ(
      error_of_lists(R"("before":3,"block":[1])"),
      prefix + "runs at level 'block' op 'mm' again, which makes tensor 'a', but not op 'relu', which changes it");
  EXPECT_EQ(error_of_lists(R"("before":2,"attention":[1,3])"),
            prefix + "runs at level 'attention' ops that do not all come before its backward pass");
  EXPECT_EQ(error_of_lists(R"("before":3,"block":[2,1])"),
            prefix + "runs at level 'block' ops that do not rise; list each once, in their order");
  EXPECT_EQ(error_of_lists(R"("before":9,"block":[1,2])"), prefix + "has a backward pass at an op that does not exist");
  EXPECT_EQ(error_of_lists(R"("before":3,"block":[1,4])"), "t:10: 'block' is 4; it takes a whole number from 0 to 3");
  EXPECT_EQ(error_of_lists(R"("block":[1,2])"),
            "t:10: missing 'before'; the keys are kind, module, micro_batch, before, elementwise, attention, block");
  const std::string choice = R"({"kind":"choice","module":"l0","before":3,"block":[1,2]})";
  EXPECT_EQ(error_with(choice), "no error");
  EXPECT_THAT(error_with(choice + "\n" + R"({"kind":"choice","module":"l0","before":2,"block":[1]})"),
              HasSubstr("t:11: the choice for micro-batch 0 of 'l0' is before an earlier op than the choice above it"));
  std::string counted = program;
  counted.insert(counted.find(",\"tensor_count\""), ",\"choice_count\":2");
  EXPECT_EQ(error_with(choice, counted), "t: the header announces 2 choices, the file has 1; lines were lost or added");
  std::string older = program;
  older.replace(older.find("version\":6"), 10, "version\":5");
  EXPECT_EQ(error_with(choice, older),
            "t:10: the kind 'choice' needs format version 6, but the header says version 5; "
            "write \"format_version\":6 there");
}

TEST(Recompute, TwoChoicesBeforeOneOpCannotMakeOneTensor) {
  std::string text = program;
  text.replace(text.find("op_count\":4"), 11, "op_count\":5");
  text +=
      R"({"kind":"op","id":4,"name":"more","phase":"backward","device":"gpu","duration_ns":4,"duration_source":"measured","reads":[3],"writes":[3]})"
      "\n";
  const std::string first = R"({"kind":"choice","module":"l0","before":3,"block":[1,2]})";
  EXPECT_THAT(error_with(first + "\n" + R"({"kind":"choice","module":"l1","before":3,"block":[1,2]})", text),
              HasSubstr("t:12: the choice for micro-batch 0 of 'l1' runs at level 'block' op 'mm' again, which makes "
                        "tensor 'a', as another choice before that op does"));
  EXPECT_EQ(error_with(first + "\n" + R"({"kind":"choice","module":"l0","before":4,"block":[1,2]})", text), "no error");
}

TEST(Recompute, IsForOneRank) {
  GenerateOptions options = two_layers("gpt2", Recompute::choose);
  options.data_parallel = 2;
  EXPECT_THAT(error_of(options), HasSubstr("--recompute: 'choose' is for one rank"));
}

struct Answers : Policy {
  void recompute(const Trace& trace, const MachineSpec&, std::vector<Level>& levels) const override {
    EXPECT_EQ(levels, std::vector<Level>(trace.choices.size(), Level::keep));
    if (!levels.empty()) levels.back() = level;
  }
  void place(const Trace& trace, const MachineSpec&, std::vector<Device>&) const override {
    EXPECT_TRUE(trace.choices.empty());
    ops = trace.ops.size();
  }

  Level level = Level::block;
  mutable std::size_t ops = 0;
};

TEST(Recompute, IsWhatThePolicyAnswersBeforeItPlacesOps) {
  const Trace trace = generate(two_layers("gpt2", Recompute::choose));
  const MachineSpec machine;
  Answers answers;
  const Program program = lower(trace, answers, machine);
  EXPECT_GT(answers.ops, trace.ops.size());
  EXPECT_EQ(program.trace.ops.size(), answers.ops);
  EXPECT_THAT(program.changes, ElementsAre("1 of 4 layers' results recomputed at level 'block'"));
  // Who does not answer gets what the trace says.
  EXPECT_EQ(lower(trace, Policy(), machine).trace.ops.size(), trace.ops.size());
}

// foresight's search, told that an iteration is the faster the nearer the number of recomputed blocks is to three,
// finds three. Where nothing fits, it keeps all. (Materialised attention: the only other level has no products.)
TEST(Recompute, IsSearchedForByRehearsals) {
  GenerateOptions options = two_layers("llama-3-8b", Recompute::choose);
  options.model.layers = 8;
  options.micro_batches = 1;
  options.attention = AttentionKind::materialised;
  const Trace trace = generate(options);
  const Count kept = flops(trace, Phase::backward);
  const Count layer = (flops(at(trace, Level::block), Phase::backward) - kept) / 8;
  std::uint64_t tried = 0;
  const auto takes = [&](const Trace& program, Nanoseconds) {
    ++tried;
    const auto recomputed = static_cast<Nanoseconds>((flops(program, Phase::backward) - kept) / layer);
    return ProgramRun{100 + std::abs(recomputed - 3), 1};
  };
  const ChosenLevels chosen = choose_levels(trace, takes, 60);
  EXPECT_EQ(std::ranges::count(chosen.levels, Level::block), 3);
  EXPECT_LE(tried, 60u);
  EXPECT_THAT(chosen.note, HasSubstr("100 ns, with everything kept 103 ns, with every block recomputed 105 ns"));
  // No program is tried twice, and none once that is all that it may cost.
  tried = 0;
  choose_levels(trace, takes, 10);
  EXPECT_EQ(tried, 10u);
  const ChosenLevels none_fits = choose_levels(
      trace, [](const Trace&, Nanoseconds) { return ProgramRun{}; }, 60);
  EXPECT_EQ(none_fits.levels, std::vector<Level>(8, Level::keep));
}

TEST(Recompute, SaysWhyThereIsNoChoice) {
  EXPECT_THAT(why_no_choices(generate(two_layers("gpt2", Recompute::none))), HasSubstr("--recompute choose"));
  Trace imported = parse_trace(program, "t");
  for (Op& op : imported.ops) op.module = 0;
  EXPECT_EQ(why_no_choices(imported), "no choice: no modules recorded");
}

}  // namespace
}  // namespace tencache
