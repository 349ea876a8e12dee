// `tencache prices`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/command_line.h"
#include "cli/console.h"
#include "configs/price_table.h"
#include "configs/shipped_files.h"

namespace tencache {
namespace {

Json figure_json(const std::optional<PriceFigure>& figure) {
  if (!figure) return nullptr;
  return {{"value", figure->value},
          {"source", figure->source},
          {"retrieved", figure->retrieved},
          {"confidence", figure->confidence}};
}

// A machine that is not shipped may be one of the user's own files, or a slip.
void check_machines(const PriceTable& table) {
  const auto shipped = shipped_files("machines");
  for (const auto& [type, price] : table.machines) {
    const auto is_it = [&type = type](const auto& entry) { return entry.first == type; };
    if (std::ranges::find_if(shipped, is_it) == shipped.end()) {
      remark(table.file + ": no shipped machine is called '" + type + "': its price is for a file of that name only");
    }
  }
}

ExitCode list_prices(const std::string& file, bool json) {
  Json list = Json::array();
  std::string text;
  const std::vector<PriceTable> tables = file.empty() ? list_price_tables() : std::vector{read_price_table(file)};
  if (!file.empty()) check_machines(tables.front());
  for (const PriceTable& table : tables) {
    Json machines = Json::array();
    Table rows({"machine", "$/h", "of", "confidence", "source"});
    for (const auto& [type, price] : table.machines) {
      machines.push_back(
          {{"name", type}, {"on_demand", figure_json(price.on_demand)}, {"spot", figure_json(price.spot)}});
      const auto add = [&rows](const std::string& name, const std::optional<PriceFigure>& figure) {
        if (figure) {
          rows.add({name, fmt::format("{}", figure->value), figure->retrieved, figure->confidence, figure->source});
        }
      };
      add(type, price.on_demand);
      add(type + ", spot", price.spot);
    }
    list.push_back({{"name", table.cloud},
                    {"region", table.region},
                    {"file", table.file},
                    {"sha256", table.sha256},
                    {"attached_storage_usd_per_gb_month", figure_json(table.storage)},
                    {"spot_interruptions_per_hour", figure_json(table.interruptions)},
                    {"machines", std::move(machines)}});
    text += fmt::format("{}{} {}\n{}", text.empty() ? "" : "\n", table.cloud, table.region, rows.text());
    const auto line = [&](const char* what, const std::optional<PriceFigure>& figure) {
      if (figure) text += fmt::format("{}: {} ({}; {})\n", what, figure->value, figure->confidence, figure->source);
    };
    line("attached storage, $ a GB and month", table.storage);
    line("interruptions of a spot machine an hour", table.interruptions);
  }
  if (json) {
    print_json(list);
  } else {
    print(text);
  }
  return ExitCode::done;
}

}  // namespace

void add_prices_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("prices", "List the price tables");
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  refuse_empty(command->add_option("--prices", *file, "A price table of your own instead of the shipped ones"));
  command->add_flag("--json", *json, "The tables as JSON, with the source of each figure");
  command->footer(
      "The format, and which price holds for a machine: docs/sweep.md.\n\nExamples:\n"
      "  tencache prices\n"
      "  tencache compare step.trace.jsonl.zst -m g5.xlarge --prices prices.yaml");
  command->callback([file, json, &chosen] { chosen = [file, json] { return list_prices(*file, *json); }; });
}

}  // namespace tencache
