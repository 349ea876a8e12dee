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
