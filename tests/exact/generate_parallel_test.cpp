// Generated workloads of several ranks: what the ranks hold adds up to the model, and their collectives meet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/generate_cases.h"

namespace tencache {
namespace {

GenerateOptions llama() {
  GenerateOptions options = small("llama-3-8b");  // embedding and head are two tensors
  options.model.layers = 6;
  options.batch = 8;
  return options;
}

Count all_flops(const Trace& trace) { return flops(trace, Phase::forward) + flops(trace, Phase::backward); }

struct Plan {
  Count data, tensor, pipeline, micro_batches;
  int zero;
  Count chunks = 1;
};

std::vector<Plan> plans() {
  std::vector<Plan> plans;
  for (const Count data : {1u, 2u}) {
    for (const Count tensor : {1u, 2u}) {
      for (const Count pipeline : {1u, 2u, 3u, 6u}) {
        for (const Count micro_batches : {1u, 2u, 4u}) {
          for (int zero = 0; zero <= (data > 1 ? 3 : 0); ++zero) {
            plans.push_back({data, tensor, pipeline, micro_batches, zero});
            if (pipeline == 2 && micro_batches > 1) plans.push_back({data, tensor, pipeline, micro_batches, zero, 3});
          }
        }
      }
    }
  }
  return plans;
}

GenerateOptions with(GenerateOptions options, const Plan& plan) {
  options.data_parallel = plan.data;
  options.tensor_parallel = plan.tensor;
  options.pipeline_parallel = plan.pipeline;
  options.pipeline_chunks = plan.chunks;
  options.micro_batches = plan.micro_batches;
  options.zero = plan.zero;
  return options;
}

// Over all combinations: every collective has all its participants, once each and with the same cost, no order of them
// can block, no tensor has two ranks, and the ranks' work adds up to that of one.
TEST(GeneratedRanks, MeetInEveryPlan) {
  for (const char* model : {"llama-3-8b", "gpt2"}) {  // gpt2: tied embeddings, on the first and the last stage
    GenerateOptions options = small(model);
    options.model.layers = 6;
    options.batch = 8;
    const Count alone = all_flops(generate(options));
    for (const Plan& plan : plans()) {
      SCOPED_TRACE(std::string(model) + " data " + std::to_string(plan.data) + " tensor " +
                   std::to_string(plan.tensor) + " pipeline " + std::to_string(plan.pipeline) + " micro-batches " +
                   std::to_string(plan.micro_batches) + " zero " + std::to_string(plan.zero) + " chunks " +
                   std::to_string(plan.chunks));
      const Trace trace = generate(with(options, plan));
      EXPECT_EQ(all_flops(trace), alone);
      EXPECT_EQ(waits_for_ever(trace), "");
      EXPECT_EQ(ops_by_rank(trace).size(), plan.data * plan.tensor * plan.pipeline);

      std::map<NameId, std::vector<const Op*>> meetings;
      std::vector<std::uint32_t> rank_of(trace.tensors.size(), none);
      for (const Op& op : trace.ops) {
        if (op.rendezvous != 0) meetings[op.rendezvous].push_back(&op);
        for (const auto& ids : {trace.reads(op), trace.writes(op)}) {
          for (const TensorId id : ids) {
            EXPECT_TRUE(rank_of[id] == none || rank_of[id] == op.rank) << trace.name(trace.tensors[id]);
            rank_of[id] = op.rank;
          }
        }
      }
      for (const auto& [key, ops] : meetings) {
        const std::string_view name = trace.names[key];
        const Count wanted = name.starts_with("tensor") ? plan.tensor
                             : name.starts_with("data") ? plan.data
                             : name.starts_with("all")  ? plan.data * plan.tensor * plan.pipeline
                                                        : 2;  // a send, the two embeddings
        std::set<std::uint16_t> ranks;
        for (const Op* op : ops) {
          ranks.insert(op->rank);
          EXPECT_EQ(op->bytes, ops.front()->bytes) << name;
          EXPECT_EQ(op->duration_ns, ops.front()->duration_ns) << name;
          EXPECT_GT(op->bytes, 0u) << name;
        }
        EXPECT_EQ(ops.size(), wanted) << name;
        EXPECT_EQ(ranks.size(), wanted) << name;
      }
    }
  }
}

// The same for every kind of block: the collectives of recomputed passes, of experts, of parallel blocks, of heads.
TEST(GeneratedRanks, MeetForEveryKindOfModel) {
  for (const char* model : {"opt-350m", "bloom-7b1", "falcon-7b", "falcon-11b", "mixtral-8x7b", "bert-base-uncased",
                            "vit-base-patch16-224", "llama-3-8b", "deepseek-v2-lite"}) {
    for (const Head head : {Head::language_model, Head::classification}) {
      for (int kind = 0; kind < 3; ++kind) {
        GenerateOptions options = small(model);
        if (options.model.family == ModelFamily::vit && head == Head::language_model) continue;
        if (options.model.family == ModelFamily::deepseek && kind == 2) continue;  // fused kernels only
        options.head = head;
        options.model.layers = 4;
        options.batch = 8;
        options.clip = Clip::early;
        options.recompute = kind == 0 ? Recompute::none : kind == 1 ? Recompute::block : Recompute::selective;
        options.attention = kind == 2 ? AttentionKind::materialised : AttentionKind::flash;
        if (kind == 1) options.lora_rank = 4, options.weights = find_weight_format("nf4");
        if (kind == 1 && options.model.family == ModelFamily::deepseek) options.lora_targets = {"q_proj", "kv_b_proj"};
        for (Plan plan : {Plan{2, 2, 2, 2, 1}, Plan{2, 2, 2, 2, 2}, Plan{4, 1, 1, 1, 3}, Plan{1, 4, 2, 4, 0},
                          Plan{2, 2, 2, 2, 2, 2}}) {
          if (options.model.heads % plan.tensor != 0) plan.tensor = 1;  // Falcon-7B's 71
          SCOPED_TRACE(std::string(model) + " kind " + std::to_string(kind) + " zero " + std::to_string(plan.zero));
          EXPECT_EQ(waits_for_ever(generate(with(options, plan))), "");
        }
      }
    }
  }
}

// Pipeline stages and ZeRO-3 parts hold each parameter once; tensor-parallel slices too, but for the norms, which every
// rank has; plain data parallelism repeats all.
TEST(GeneratedRanks, HoldTheModelTogether) {
  const GenerateOptions options = llama();
  const Count model = parameter_count(options.model, options.head);
  const Count norms = (2 * options.model.layers + 1) * options.model.hidden;
  const auto held = [&](const Plan& plan, Role role) {
    return bytes_of_role(generate(with(options, plan)), role, true);
  };
  EXPECT_EQ(held({1, 1, 3, 2, 0}, Role::parameter), 2 * model);
  EXPECT_EQ(held({1, 4, 1, 1, 0}, Role::parameter), 2 * (model + 3 * norms));
  EXPECT_EQ(held({1, 2, 3, 1, 0}, Role::parameter), 2 * (model + norms));
  EXPECT_EQ(held({4, 1, 1, 1, 3}, Role::parameter), 2 * model);
  EXPECT_EQ(held({2, 1, 3, 1, 3}, Role::parameter), 2 * model);
  for (const int zero : {0, 1, 2}) EXPECT_EQ(held({4, 1, 1, 1, zero}, Role::parameter), 4 * 2 * model);
  // Master copy and two moments: shared from stage 1 on.
  EXPECT_EQ(held({4, 1, 1, 1, 0}, Role::optimizer_state), 4 * 8 * model);
  for (const int zero : {1, 2, 3}) {
    EXPECT_EQ(held({4, 1, 1, 1, zero}, Role::optimizer_state), 8 * model);
    EXPECT_EQ(held({4, 1, 1, 1, zero}, Role::master_parameter), 4 * model);
  }
  // A tied embedding has a copy on the last stage.
  GenerateOptions tied = small("gpt2");
  tied.pipeline_parallel = 2;
  EXPECT_EQ(bytes_of_role(generate(tied), Role::parameter, true),
            2 * (parameter_count(tied.model, tied.head) + tied.model.vocabulary * tied.model.hidden));
}

// Sizes that do not divide: the parts still add up, and a rank without a part of a tensor does without.
TEST(GeneratedRanks, ShareWhatDoesNotDivide) {
  GenerateOptions options = small("gpt2");
  options.model.layers = 2;
  options.model.hidden = 6;
  options.model.heads = options.model.key_value_heads = 2;
  options.model.head_dimension = 3;
  options.model.intermediate = 22;
  options.model.vocabulary = 101;
  options.batch = 7;
  options.data_parallel = 7;
  for (const int zero : {1, 2, 3}) {
    options.zero = zero;
    const Trace trace = generate(options);
    EXPECT_EQ(waits_for_ever(trace), "");
    EXPECT_EQ(bytes_of_role(trace, Role::master_parameter, true), 4 * parameter_count(options.model, options.head));
  }
  options.data_parallel = 1;
  options.zero = 0;
  options.tensor_parallel = 2;
  const Trace trace = generate(options);
  EXPECT_EQ(waits_for_ever(trace), "");
  const Count m = 2;  // bytes
  Count embeddings = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.role == Role::parameter && trace.name(tensor) == "transformer.wte.weight") embeddings += tensor.bytes;
  }
  EXPECT_EQ(embeddings, m * 101 * 6);
}

// Rajbhandari et al. 2020 (ZeRO): 2 Ψ an iteration for stages 0 to 2, 3 Ψ for stage 3.
TEST(GeneratedRanks, MoveZerosVolume) {
  GenerateOptions options = llama();
  options.clip = Clip::off;
  const double model = 2.0 * static_cast<double>(parameter_count(options.model, options.head));
  const Count n = 4;
  options.data_parallel = n;
  for (const auto& [zero, volume] : {std::pair{0, 2.0}, {1, 2.0}, {2, 2.0}, {3, 3.0}}) {
    options.zero = zero;
    double moved = 0;
    for (const Trace trace = generate(options); const Op& op : trace.ops) {
      if (op.rank == 0 && op.rendezvous != 0) moved += static_cast<double>(op.bytes);
    }
    // The head is gathered once for its forward and backward pass.
    const double twice =
        zero == 3 ? volume - 2.0 * static_cast<double>(options.model.vocabulary * options.model.hidden) / model
                  : volume;
    EXPECT_NEAR(moved / (model * (n - 1) / n), twice, 0.001) << "stage " << zero;
  }
}

// Stages 1 to 3 with an all-reduce in the scatter's place: one Ψ more, under the same keys.
TEST(GeneratedRanks, ReduceGradientsByAllReduce) {
  GenerateOptions options = llama();
  options.clip = Clip::off;
  const double model = 2.0 * static_cast<double>(parameter_count(options.model, options.head));
  const Count n = 4;
  options.data_parallel = n;
  for (const int zero : {1, 2, 3}) {
    options.zero = zero;
    double moved[2] = {0, 0};
    for (const GradientReduction reduction : {GradientReduction::reduce_scatter, GradientReduction::all_reduce}) {
      options.gradient_reduction = reduction;
      const Trace trace = generate(options);
      EXPECT_EQ(waits_for_ever(trace), "");
      for (const Op& op : trace.ops) {
        if (op.rank == 0 && op.rendezvous != 0) moved[static_cast<int>(reduction)] += static_cast<double>(op.bytes);
      }
    }
    EXPECT_NEAR((moved[1] - moved[0]) / (model * (n - 1) / n), 1, 0.001) << "stage " << zero;
  }
}

// DeepSpeed's stage 3 copies gradients into a bucket before it reduces them; others reduce them where they are.
TEST(GeneratedRanks, FillDeepSpeedsBucket) {
  const auto buckets = [](Communication communication) {
    GenerateOptions options = llama();
    options.data_parallel = 2;
    options.zero = 3;
    options.communication = communication;
    const Trace trace = generate(options);
    return std::count_if(trace.ops.begin(), trace.ops.end(),
                         [&](const Op& op) { return trace.names[op.name] == "bucket"; });
  };
  EXPECT_EQ(buckets(Communication::fsdp), 0);
  EXPECT_EQ(buckets(Communication::deepspeed), 2 * 8);  // of two ranks: six blocks, the embedding and the head
}

TEST(GeneratedRanks, KeepGradientsInBuffersOnRequest) {
  GenerateOptions options = llama();
  const auto persistent = [&] {
    const Trace trace = generate(options);
    return std::any_of(trace.tensors.begin(), trace.tensors.end(),
                       [](const Tensor& tensor) { return tensor.role == Role::gradient && tensor.persistent; });
  };
  EXPECT_FALSE(persistent());
  options.keep_gradients = true;
  EXPECT_TRUE(persistent());
}

TEST(GeneratedRanks, TakeTheInterconnectThatIsGiven) {
  GenerateOptions options = llama();
  options.tensor_parallel = 2;
  options.interconnect = 1'000'000'000;
  for (const Trace trace = generate(options); const Op& op : trace.ops) {
    if (op.rendezvous == 0) continue;
    EXPECT_EQ(op.duration_ns, options.gpu.collective_latency_ns + static_cast<Nanoseconds>(op.bytes));
  }
}

// 1F1B: a stage keeps the activations of at most as many micro-batches as there are stages from it to the end.
TEST(GeneratedRanks, AlternateForwardAndBackward) {
  GenerateOptions options = llama();
  options.pipeline_parallel = 3;
  options.micro_batches = 8;
  const Trace trace = generate(options);
  const auto ranks = ops_by_rank(trace);
  for (std::size_t stage = 0; stage < 3; ++stage) {
    int under_way = 0, most = 0, done = 0;
    std::string last_layer;
    for (const OpIndex i : ranks[stage]) {
      const Op& op = trace.ops[i];
      if (trace.name(op) == "flash_attention" && trace.module(op) != last_layer) {
        last_layer = trace.module(op);
        // The first layer of the stage begins a micro-batch.
        if (last_layer.ends_with("layers." + std::to_string(2 * stage) + ".self_attn"))
          most = std::max(most, ++under_way);
      }
      if (trace.name(op) == "flash_attention_backward" &&
          trace.module(op).ends_with("layers." + std::to_string(2 * stage) + ".self_attn")) {
        --under_way;
        ++done;
        last_layer.clear();
      }
    }
    EXPECT_EQ(most, static_cast<int>(3 - stage));
    EXPECT_EQ(done, 8);
  }
}

// Of what a software overlaps with kernels, a share is exposed and the rest an op beside them, together as long as
// serial; tensors of the second part are those of the first.
TEST(GeneratedCollectives, ArePutBesideKernelsInPart) {
  GenerateOptions options = small("gpt2");
  options.model.layers = 2;
  options.data_parallel = 2;
  const auto times = [&](Communication communication, double exposed) {
    options.communication = communication;
    options.stack_figures.exposed[static_cast<std::size_t>(communication)] = exposed;
    std::array<Nanoseconds, 2> sums{};
    const Trace trace = generate(options);
    for (OpIndex i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      if (trace.name(op) != "all_reduce" || op.phase != Phase::backward) continue;
      const bool beside = op.stream == OpStream::communication;
      sums[beside ? 1 : 0] += op.duration_ns;
      EXPECT_EQ(op.rendezvous != 0, !beside || exposed == 0);
      if (!beside || exposed == 0) continue;
      const auto before = trace.writes(trace.ops[i - 1]), now = trace.writes(op);
      EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin(), now.end()));
    }
    return sums;
  };
  const auto serial = times(Communication::serial, 1), part = times(Communication::ddp, 0.25),
             hidden = times(Communication::ddp, 0);
  EXPECT_EQ(serial[1], 0);
  EXPECT_EQ(part[0] + part[1], serial[0]);
  EXPECT_NEAR(static_cast<double>(part[0]), 0.25 * static_cast<double>(serial[0]), 20);
  EXPECT_EQ(hidden[1], serial[0]);
  EXPECT_EQ(hidden[0], 0);
}

// Under ZeRO-3 a layer's parameters are gathered before the kernels of the block in front of it.
TEST(GeneratedCollectives, GatherAhead) {
  GenerateOptions options = small("gpt2");
  options.model.layers = 2;
  options.data_parallel = 2;
  options.zero = 3;
  const auto order = [&](Communication communication) {
    options.communication = communication;
    options.stack_figures.exposed[static_cast<std::size_t>(communication)] =
        communication == Communication::serial ? 1 : 0;
    const Trace trace = generate(options);
    std::string text;
    for (const Op& op : trace.ops) {
      if (op.phase != Phase::forward || op.rank != 0) continue;
      const std::string module(trace.module(op));
      const std::string block = module.find("h.0") != module.npos                ? "0"
                                : module.find("h.1") != module.npos              ? "1"
                                : trace.name(op) == "all_gather" && text.empty() ? "e"
                                : trace.name(op) == "all_gather"                 ? "h"
                                                                                 : "";
      if (trace.name(op) == "all_gather") text += "g" + block + " ";
      if (trace.name(op) == "flash_attention") text += "a" + block + " ";
    }
    return text;
  };
  EXPECT_EQ(order(Communication::serial), "ge g0 a0 g1 a1 gh ");
  EXPECT_EQ(order(Communication::fsdp), "ge g0 g1 a0 gh a1 ");
}

}  // namespace
}  // namespace tencache
