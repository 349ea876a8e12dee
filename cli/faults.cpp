#include "cli/faults.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace tencache {

CLI::Option* add_faults_option(CLI::App& command, std::string& plan) {
  return refuse_empty(
      command.add_option("--faults", plan,
                         "Make things go wrong by this plan, such as seed=7 (a mixture drawn from the seed) or "
                         "seed=7,copy_error=0.01,delay=0.05:2ms (docs/reliability.md)"));
}

std::optional<FaultPlan> announce_faults(WorkloadOptions& options, const MachineSpec& machine) {
  if (options.faults.empty()) return std::nullopt;
  const FaultPlan plan = parse_fault_plan(options.faults);
  for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) FaultInjector(plan, machine.of_rank(rank));
  options.faults = to_string(plan);
  remark("faults: " + options.faults + "; --faults with this text repeats them");
  for (const Tier& tier : machine.tiers) {
    if (!plan.has(FaultKind::torn_write) || tier.kind != TierKind::nvme || tier.checksums) continue;
    remark("note: torn writes go unnoticed in tier '" + tier.name + "', which has no 'checksums: true'");
  }
  return plan;
}

Json faults_json(const WorkloadOptions& options, const FaultCounts& injected) {
  Json counts = Json::object();
  for (std::size_t kind = 0; kind < injected.size(); ++kind) {
    counts[std::string(to_string(static_cast<FaultKind>(kind)))] = injected[kind];
  }
  return {{"plan", options.faults}, {"injected", std::move(counts)}};
}

}  // namespace tencache
