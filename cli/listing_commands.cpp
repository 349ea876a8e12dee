// `tencache policies` and `tencache machines`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "answers/result.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/workload_options.h"
#include "configs/load_policy_library.h"
#include "configs/machine_yaml.h"
#include "configs/price_table.h"
#include "policies/knobs.h"

namespace tencache {
namespace {

Json option_json(const Options::Info& option) {
  Json json = {{"name", option.name},
               {"type", option.type},
               {"default", option.default_value},
               {"unit", option.unit},
               {"help", option.help}};
  if (!option.choices.empty()) json["choices"] = option.choices;
  const bool tuned = option.why_fixed.empty();
  json["tuned"] = tuned;
  json["tune_values"] = tuned ? Json(knob_of(option).values) : Json::array();
  return json;
}

ExitCode list_all_policies(bool json) {
  Json list = Json::array();
  std::string text;
  for (const PolicyInfo& policy : list_policies()) {
    Json options = Json::array();
    text += fmt::format("{}{}\n    {}\n", text.empty() ? "" : "\n", policy.name, policy.summary);
    if (!policy.source.empty()) text += fmt::format("    source: {}\n", policy.source);
    for (const Options::Info& option : policy.options) {
      options.push_back(option_json(option));
      const std::string values =
          option.choices.empty() ? option.type : fmt::format("{}", fmt::join(option.choices, "|"));
      text += fmt::format("    --set {}=<{}>  {} (default {}{}{})\n", option.name, values, option.help,
                          option.default_value, option.unit.empty() ? "" : " ", option.unit);
    }
    list.push_back(
        {{"name", policy.name}, {"summary", policy.summary}, {"source", policy.source}, {"options", options}});
  }
  json ? print_json(list) : print(text);
  return ExitCode::done;
}

ExitCode list_all_machines(bool json) {
  Json list = Json::array();
  Table table({"machine", "GPU", "GPU memory", "CPU memory", "storage", "price/h", "links, GB/s"});
  Prices prices({});
  for (MachineSpec& machine : list_machines()) {
    prices.apply(machine);
    if (json) {
      list.push_back(machine_json(machine));
      continue;
    }
    std::string storage, links;
    for (const Tier& tier : machine.tiers) {
      if (tier.kind == TierKind::nvme) storage += (storage.empty() ? "" : " + ") + format_bytes(tier.capacity);
    }
    for (const Link& link : machine.links) {
      links +=
          fmt::format("{}{} {:.3g}", links.empty() ? "" : ", ", link.name, static_cast<double>(link.bandwidth) * 1e-9);
    }
    const TierId cpu = machine.tier_of(Device::cpu);
    const std::string gpu = machine.gpu.empty() ? "-" : machine.gpu;
    const Price& price = machine.price;
    table.add({machine.name, machine.rank_count() == 1 ? gpu : fmt::format("{} × {}", machine.rank_count(), gpu),
               format_bytes(machine.tiers.front().capacity),
               cpu == no_tier ? "-" : format_bytes(machine.tiers[cpu].capacity), storage.empty() ? "-" : storage,
               price.on_demand > 0 ? fmt::format("{:.2f} {}", price.on_demand, price.currency) : "-", links});
  }
  json ? print_json(list)
       : print(table.text() + "\nMemory, storage and links are those of one GPU; prices those of the whole machine.\n");
  return ExitCode::done;
}

}  // namespace

void add_policies_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("policies", "List the policies with their options and sources");
  auto json = std::make_shared<bool>(false);
  add_policy_library_option(*command);
  command->add_flag("--json", *json, "The list as JSON");
  command->footer(
      "Examples:\n  tencache policies\n  tencache policies --json\n  tencache policies --policy-library my_policy.so");
  command->callback([json, &chosen] { chosen = [json] { return list_all_policies(*json); }; });
}

void add_machines_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("machines", "List the machines that ship with TenCache");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "The list as JSON, with the source of each figure");
  command->footer(
      "Your own machine is a YAML file; `tencache calibrate` writes one. $TENCACHE_CONFIGS names another folder whose\n"
      "sub-folder `machines` is listed instead.\n\nExamples:\n  tencache machines\n  tencache machines --json");
  command->callback([json, &chosen] { chosen = [json] { return list_all_machines(*json); }; });
}

}  // namespace tencache
