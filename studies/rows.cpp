#include "studies/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "configs/machine_yaml.h"
#include "core/error.h"
#include "core/parse_number.h"

namespace tencache {

std::uint32_t parse_row_slots(const std::string& text, std::uint64_t rows) {
  std::optional<double> wanted;
  if (text.ends_with('%')) {
    const auto percent = parse_number<double>(text.substr(0, text.size() - 1));
    if (percent && *percent > 0 && *percent <= 100) wanted = static_cast<double>(rows) * (*percent / 100);
  } else if (const auto count = parse_number<std::uint64_t>(text); count && *count > 0) {
    wanted = static_cast<double>(*count);
  }
  if (!wanted) throw Error("--slots: '" + text + "' is no share such as 1% and no number of rows such as 500000");
  constexpr double most = 0x7fff'ffff;
  return static_cast<std::uint32_t>(std::clamp(*wanted, 1.0, std::min(static_cast<double>(rows), most)));
}

void set_row_links(RowRates& rates, const std::string& name) {
  const MachineSpec machine = read_machine(name);
  const auto cpu = std::ranges::find(machine.tiers, TierKind::cpu, &Tier::kind);
  const auto cpu_tier = static_cast<TierId>(cpu - machine.tiers.begin());
  const LinkId in = cpu == machine.tiers.end() ? no_link : machine.link_between(cpu_tier, 0);
  const LinkId out = cpu == machine.tiers.end() ? no_link : machine.link_between(0, cpu_tier);
  if (in == no_link || out == no_link) {
    throw Error("machine '" + machine.name + "' has no links between GPU and CPU memory: name another");
  }
  rates.link_in = machine.links[in].bandwidth;
  rates.link_out = machine.links[out].bandwidth;
  const BytesPerSecond pageable = machine.links[out].pageable_bandwidth;
  rates.link_out_pageable = pageable != 0 ? pageable : rates.link_out;
}

std::vector<RowsTrial> try_rows(const RowIds& ids, const RowsRequest& request,
                                const std::function<void(const std::string&, double)>& progress) {
  std::vector<RowsTrial> trials;
  for (const RowPolicy* policy : request.policies) {
    for (const std::string& slots : request.slots) {
      RowsTrial& trial = trials.emplace_back();
      RowCacheOptions options;
      options.slots = parse_row_slots(slots, ids.rows());
      options.ahead = request.ahead.value_or(policy->ahead);
      options.warm_up = request.warm_up;
      trial.slot_share = static_cast<double>(options.slots) / ids.rows();
      const std::string what = fmt::format("{} of {}: {}, {} slots", trials.size(),
                                           request.policies.size() * request.slots.size(), policy->name, options.slots);
      const auto watch = [&](std::size_t batch, const RowPlan&, const RowCache&) {
        progress(what, static_cast<double>(batch) / static_cast<double>(ids.batches()));
      };
      try {
        if (progress) progress(what, 0);
        trial.run = progress ? run_rows(ids, *policy, options, request.rates, watch)
                             : run_rows(ids, *policy, options, request.rates);
        if (request.clock && policy->kind != RowPolicyKind::belady) {
          if (progress) progress(what + ", on this computer", 0);
          trial.live = run_live_rows(ids, {policy, options, request.live_folder, request.live_threads, request.clock});
        }
      } catch (const TooFewSlots& error) {
        trial.refusal = error.what();
        trial.run.policy = policy;
        trial.run.options = options;
        trial.run.map_bytes = row_map_bytes(*policy, ids.rows(), options.slots);
        trial.run.gpu_bytes = row_gpu_bytes(*policy, ids.rows(), options.slots, ids.widest_row());
        trial.run.enough_slots = enough_row_slots(*policy, ids, options.ahead);
      }
    }
  }
  return trials;
}

}  // namespace tencache
