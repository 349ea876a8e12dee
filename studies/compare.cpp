#include "studies/compare.h"

#include <algorithm>
#include <limits>

#include "studies/validity.h"

namespace tencache {
namespace {

bool is_ideal(const ComparedPolicy& compared) { return compared.outcome.policy == "ideal"; }

double seconds_of(const Outcome& outcome) {
  return outcome.result.fits ? outcome.result.iteration_seconds() : std::numeric_limits<double>::infinity();
}

void add_intervals(Comparison& comparison) {
  std::vector<Sampled> sampled;
  for (const ComparedPolicy& compared : comparison.policies) {
    if (!is_ideal(compared)) sampled.push_back({compared.outcome.policy, {}, seconds_of(compared.outcome)});
  }
  comparison.intervals = sample_intervals(comparison.workload, sampled, comparison.workload.scenario.sampling);
  if (comparison.intervals.samples == 0) return;
  auto interval = comparison.intervals.policies.begin();
  for (ComparedPolicy& compared : comparison.policies) {
    if (!is_ideal(compared)) compared.interval = *interval++;
  }
}

}  // namespace

Comparison compare_policies(
    const CompareRequest& request,
    const std::function<void(std::size_t done, std::size_t all, const std::string& policy)>& progress) {
  const std::vector<std::string> names = policies_named(request.policies);
  Comparison comparison{.workload = load_workload(request.scenario), .references = {}, .policies = {}, .intervals = {}};
  const Workload& workload = comparison.workload;
  std::vector<ComparedPolicy>& policies = comparison.policies;
  comparison.references = references_of(workload);
  const auto simulate = [&](const std::string& name) {
    ComparedPolicy compared{simulate_or_refuse(workload, name, {})};
    compared.outcome.program.trace = Trace();
    return compared;
  };
  for (const std::string& name : names) {
    if (progress) progress(policies.size(), names.size(), name);
    policies.push_back(simulate(name));
  }
  std::ranges::stable_sort(policies, {}, [](const ComparedPolicy& compared) { return seconds_of(compared.outcome); });
  comparison.any_fits = std::ranges::any_of(policies, [&](const ComparedPolicy& compared) {
    return compared.outcome.result.fits && (!is_ideal(compared) || names.size() == 1);
  });
  add_intervals(comparison);
  if (std::ranges::find(names, "ideal") == names.end()) policies.insert(policies.begin(), simulate("ideal"));
  for (ComparedPolicy& compared : policies) {
    const Outcome& outcome = compared.outcome;
    if (outcome.result.fits && !is_ideal(compared)) {
      compared.validity = published_validity(workload, outcome.policy, outcome.options);
    }
  }
  return comparison;
}

}  // namespace tencache
