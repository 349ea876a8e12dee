// Small training steps: the lower bound, the exact optimum (tests/exact/small_optimum.h), foresight, and the fastest of
// all other policies. Prints a table as Markdown; simulated figures, in units of time.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "studies/bound.h"
#include "tests/exact/small_optimum.h"
#include "tests/exact/small_step.h"
#include "traces/transform/lower.h"

using namespace tencache;

namespace {

// Units of an iteration; 0: it does not run.
double units_of(const std::string& name, const SmallStep& step, const MachineSpec& machine) {
  try {
    const MadePolicy made = make_policy(name, {});
    prepare(step.trace, *made.policy, machine, rehearse);
    const RunResult result = simulate(lower(step.trace, *made.policy, machine), machine, *made.policy);
    return result.fits ? result.iteration_seconds() * 1e9 / static_cast<double>(small_unit_ns) : 0;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace

int main(int count, char** words) {
  const int cases = count > 1 ? std::atoi(words[1]) : 48;
  std::printf(
      "| seed | ops | tensors | on the GPU | bound | optimum | foresight | fastest other |\n"
      "|---|---|---|---|---|---|---|---|\n");
  int bound_reached = 0, optimum_reached = 0;
  double bound_share = 0, foresight_share = 0;
  for (int seed = 1; seed <= cases; ++seed) {
    const SmallStep step = small_step(static_cast<std::uint64_t>(seed));
    const MachineSpec machine = small_step_machine(step);
    const double bound = lower_bound_of(step.trace, machine).seconds * 1e9 / static_cast<double>(small_unit_ns);
    const double optimum = small_optimum(step.trace, small_unit_ns, step.gpu_tensors).units;
    const double ours = units_of("foresight", step, machine);
    double other = 0;
    std::string fastest;
    for (const PolicyInfo& entry : list_policies()) {
      const std::string& name = entry.name;
      if (name == "foresight" || name == "ideal") continue;
      const double units = units_of(name, step, machine);
      if (units == 0 || (other != 0 && units >= other)) continue;
      other = units;
      fastest = name;
    }
    bound_reached += bound >= 0.999 * optimum ? 1 : 0;
    optimum_reached += ours <= 1.001 * optimum ? 1 : 0;
    bound_share += bound / optimum / cases;
    foresight_share += optimum / ours / cases;
    std::printf("| %d | %zu | %zu | %d | %.2f | %.2f | %.2f | %.2f %s |\n", seed, step.trace.ops.size(),
                step.trace.tensors.size(), step.gpu_tensors, bound, optimum, ours, other, fastest.c_str());
  }
  std::printf(
      "\nThe bound is the optimum in %d of %d cases, and %.3f of it in the mean. foresight reaches it in %d, and is "
      "within %.3f of it in the mean (optimum / foresight).\n",
      bound_reached, cases, bound_share, optimum_reached, foresight_share);
}
