// How many completions a second the engine and the simulated machine handle: a tight GPU that thrashes, and a
// recording.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "configs/machine_yaml.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "traces/import/csv.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

void measure(benchmark::State& state, const Trace& trace, const MachineSpec& machine,
             const std::map<std::string, std::string>& settings) {
  std::uint64_t completions = 0;
  for (auto _ : state) {
    const MadePolicy made = make_policy("on-demand", settings);
    const Program program = lower(trace, *made.policy, machine);
    RunResult result = simulate(program, machine, *made.policy, {.max_iterations = 3, .until_steady = false});
    if (!result.fits) state.SkipWithError(result.misfit.c_str());
    completions += result.simulated_events;
    benchmark::DoNotOptimize(result.window.time_ns);
  }
  state.counters["completions/s"] = benchmark::Counter(static_cast<double>(completions), benchmark::Counter::kIsRate);
}

MachineSpec g10() { return read_machine(std::string(TENCACHE_SOURCE_DIR) + "/configs/machines/g10-a100.yaml"); }

// 200 layers of 1 GiB on a GPU of 40 GiB: every chunk misses, every iteration.
void synthetic_thrashing(benchmark::State& state) {
  Trace trace;
  for (int layer = 0; layer < 200; ++layer) {
    const TensorId tensor = trace.add_tensor("layer" + std::to_string(layer), GiB, Role::parameter, true);
    Op op;
    op.duration_ns = 10'000'000;
    trace.add_op(op, std::vector<TensorId>{tensor}, std::vector<TensorId>{tensor});
  }
  measure(state, trace, g10(), {});
}
BENCHMARK(synthetic_thrashing)->Unit(benchmark::kMillisecond);

void recording(benchmark::State& state, const std::map<std::string, std::string>& settings) {
  const auto folder = std::filesystem::path(TENCACHE_SOURCE_DIR) / "../shared/traces/g10/BERT_Base-256";
  if (!std::filesystem::exists(folder)) {
    state.SkipWithError("the recording is not there");
    return;
  }
  CsvImportOptions options;
  options.ops_file = folder.string();
  measure(state, import_csv(options), g10(), settings);
}
BENCHMARK_CAPTURE(recording, bert_on_demand, std::map<std::string, std::string>{})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(recording, bert_g10_uvm, std::map<std::string, std::string>{{"mode", "g10-uvm"}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
