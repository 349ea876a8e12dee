#include "sim/rehearse.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/reveal.h"
#include "sim/simulated_rank.h"

namespace tencache {
namespace {

// Whether all that is alive at once fits into the machine's memories, so that nothing has to be in storage.
bool memories_hold_all(const Trace& trace, const MachineSpec& machine) {
  std::vector<OpIndex> born(trace.tensors.size(), none);
  const std::vector<OpIndex> deaths = trace.deaths();
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    for (const std::span<const TensorId> used : {trace.reads(trace.ops[op]), trace.writes(trace.ops[op])}) {
      for (const TensorId id : used) born[id] = std::min(born[id], op);
    }
  }
  uint128 alive = 0, room = 0;  // sums of any sizes
  std::vector<uint128> born_at(trace.ops.size(), 0), dead_after(trace.ops.size(), 0);
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    const Tensor& tensor = trace.tensors[id];
    if (tensor.persistent) {
      alive += tensor.bytes;
    } else if (born[id] != none) {
      born_at[born[id]] += tensor.bytes;
      dead_after[deaths[id]] += tensor.bytes;
    }
  }
  for (const Tier& tier : machine.tiers) room += tier.kind == TierKind::nvme ? 0 : tier.capacity;
  uint128 most = alive;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    alive += born_at[op];
    most = std::max(most, alive);
    alive -= dead_after[op];
  }
  return most <= room;
}

}  // namespace

Rehearsal rehearse(const Program& rehearsed, const MachineSpec& machine, Policy& candidate,
                   const RehearsalLimits& limits) {
  std::optional<Program> drawn;  // what gates will choose is not known: others in their place
  if (has_gates(rehearsed.trace)) drawn.emplace(Program{draw_experts(rehearsed.trace), rehearsed.changes});
  const Program& program = drawn ? *drawn : rehearsed;
  SimulatedRank rank(machine);
  Machine& simulated = rank.port();
  Nanoseconds begin_ns = 0, settled_ns = 0;  // of the present iteration; of the first that counts
  EngineOptions options;
  options.on_iteration = [&](std::uint64_t iteration) {
    begin_ns = simulated.now();
    if (iteration == limits.settling) settled_ns = begin_ns;
  };
  Engine engine(machine, simulated, candidate, &program, std::move(options));
  rank.look_at(engine.memory());
  std::uint64_t events = 0;
  bool fits = true;
  const auto hopeless = [&] {
    const Nanoseconds taken_ns = simulated.now() - begin_ns;
    if (engine.iteration() < limits.settling) return engine.iteration() > 0 && taken_ns / 2 > limits.hopeless_ns;
    const auto counted = static_cast<Nanoseconds>(limits.iterations - limits.settling);
    return taken_ns - taken_ns / 8 > limits.hopeless_ns ||
           (simulated.now() - settled_ns) / counted > limits.hopeless_ns;
  };
  // The last iteration ends where the next would begin, as all others do: at the end of a run it would include updates
  // on the CPU that the next one hides. Where storage takes part schedules settle late, and what is still to be done
  // then stands for what they have put off.
  const std::uint64_t next = memories_hold_all(program.trace, machine) ? 1 : 0;
  const auto done = [&] { return engine.settled() || engine.iterations_counted() >= limits.iterations; };
  try {
    engine.start({.max_iterations = limits.iterations + next, .until_steady = true});
    Completion completion;
    for (; !done() && events < limits.events && !hopeless();) {
      if (simulated.wait(completion)) {
        engine.handle(completion);
        if (completion.status != CompletionStatus::observed) ++events;
      } else if (engine.finished()) {
        engine.settle();
      } else if (!engine.stand_still()) {
        engine.throw_out_of_memory();
      }
    }
  } catch (const OutOfMemory&) {
    fits = false;
  }
  Rehearsal rehearsal;
  rehearsal.fits = fits;
  rehearsal.complete = done();
  rehearsal.events = events;
  const RunResult result = engine.result();
  rehearsal.recurs = rehearsal.complete && result.steady;
  if (result.iterations > 0) rehearsal.iteration_ns = result.window.time_ns / static_cast<Nanoseconds>(result.period);
  for (LinkId link = 0; link < machine.links.size() && result.iterations > 0; ++link) {
    if (machine.tiers[machine.links[link].to].kind != TierKind::nvme) continue;
    rehearsal.stored += result.window.links[link].bytes / result.period;
  }
  if (!rehearsal.complete) return rehearsal;
  const Residency& memory = engine.memory();
  rehearsal.tiers.resize(memory.chunk_total(), 0);
  for (ChunkId chunk = 0; chunk < rehearsal.tiers.size(); ++chunk) {
    for (TierId tier = 0; tier < memory.tier_count(); ++tier) {
      if (memory.valid(chunk, tier)) rehearsal.tiers[chunk] |= static_cast<std::uint8_t>(1u << tier);
    }
  }
  return rehearsal;
}

}  // namespace tencache
