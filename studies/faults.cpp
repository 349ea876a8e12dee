#include "studies/faults.h"

#include "core/remark.h"

namespace tencache {

std::optional<FaultPlan> announce_faults(Scenario& scenario, const MachineSpec& machine) {
  if (scenario.faults.empty()) return std::nullopt;
  const FaultPlan plan = parse_fault_plan(scenario.faults);
  for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) FaultInjector(plan, machine.of_rank(rank));
  scenario.faults = to_string(plan);
  remark("faults: " + scenario.faults + "; --faults with this text repeats them");
  for (const Tier& tier : machine.tiers) {
    if (!plan.has(FaultKind::torn_write) || tier.kind != TierKind::nvme || tier.checksums) continue;
    remark("note: torn writes go unnoticed in tier '" + tier.name + "', which has no 'checksums: true'");
  }
  return plan;
}

}  // namespace tencache
