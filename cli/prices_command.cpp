// `tencache prices` and `tencache prices import skypilot`.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>

#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/workload_options.h"
#include "configs/machine_yaml.h"
#include "configs/price_table.h"
#include "configs/shipped_files.h"
#include "configs/skypilot_catalogue.h"
#include "studies/workload.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

constexpr Bytes maximum_catalogue_bytes = 512 * MiB;

struct PriceImportArguments {
  std::string file, output, cloud, region, retrieved;
  bool json = false;
};

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
    if (std::find_if(shipped.begin(), shipped.end(), is_it) == shipped.end()) {
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
  json ? print_json(list) : print(text);
  return ExitCode::done;
}

// The day on which the file was last written.
std::string date_of(const std::string& file) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) throw Error("cannot read " + file);
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(status.st_mtime));
}

void check_date(const char* option, const std::string& text) {
  int year = 0;
  unsigned month = 0, day = 0;
  const char* begin = text.data();
  const bool shaped = text.size() == 10 && text[4] == '-' && text[7] == '-' &&
                      std::from_chars(begin, begin + 4, year).ptr == begin + 4 &&
                      std::from_chars(begin + 5, begin + 7, month).ptr == begin + 7 &&
                      std::from_chars(begin + 8, begin + 10, day).ptr == begin + 10;
  using namespace std::chrono;
  if (shaped && year_month_day(std::chrono::year(year), std::chrono::month(month), std::chrono::day(day)).ok()) return;
  throw Error(std::string(option) + ": '" + text + "' is no date; write it as YYYY-MM-DD");
}

std::string cloud_of(const PriceImportArguments& arguments) {
  constexpr const char* clouds[] = {"aws", "azure", "gcp", "lambda"};
  for (const char* cloud : clouds) {
    if (arguments.cloud == cloud) return cloud;
  }
  if (!arguments.cloud.empty()) {
    throw Error("--cloud: unknown '" + arguments.cloud + "'; valid are aws, azure, gcp, lambda");
  }
  for (const char* cloud : clouds) {
    if (std::filesystem::absolute(arguments.file).parent_path().filename() == cloud) return cloud;
  }
  throw Error("which cloud " + arguments.file + " is of does not show in its folder's name; say --cloud");
}

ExitCode import_catalogue(const PriceImportArguments& arguments) {
  check_output("--output", arguments.output, {arguments.file});
  CatalogueOptions options{.file = arguments.file,
                           .cloud = cloud_of(arguments),
                           .region = arguments.region,
                           .retrieved = arguments.retrieved};
  const std::string csv = read_file(arguments.file, maximum_catalogue_bytes);
  if (options.retrieved.empty()) options.retrieved = date_of(arguments.file);
  check_date("--retrieved", options.retrieved);
  CatalogueImport import;
  const auto shipped = list_price_tables();
  const auto same_cloud = [&](const PriceTable& table) { return table.cloud == options.cloud; };
  const auto of_cloud = std::find_if(shipped.begin(), shipped.end(), same_cloud);
  if (options.region.empty() && of_cloud != shipped.end() && of_cloud->region != "any") {
    options.region = of_cloud->region;
  }
  import = import_skypilot(csv, options, list_machines());
  if (!import.table.machines.empty()) write_file(arguments.output, write_price_table(import.table));

  Json notes = Json::array();
  std::string text;
  for (const CatalogueNote& note : import.notes) {
    notes.push_back({{"line", note.line}, {"machine", note.type}, {"rejected", note.rejected}, {"text", note.text}});
    text += fmt::format("  {}{} {}: {}\n", note.line == 0 ? "" : fmt::format("line {}, ", note.line), note.type,
                        note.rejected ? "rejected" : "corrected", note.text);
  }
  if (arguments.json) {
    print_json({{"prices", arguments.output},
                {"cloud", options.cloud},
                {"region", options.region},
                {"retrieved", options.retrieved},
                {"rows", import.rows},
                {"machines", import.table.machines.size()},
                {"rows_cut_short", import.cut_short},
                {"rows_of_other_regions", import.other_region},
                {"rows_of_unknown_machines", import.not_ours},
                {"notes", std::move(notes)}});
  } else {
    print(
        fmt::format("{}{}: prices of {} machines in {} {} as of {}, from {} rows; {} are of other regions, {} of "
                    "machines that are not described here, {} cut short\n",
                    text, arguments.output, import.table.machines.size(), options.cloud,
                    options.region.empty() ? "(all regions)" : options.region, options.retrieved, import.rows,
                    import.other_region, import.not_ours, import.cut_short));
  }
  return import.table.machines.empty() ? ExitCode::answer_is_no : ExitCode::done;
}

}  // namespace

void add_prices_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("prices", "List the price tables, or import one");
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  refuse_empty(command->add_option("--prices", *file, "A price table of your own instead of the shipped ones"));
  command->add_flag("--json", *json, "The tables as JSON, with the source of each figure");
  command->footer(
      "The format, and which price holds for a machine: docs/sweep.md.\n\nExamples:\n"
      "  tencache prices\n"
      "  tencache prices import skypilot ~/.sky/catalogs/v7/aws/vms.csv -o prices.yaml\n"
      "  tencache compare step.trace.jsonl.zst -m g5.xlarge --prices prices.yaml");
  command->callback([command, file, json, &chosen] {
    if (command->get_subcommands().empty()) chosen = [file, json] { return list_prices(*file, *json); };
  });

  CLI::App* import = command->add_subcommand("import", "A price table from a catalogue of yours");
  import->require_subcommand(1);
  import->footer("Examples:\n  tencache prices import skypilot ~/.sky/catalogs/v7/aws/vms.csv -o prices.yaml");
  CLI::App* skypilot = import->add_subcommand("skypilot", "From SkyPilot's vms.csv of a cloud");
  auto arguments = std::make_shared<PriceImportArguments>();
  skypilot->add_option("FILE", arguments->file, "A vms.csv")->required();
  skypilot->add_option("--output,-o", arguments->output, "The price table to write (.yaml)")->required();
  refuse_empty(
      skypilot->add_option("--cloud", arguments->cloud, "aws, azure, gcp or lambda (default: the folder's name)"));
  refuse_empty(
      skypilot->add_option("--region", arguments->region, "Its rows only (default: that of the shipped table)"));
  refuse_empty(skypilot->add_option("--retrieved", arguments->retrieved, "Date of the prices (default: the file's)"));
  skypilot->add_flag("--json", arguments->json, "What was imported, corrected and rejected as JSON");
  skypilot->footer(
      "Rows that contradict the machines described here are rejected; each correction and rejection is said.\n\n"
      "Examples:\n  tencache prices import skypilot ~/.sky/catalogs/v7/aws/vms.csv -o prices.yaml\n"
      "  tencache prices import skypilot vms.csv --cloud azure --region westeurope -o prices.yaml");
  skypilot->callback([arguments, &chosen] { chosen = [arguments] { return import_catalogue(*arguments); }; });
}

}  // namespace tencache
