#include "sim/rehearse.h"

#include <utility>

#include "core/engine/engine.h"
#include "sim/sim_machine.h"

namespace tencache {
Rehearsal rehearse(const Program& program, const MachineSpec& machine, Policy& candidate,
                   const RehearsalLimits& limits) {
  SimMachine simulated(machine);
  Nanoseconds begin_ns = 0, settled_ns = 0;  // of the present iteration; of the first that counts
  EngineOptions options;
  options.on_iteration = [&](std::uint64_t iteration) {
    begin_ns = simulated.now();
    if (iteration == limits.settling) settled_ns = begin_ns;
  };
  Engine engine(machine, simulated, candidate, &program, std::move(options));
  std::uint64_t events = 0;
  bool fits = true;
  const auto hopeless = [&] {
    const Nanoseconds taken_ns = simulated.now() - begin_ns;
    if (engine.iteration() < limits.settling) return engine.iteration() > 0 && taken_ns / 2 > limits.hopeless_ns;
    const auto counted = static_cast<Nanoseconds>(limits.iterations - limits.settling);
    return taken_ns - taken_ns / 8 > limits.hopeless_ns ||
           (simulated.now() - settled_ns) / counted > limits.hopeless_ns;
  };
  try {
    engine.start({.max_iterations = limits.iterations, .until_steady = true});
    Completion completion;
    for (; !engine.finished() && events < limits.events && !hopeless();) {
      if (simulated.wait(completion)) {
        engine.handle(completion);
        ++events;
      } else if (!engine.stand_still()) {
        engine.throw_out_of_memory();
      }
    }
  } catch (const OutOfMemory&) {
    fits = false;
  }
  Rehearsal rehearsal;
  rehearsal.fits = fits;
  rehearsal.complete = engine.finished();
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
