#include "studies/calibrate_program.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/check.h"
#include "executor/live/live_runtime.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

// Tensors of three sizes, each op using one of each, so that a step is a chain of stalls of a few copies. Only half of
// the bytes fit: under LRU every use is a miss.
constexpr std::array<Bytes, 3> tensor_bytes{64 * KiB, 256 * KiB, 1 * MiB};
constexpr std::size_t op_count = 20;
constexpr Bytes all_bytes = op_count * (64 * KiB + 256 * KiB + 1 * MiB);

// The GPU and CPU memory of the machine, with the links between them at a quarter of their bandwidth: a run holds its
// links back to their figures, and what comes on top of that is what is sought.
MachineSpec two_tiers(const MachineSpec& machine, Bytes gpu_bytes) {
  MachineSpec result;
  result.name = machine.name;
  result.tiers = {machine.tiers[0], machine.tiers[1]};
  result.tiers[0].capacity = gpu_bytes;
  result.tiers[1].capacity = 2 * all_bytes;
  result.links = {machine.links[0], machine.links[1]};
  for (Link& link : result.links) link.bandwidth /= 4;
  result.resources = machine.resources;
  result.initial_tier = 1;
  return with_real_pages(result);
}

struct Steps {
  double seconds = 0;  // median step
  Trace trace;         // of one step
};

Steps run_steps(const MachineSpec& machine, std::uint64_t steps) {
  const MadePolicy policy = make_policy("on-demand");
  LiveRuntime runtime(machine, *policy.policy);
  std::vector<LiveRuntime::Storage> storages;
  for (std::size_t i = 0; i < op_count; i++) {
    for (const Bytes bytes : tensor_bytes) {
      storages.push_back(runtime.allocate(bytes, false));
      std::fill_n(storages.back().address, bytes, std::byte{1});
      runtime.mark(storages.back().tensor, Role::parameter, "");
    }
  }
  std::vector<double> seconds;
  Nanoseconds last_ns = 0;
  for (std::uint64_t step = 0; step <= steps; step++) {
    runtime.iteration_boundary();
    const Nanoseconds now_ns = runtime.machine().now();
    if (step > 2) seconds.push_back(to_seconds(now_ns - last_ns));  // the second is recorded, the first warms up
    last_ns = now_ns;
    if (step == steps) break;
    for (std::size_t op = 0; op < op_count; op++) {
      std::vector<Use> uses;
      for (std::size_t i = 0; i < tensor_bytes.size(); i++) {
        uses.push_back({storages[op * tensor_bytes.size() + i].tensor, true, i == op % tensor_bytes.size()});
      }
      runtime.begin_op("touch", uses);
      for (std::size_t i = 0; i < tensor_bytes.size(); i++) {
        const std::byte* address = storages[op * tensor_bytes.size() + i].address;
        std::byte sum{0};
        for (Bytes at = 0; at < tensor_bytes[i]; at++) sum ^= address[at];
        if (uses[i].write) std::fill_n(storages[op * tensor_bytes.size() + i].address, tensor_bytes[i], sum);
      }
      runtime.end_op();
    }
  }
  Steps result{.seconds = measured_median(std::move(seconds)).value, .trace = runtime.recorded()};
  for (const LiveRuntime::Storage& storage : storages) runtime.release(storage.tensor);
  return result;
}

struct Simulated {
  double seconds = 0;
  double copies = 0;
};

Simulated simulate_program(const Trace& trace, const MachineSpec& machine) {
  const MadePolicy policy = make_policy("on-demand");
  const Program program = lower(trace, *policy.policy, machine);
  Timeline timeline;
  EngineOptions options;
  options.timeline = &timeline;
  const RunResult result = simulate(program, machine, *policy.policy, {}, std::move(options));
  const auto copies = std::ranges::count_if(timeline.spans, [&](const Span& span) {
    return span.kind == SpanKind::transfer && span.iteration + 1 == result.iterations;
  });
  return {result.iteration_seconds(), static_cast<double>(copies)};
}

}  // namespace

MeasuredMedian measure_host_cost(const MachineSpec& calibrated, bool quick) {
  const MachineSpec roomy = two_tiers(calibrated, 2 * all_bytes), tight = two_tiers(calibrated, all_bytes / 2);
  std::vector<double> costs;
  for (int pair = 0; pair < (quick ? 3 : 7); pair++) {
    const Steps free = run_steps(roomy, quick ? 6 : 20), paged = run_steps(tight, quick ? 6 : 20);
    const Simulated ideal = simulate_program(free.trace, roomy), predicted = simulate_program(free.trace, tight);
    TENCACHE_CHECK(predicted.copies > 0);
    const double extra = (paged.seconds - free.seconds) - (predicted.seconds - ideal.seconds);
    costs.push_back(std::max(0.0, extra / predicted.copies));
  }
  return measured_median(std::move(costs));
}

}  // namespace tencache
