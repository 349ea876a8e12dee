// Reading and writing traces: bytes of JSON a second. The reader must stay above 200 MB/s.
#include <benchmark/benchmark.h>

#include <string>

#include "core/trace.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

// Like a recording of a transformer: a few names, three reads and one or two writes an op.
Trace make_trace(std::uint32_t op_count) {
  Trace trace;
  trace.header.model = "benchmark";
  for (std::uint32_t i = 0; i < op_count; ++i) {
    trace.add_tensor("layers." + std::to_string(i % 48) + ".attention.tensor_" + std::to_string(i), 4096 + i,
                     Role::activation, true);
  }
  for (std::uint32_t i = 0; i < op_count; ++i) {
    Op op;
    op.name = trace.names.intern(i % 2 ? "aten::mm" : "aten::native_layer_norm");
    op.module = trace.names.intern("layers." + std::to_string(i % 48) + ".attention");
    op.phase = i < op_count / 2 ? Phase::forward : Phase::backward;
    op.duration_ns = 1'000'000 + i;
    op.gap_before_ns = i % 5000;
    op.flops = 123'456'789ull * (i % 100);
    op.bytes = 1'000'000 + i;
    const TensorId reads[] = {i, i / 2, i / 3};
    const TensorId writes[] = {op_count - 1 - i};
    trace.add_op(op, reads, writes);
  }
  return trace;
}

void parse(benchmark::State& state) {
  const std::string text = format_trace(make_trace(static_cast<std::uint32_t>(state.range(0))));
  for (auto _ : state) benchmark::DoNotOptimize(parse_trace(text, "benchmark"));
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) * state.iterations());
}
BENCHMARK(parse)->Arg(1000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void format(benchmark::State& state) {
  const Trace trace = make_trace(static_cast<std::uint32_t>(state.range(0)));
  std::int64_t bytes = 0;
  for (auto _ : state) bytes += static_cast<std::int64_t>(format_trace(trace).size());
  state.SetBytesProcessed(bytes);
}
BENCHMARK(format)->Arg(100'000)->Unit(benchmark::kMillisecond);

void hash(benchmark::State& state) {
  const std::string bytes(static_cast<std::size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(sha256_hex(bytes));
  state.SetBytesProcessed(state.range(0) * state.iterations());
}
BENCHMARK(hash)->Arg(1 << 22)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
