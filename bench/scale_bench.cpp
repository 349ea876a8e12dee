// How time and memory grow with the trace: synthetic training iterations of 10^4 to 10^7 ops, simulated on a GPU with
// half the memory they need.
//
// accesses/s counts the tensors that ops read and write, over the set-up of the engine and two iterations, in processor
// time; make_s is the processor time that making the trace took before. MiB is what the process grew by at its peak,
// trace and run together. The slopes are of the logarithms, against the size before: 1 is linear.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <string>

#include "bench/synthetic_trace.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using Settings = std::map<std::string, std::string>;

// Of the process: now ("VmRSS:"), or at its peak ("VmHWM:").
double resident_bytes(const std::string& which) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kibibytes = 0;
    if (word == which && file >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

double seconds_since(std::clock_t begin) { return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC; }

struct Size {
  double ops = 0, seconds = 0, bytes = 0;
};
std::map<std::string, Size> measured_before;  // by policy

void simulated(benchmark::State& state, const std::string& policy, const Settings& settings) {
  malloc_trim(0);
  forget_peak();
  const double bytes_before = resident_bytes("VmRSS:");
  const std::clock_t made_from = std::clock();
  SyntheticTrace made = synthetic_trace(static_cast<std::uint32_t>(state.range(0)));
  state.counters["make_s"] = seconds_since(made_from);
  const MachineSpec machine = synthetic_machine(made);
  const Program program = lower(std::move(made.trace), *make_policy(policy, settings).policy, machine);
  double accesses = 0, completions = 0;
  Size size{.ops = static_cast<double>(program.trace.ops.size())};
  for (auto _ : state) {
    const std::clock_t begin = std::clock();
    const MadePolicy fresh = make_policy(policy, settings);
    const RunResult result = simulate(program, machine, *fresh.policy, {.max_iterations = 2, .until_steady = false});
    size.seconds += seconds_since(begin);
    if (!result.fits) state.SkipWithError(result.misfit.c_str());
    accesses += static_cast<double>(program.trace.accesses.size()) * static_cast<double>(result.iterations);
    completions += static_cast<double>(result.simulated_events);
    size.bytes = resident_bytes("VmHWM:") - bytes_before;
  }
  size.seconds /= static_cast<double>(state.iterations());
  state.counters["accesses/s"] = benchmark::Counter(accesses, benchmark::Counter::kIsRate);
  state.counters["completions/s"] = benchmark::Counter(completions, benchmark::Counter::kIsRate);
  state.counters["MiB"] = size.bytes / static_cast<double>(MiB);
  if (const auto before = measured_before.find(policy); before != measured_before.end()) {
    const double factor = std::log(size.ops / before->second.ops);
    if (factor > 0) {
      state.counters["time_slope"] = std::log(size.seconds / before->second.seconds) / factor;
      state.counters["memory_slope"] = std::log(size.bytes / before->second.bytes) / factor;
    }
  }
  measured_before[policy] = size;
}

void small_sizes(benchmark::internal::Benchmark* bench) {
  bench->RangeMultiplier(10)->Range(10'000, 1'000'000)->Unit(benchmark::kMillisecond);
}
void ten_million(benchmark::internal::Benchmark* bench) {
  bench->Arg(10'000'000)->Iterations(1)->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(simulated, lru, "lru", {})->Apply(small_sizes);
BENCHMARK_CAPTURE(simulated, lru, "lru", {})->Apply(ten_million);
BENCHMARK_CAPTURE(simulated, 10cache, "10cache", {})->Apply(small_sizes);
BENCHMARK_CAPTURE(simulated, 10cache, "10cache", {})->Apply(ten_million);
BENCHMARK_CAPTURE(simulated, fifo, "fifo", {})->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulated, lfu, "lfu", {})->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulated, belady, "belady", {})->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulated, belady_ordered, "belady", Settings{{"prefetch", "ordered"}})
    ->Arg(1'000'000)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
