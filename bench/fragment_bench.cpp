// Allocations of twelve lengths that take turns, some 10⁵ events, under each allocator of `tencache fragment` and under
// six of them together: what a table of the command takes, without the settings that it tries beside.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "configs/generate_settings.h"
#include "studies/fragment.h"
#include "traces/transform/allocations_of.h"

namespace tencache {
namespace {

const Allocations& allocations() {
  static const Allocations made = [] {
    std::vector<Trace> traces;
    for (int length = 12; length > 0; --length) {
      traces.push_back(generate_trace({{"model", "gpt2-xl"},
                                       {"batch", "8"},
                                       {"seq", std::to_string(512 + 42 * (length * 5 % 13))},
                                       {"gpu", "a100-80g"},
                                       {"stack", "compiled"}}));
    }
    std::vector<const Trace*> all;
    for (const Trace& trace : traces) all.push_back(&trace);
    return allocations_of(all, {2, false});
  }();
  return made;
}

void under(benchmark::State& state, const std::vector<const char*>& names) {
  for (auto _ : state) {
    for (const char* name : names) {
      benchmark::DoNotOptimize(run_fragment(allocations(), fragment_allocator(name), no_fragment_limit));
    }
  }
  state.counters["events"] = static_cast<double>(allocations().events.size());
}

BENCHMARK_CAPTURE(under, default_, {"default"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, expandable, {"expandable"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, max_split_20, {"max_split_size_mb:20"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, max_split_512, {"max_split_size_mb:512"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, gmlake, {"gmlake"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, exact, {"exact"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, planned, {"planned"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, stweaver, {"stweaver"})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(under, six,
                  {"default", "expandable", "max_split_size_mb:20", "max_split_size_mb:512", "gmlake", "exact"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
