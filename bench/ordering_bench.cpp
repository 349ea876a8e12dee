// What the order of an op costs (core/ordering.h): four uses, two reads and two writes, among as many tensors as a
// model has; nothing has to be waited for.
#include <benchmark/benchmark.h>

#include "core/ordering.h"

namespace tencache {
namespace {

constexpr Bytes tensor_bytes = 1 << 20;

void op_of_four_uses(benchmark::State& state) {
  const auto tensors = static_cast<std::uint64_t>(state.range(0));
  LineClocks clocks;
  RegionTickets regions;
  Waits waits;
  const Line program = clocks.open(), upload = clocks.open();
  for (std::uint64_t tensor = 0; tensor < tensors; ++tensor) {
    regions.after({tensor * tensor_bytes, tensor_bytes}, true, clocks.next(upload));
  }
  clocks.waited(program, clocks.last(upload));
  std::uint64_t next = 0;
  for (auto _ : state) {
    ByteRange uses[4];
    for (ByteRange& use : uses) use = {(next += 7) % tensors * tensor_bytes, tensor_bytes};
    waits.clear();
    for (int use = 0; use < 4; ++use) regions.before(uses[use], use >= 2, program, waits);
    clocks.reduce(program, waits);
    if (!waits.empty()) state.SkipWithError("something has to be waited for");
    const Ticket mine = clocks.next(program);
    for (int use = 0; use < 4; ++use) regions.after(uses[use], use >= 2, mine);
  }
}
BENCHMARK(op_of_four_uses)->Arg(100)->Arg(1000)->Arg(10000);

// The same with a copy beside each op that it has to wait for, and a copy back that waits for the op.
void op_beside_copies(benchmark::State& state) {
  const auto tensors = static_cast<std::uint64_t>(state.range(0));
  LineClocks clocks;
  RegionTickets regions;
  Waits waits;
  const Line program = clocks.open(), upload = clocks.open(), download = clocks.open();
  const auto submit = [&](Line line, std::uint64_t tensor, bool write) {
    const ByteRange extent{tensor % tensors * tensor_bytes, tensor_bytes};
    waits.clear();
    regions.before(extent, write, line, waits);
    clocks.reduce(line, waits);
    for (const Ticket ticket : waits) clocks.waited(line, ticket);
    regions.after(extent, write, clocks.next(line));
  };
  std::uint64_t next = 0;
  for (auto _ : state) {
    next += 7;
    submit(upload, next, true);
    submit(program, next, true);
    submit(download, next, false);
    if (next % 16 == 0) clocks.passed(clocks.last(download));
    regions.forget(clocks);
  }
}
BENCHMARK(op_beside_copies)->Arg(1000);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
