#include "sim/simulate.h"

#include <utility>

#include "sim/sim_machine.h"

namespace tencache {

RunResult simulate(const Program& program, const MachineSpec& machine, Policy& policy, const RunLimits& limits,
                   EngineOptions options) {
  SimMachine simulated(machine);
  Engine engine(machine, simulated, policy, &program, std::move(options));
  return engine.run(limits);
}

}  // namespace tencache
