#include "tests/live/predicted_step.h"

#include <cmath>
#include <utility>

#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "traces/transform/lower.h"

namespace tencache {

PredictedStep predict_step(const Trace& trace, const MachineSpec& machine, Policy& policy) {
  prepare(trace, policy, machine, rehearse);
  EngineOptions engine;
  engine.rehearse = rehearse;
  const RunResult result = simulate({trace, {}}, machine, policy, {}, std::move(engine));
  return {result.fits, std::llround(1e9 * result.iteration_seconds()), result.peak_bytes};
}

}  // namespace tencache
