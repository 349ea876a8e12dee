// How long the planning policies take to plan, from the recorded iteration to the last decision: TERAIO's two models
// (fp32, no recomputation, on one GPU of its server) with as many micro-batches as give 60,000 and 250,000 ops. The
// paper gives 31 s and 397 s for Llama-3-8B and 70B.
//
// ops, and planned GB written in an iteration by the plan's own hints.
#include <benchmark/benchmark.h>

#include <map>
#include <string>

#include "configs/gpu_yaml.h"
#include "configs/machine_yaml.h"
#include "configs/model_yaml.h"
#include "policies/registry.h"
#include "tests/profiled_program.h"
#include "traces/generate/generate.h"

namespace tencache {
namespace {

using Settings = std::map<std::string, std::string>;

Trace llama(const std::string& model, std::uint64_t sequences, std::uint64_t op_count) {
  GenerateOptions options;
  options.model = read_model(model);
  options.gpu = read_gpu("h100-nvl");
  options.precision = Precision::fp32;
  options.sequence_lengths = {2048};
  options.micro_batches = options.batch = 1;
  const std::uint64_t one = generate(options).ops.size();
  options.micro_batches = options.batch = 2;
  const std::uint64_t two = generate(options).ops.size();
  options.micro_batches = 1 + (op_count - one) / (two - one);
  options.batch = options.micro_batches * sequences;
  return generate(options);
}

void plan(benchmark::State& state, const Trace& trace, const std::string& policy, const Settings& settings) {
  const MachineSpec machine = read_machine("teraio-h100");
  const ProfiledProgram profiled(trace, machine);
  double written = 0;
  for (auto _ : state) {
    const MadePolicy made = make_policy(policy, settings);
    Actions actions;
    made.policy->on({.kind = EventKind::profile_ready}, profiled.view, actions);
    state.PauseTiming();
    written = 0;
    for (OpIndex op = 0; op < trace.ops.size(); ++op)
      made.policy->on({.kind = EventKind::op_issued, .op = op}, profiled.view, actions);
    for (const Action& action : actions.list()) {
      if (action.verb == Verb::evict) written += static_cast<double>(trace.tensors[action.tensor].bytes);
    }
    state.ResumeTiming();
  }
  state.counters["ops"] = static_cast<double>(trace.ops.size());
  state.counters["GB"] = written / 1e9;
}

const Trace& llama_8b() {
  static const Trace trace = llama("llama-3-8b", 5, 60'000);
  return trace;
}
const Trace& llama_70b() {
  static const Trace trace = llama("llama-3-70b", 3, 250'000);
  return trace;
}

void plan_8b(benchmark::State& state, const std::string& policy, const Settings& settings) {
  plan(state, llama_8b(), policy, settings);
}
void plan_70b(benchmark::State& state, const std::string& policy, const Settings& settings) {
  plan(state, llama_70b(), policy, settings);
}
BENCHMARK_CAPTURE(plan_8b, teraio, "teraio", Settings{})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_8b, teraio_text, "teraio", Settings{{"benefit", "text"}})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_8b, teraio_mixed, "teraio", Settings{{"cpu_memory", "170GB"}})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_8b, g10, "g10", Settings{})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_70b, teraio, "teraio", Settings{})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_70b, teraio_text, "teraio", Settings{{"benefit", "text"}})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_70b, teraio_mixed, "teraio", Settings{{"cpu_memory", "385GB"}})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan_70b, g10, "g10", Settings{})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
