// Generated workloads of interleaved pipeline stages: they simulate, the chunks hold the model, and fewer micro-batches
// are enough to keep the stages busy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "configs/machine_yaml.h"
#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/generate_cases.h"
#include "traces/transform/lower.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

using testing::HasSubstr;

// A decoder of equal layers whose head and embedding are small.
GenerateOptions pipeline(Count stages, Count chunks, Count micro_batches) {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 24;
  options.model.vocabulary = 1024;
  options.batch = options.micro_batches = micro_batches;
  options.sequence_lengths = {512};
  options.clip = Clip::off;
  options.pipeline_parallel = stages;
  options.pipeline_chunks = chunks;
  return options;
}

// Of the slowest rank, with unlimited memory. An exception if ranks wait for each other for ever.
Nanoseconds iteration_ns(const Trace& trace) {
  const MachineSpec machine = read_machine("p5.48xlarge");
  const std::vector<Trace> traces = split_ranks(trace);
  std::vector<MadePolicy> policies;
  std::vector<Program> programs;
  for (const Trace& rank : traces) {
    policies.push_back(make_policy("ideal", {}));
    programs.push_back(lower(rank, *policies.back().policy, machine.of_rank(programs.size())));
  }
  std::vector<RankRun> runs;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    runs.push_back({&programs[rank], &machine.of_rank(rank), policies[rank].policy.get(), {}});
  }
  const RanksResult result = simulate_ranks(runs, {.max_iterations = 1, .until_steady = false});
  const RunResult& slowest = result.ranks[result.slowest];
  EXPECT_TRUE(slowest.fits) << slowest.misfit;
  return slowest.window.time_ns / static_cast<Nanoseconds>(slowest.period);
}

TEST(GeneratedPipeline, IsShorterWithMoreChunks) {
  for (const Count stages : {2u, 4u, 8u}) {
    Nanoseconds before = 0;
    for (const Count chunks : {1u, 2u, 3u}) {
      const Nanoseconds ns = iteration_ns(generate(pipeline(stages, chunks, stages)));
      if (before != 0) {
        EXPECT_LT(ns, before) << stages << " stages, " << chunks << " chunks";
      }
      before = ns;
    }
  }
}

// Idle for (p − 1) ÷ (v · m) of the time for computing (Narayanan et al., SC'21), where exchanges take no time. This is
// the last stage, over the time of a stage without embedding and head. It also waits a little for the embedding's
// backward pass on the first stage.
TEST(GeneratedPipeline, IsIdleAsThePaperHasIt) {
  const Count stages = 4, micro_batches = 8;
  for (const Count chunks : {1u, 2u, 3u, 6u}) {
    GenerateOptions options = pipeline(stages, chunks, micro_batches);
    options.gpu.collective_latency_ns = 0;
    options.interconnect = 1'000'000'000'000'000'000;
    const Trace trace = generate(options);
    std::vector<Nanoseconds> passes(stages, 0);
    Nanoseconds updates = 0;  // of the first stage, which ends last
    for (const Op& op : trace.ops) {
      if (op.rendezvous != 0) continue;
      if (op.phase != Phase::optimizer) {
        passes[op.rank] += op.duration_ns;
      } else if (op.rank == 0) {
        updates += op.duration_ns;
      }
    }
    const auto idle = static_cast<double>(iteration_ns(trace) - updates - passes[stages - 1]);
    const double bubble = static_cast<double>(stages - 1) / static_cast<double>(chunks * micro_batches);
    EXPECT_NEAR(idle / static_cast<double>(passes[1]), bubble, 0.03) << chunks << " chunks";
  }
}

// Virtual stages one after the other: chunk c of stage s is the (c · stages + s)-th. The first ones have one layer
// more.
TEST(GeneratedPipeline, DealsLayersToVirtualStages) {
  GenerateOptions options = pipeline(2, 3, 2);
  options.model.layers = 13;
  const Trace trace = generate(options);
  std::string layers[2];
  for (const Op& op : trace.ops) {
    if (op.phase != Phase::forward || trace.name(op) != "flash_attention") continue;
    const std::string module(trace.module(op));
    std::string& list = layers[op.rank];
    const std::string layer = module.substr(13, module.find('.', 13) - 13) + " ";
    if (list.find(" " + layer) == std::string::npos && !list.starts_with(layer)) list += layer;
  }
  EXPECT_EQ(layers[0], "0 1 2 5 6 9 10 ");
  EXPECT_EQ(layers[1], "3 4 7 8 11 12 ");
}

// A tensor is sent once, after an op has written it; what is received is read by an op of the chunk that it is for.
TEST(GeneratedPipeline, PassesTensorsFromChunkToChunk) {
  for (const Count stages : {2u, 3u}) {
    GenerateOptions options = pipeline(stages, 3, 2 * stages);
    options.model.layers = 3 * stages;
    const Trace trace = generate(options);
    std::map<TensorId, OpIndex> received, first_read;
    std::set<TensorId> written, sent;
    for (OpIndex i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      const bool exchange = op.rendezvous != 0;
      for (const TensorId id : trace.reads(op)) {
        if (!exchange) {
          first_read.emplace(id, i);
          continue;
        }
        EXPECT_TRUE(written.contains(id)) << trace.names[op.rendezvous];
        EXPECT_TRUE(sent.insert(id).second) << trace.names[op.rendezvous];
      }
      for (const TensorId id : trace.writes(op)) {
        if (exchange) received.emplace(id, i);
        written.insert(id);
      }
    }
    // One activation and one gradient between two virtual stages, for every micro-batch.
    EXPECT_EQ(sent.size(), 2 * (3 * stages - 1) * options.micro_batches);
    EXPECT_EQ(received.size(), sent.size());
    for (const auto& [id, from] : received) {
      ASSERT_TRUE(first_read.contains(id)) << trace.names[trace.ops[from].rendezvous];
      EXPECT_GT(first_read[id], from);
    }
    // A virtual stage has one layer here: the rank of layer v is v modulo the stages, and reads what is for it.
    std::map<std::string, Count> readers;
    for (const auto& [id, from] : received) {
      const std::string module(trace.module(trace.ops[first_read[id]]));
      ++readers[module.substr(0, module.find('.', 13))];
    }
    for (Count layer = 0; layer < 3 * stages; ++layer) {
      const bool inner = layer > 0 && layer + 1 < 3 * stages;
      EXPECT_EQ(readers["model.layers." + std::to_string(layer)], (inner ? 2 : 1) * options.micro_batches) << layer;
    }
  }
}

// Embedding and head are where they were, each parameter is held once, and a tied embedding has its copy on the last
// stage.
TEST(GeneratedPipeline, HoldsTheModel) {
  for (const bool tied : {false, true}) {
    GenerateOptions options = pipeline(4, 3, 4);
    options.model.tied_embeddings = tied;
    const Trace trace = generate(options);
    const Count copy = tied ? options.model.vocabulary * options.model.hidden : 0;
    EXPECT_EQ(bytes_of_role(trace, Role::parameter, true), 2 * (parameter_count(options.model, options.head) + copy));
    for (const Op& op : trace.ops) {
      if (trace.name(op) == "embedding") {
        EXPECT_EQ(op.rank, 0);
      }
      if (trace.name(op) == "cross_entropy") {
        EXPECT_EQ(op.rank, 3);
      }
    }
  }
}

// Whatever else is on: no stages wait for each other, and nothing is computed twice or left out.
TEST(GeneratedPipeline, GoesWithTheOtherOptions) {
  const auto check = [](const char* what, auto change) {
    SCOPED_TRACE(what);
    GenerateOptions options = pipeline(2, 1, 4);
    options.model.layers = 6;
    options.batch = 8;
    options.sequence_lengths = {64};
    change(options);
    const Trace plain = generate(options);
    options.pipeline_chunks = 3;
    const Trace interleaved = generate(options);
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      EXPECT_EQ(flops(interleaved, phase), flops(plain, phase));
    }
    EXPECT_EQ(bytes_of_role(interleaved, Role::parameter, true), bytes_of_role(plain, Role::parameter, true));
    EXPECT_EQ(bytes_of_role(interleaved, Role::optimizer_state, true),
              bytes_of_role(plain, Role::optimizer_state, true));
    EXPECT_GT(iteration_ns(interleaved), 0);
  };
  using O = GenerateOptions;
  check("nothing else", [](O&) {});
  check("tied embeddings", [](O& o) { o.model.tied_embeddings = true; });
  check("lengths", [](O& o) { o.sequence_lengths = {64, 32, 128, 16}; });
  check("forward only", [](O& o) { o.forward_only = true; });
  check("recomputation", [](O& o) { o.recompute = Recompute::block; });
  check("recomputation of a part", [](O& o) { o.recompute = Recompute::ops, o.recompute_share = 0.5; });
  check("adapters", [](O& o) { o.lora_rank = 4, o.weights = find_weight_format("nf4"); });
  check("fused updates", [](O& o) { o.update = Update::fused; });
  check("early norms", [](O& o) { o.clip = Clip::early; });
  check("tensor-parallel", [](O& o) { o.tensor_parallel = 2; });
  for (const int zero : {0, 1, 2, 3}) {
    check("ZeRO", [&](O& o) { o.data_parallel = 2, o.zero = zero; });
    check("ZeRO, tied", [&](O& o) { o.data_parallel = 2, o.zero = zero, o.model.tied_embeddings = true; });
  }
}

TEST(GeneratedPipeline, RefusesChunksThatDoNotFit) {
  const auto error = [](Count stages, Count chunks, Count micro_batches) -> std::string {
    try {
      generate(pipeline(stages, chunks, micro_batches));
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error(4, 6, 4), "no error");
  EXPECT_EQ(error(4, 0, 4), "--pipeline-chunks: is 0; it must be at least 1");
  EXPECT_THAT(error(1, 2, 4), HasSubstr("--pipeline-chunks: interleaves the layers of pipeline stages; give "
                                        "--pipeline-parallel 2 or more"));
  EXPECT_THAT(error(4, 7, 4), HasSubstr("--pipeline-chunks: 4 stages of 7 chunks for the 24 layers of llama-3-8b; give "
                                        "at most 6"));
  EXPECT_THAT(error(4, 1ull << 63, 4), HasSubstr("give at most 6"));
  EXPECT_THAT(error(4, 2, 6), HasSubstr("--pipeline-chunks: needs --micro-batches to be a multiple of the 4 stages"));
}

}  // namespace
}  // namespace tencache
