#include "studies/validity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "configs/validated.h"
#include "core/error.h"
#include "policies/registry.h"

namespace tencache {
namespace {

// Of a policy of a library that is not loaded, all that is known.
PolicyRun run_of(const std::string& policy, const std::map<std::string, std::string>& settings) {
  try {
    return {policy, make_policy(policy, settings).options, make_policy(policy).options};
  } catch (const Error&) {
    return {policy, settings, {}};
  }
}

}  // namespace

std::string published_validity(const Workload& workload, const std::string& policy,
                               const std::map<std::string, std::string>& settings) {
  if (!is_like_measured(workload)) return "extrapolated";
  static const std::vector<Validated> published = read_validated();
  const Provenance& trace = workload.trace->header.provenance;
  return validity_text(validated_for(published, workload.machine.name, trace.made_by), run_of(policy, settings), trace);
}

TimeAtBounds time_at_bounds(const MachineSpec& machine, const RunResult& result, double seconds) {
  TimeAtBounds at{.fast = seconds, .slow = seconds, .links = {}};
  double saved = 0;
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const Link& link = machine.links[i];
    const auto fact = std::ranges::find(machine.facts, "links." + link.name + ".bandwidth", &Fact::path);
    const bool is_bounded = fact != machine.facts.end() && fact->confidence == "estimated" && fact->spread > 0;
    const Nanoseconds busy_ns = result.window.links[i].busy_ns;
    if (!is_bounded || busy_ns <= 0 || result.window.time_ns <= 0) continue;
    const double ratio = 1 + fact->spread, rate = static_cast<double>(link.bandwidth) * 1e-9;
    const double busy = static_cast<double>(busy_ns) / static_cast<double>(result.window.time_ns);
    saved += busy * (1 - 1 / ratio);
    at.slow += seconds * busy * (ratio - 1);
    at.links.push_back(fmt::format("{} ({:.2g} to {:.2g} GB/s)", link.name, rate / ratio, rate * ratio));
  }
  // No link makes the GPU compute faster.
  const auto time_ns = static_cast<double>(std::max<Nanoseconds>(result.window.time_ns, 1));
  at.fast -= seconds * std::min(saved, 1 - static_cast<double>(result.window.compute_ns) / time_ns);
  return at;
}

std::string measured_validity(const std::vector<PredictedRun>& runs, const std::string& machine, MadeBy trace,
                              const std::string& changes) {
  if (trace == MadeBy::unknown) return "";  // nobody knows whether it is the same kind
  double worst = 0;
  std::size_t count = 0;
  for (const PredictedRun& run : runs) {
    if (run.machine != machine || run.trace != trace || run.changes != changes) continue;
    worst = std::max(worst, std::abs(run.error));
    ++count;
  }
  return count == 0 ? "" : fmt::format("validated within {:.1f} % ({} measured)", 100 * worst, count);
}

}  // namespace tencache
