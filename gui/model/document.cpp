#include "gui/model/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "answers/described.h"
#include "answers/manifest.h"
#include "answers/result.h"
#include "answers/result_file.h"
#include "answers/schemas.h"
#include "configs/machine_yaml.h"
#include "configs/price_table.h"
#include "configs/shipped_files.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "gui/model/timeline_file.h"
#include "studies/sweep/sweep_results.h"
#include "studies/workload.h"
#include "traces/file/file_io.h"
#include "traces/transform/fold_updates.h"

namespace tencache::gui {
namespace {

// What each command prints is told by members that only it has.
struct JsonKind {
  const char* name;
  std::vector<const char*> members;
};
const std::vector<JsonKind> kinds = {{"diff", {"pairs", "only_in_a", "only_in_b"}},
                                     {"reproduce", {"reproduced", "results"}},
                                     {"info", {"header", "largest_working_set"}},
                                     {"policies", {"name", "summary", "source", "options"}},
                                     {"machines", {"name", "tiers", "links"}},
                                     {"models", {"name", "family", "parameters"}},
                                     {"prices", {"name", "sha256", "machines"}},
                                     {"prices import", {"prices", "cloud", "notes"}},
                                     {"generate", {"trace", "sha256", "ops", "tensors", "parameters"}},
                                     {"import", {"trace", "sha256", "ops", "tensors"}},
                                     {"calibrate", {"copies", "memory", "compute", "not_measured"}},
                                     {"training", {"training"}}};

// What the document is, by its members; empty where no command of tencache prints it.
std::string kind_of_document(const Json& document) {
  const Json& object = document.is_array() && !document.empty() ? document.front() : document;
  for (const JsonKind& kind : kinds) {
    const bool has_all = std::ranges::all_of(
        kind.members, [&](const char* name) { return object.is_object() && object.contains(name); });
    if (has_all) return kind.name;
  }
  return "";
}

// Rows of a sweep that `tencache sweep --json` printed, or that --csv wrote.

// Of CSV, where what is not known is empty.
void read(const std::string& text, std::string& field) { field = text; }
void read(const std::string& text, bool& field) { field = text == "true" || text == "1"; }
void read(const std::string& text, std::uint64_t& field) { field = std::stoull(text); }
void read(const std::string& text, double& field) {
  const std::optional<double> number = parse_number(text);
  if (!number) throw std::invalid_argument("no number");
  field = *number;
}
template <typename Value>
void read(const std::string& text, std::optional<Value>& field) {
  if (!text.empty()) read(text, field.emplace());
}

// Whether a JSON document or a table is one; its rows. Throw Error that names the file.
bool is_sweep(const Json& document) {
  return document.is_object() && document.contains("sweep") && document.contains("rows");
}

std::vector<SweepRow> read_sweep_rows(const Json& document, const std::string& file) {
  try {
    std::vector<SweepRow> rows;
    for (const Json& json : document.at("rows")) {
      for_each_field(rows.emplace_back(),
                     [&](const char* name, auto& field) { read_answer(json.at(name), field, name); });
    }
    return rows;
  } catch (const std::exception& error) {
    throw Error(file, 0, std::string("is no sweep of tencache, or damaged: ") + error.what());
  }
}

bool is_sweep(const DataTable& table) {
  bool all = true;
  const SweepRow row;
  for_each_field(row,
                 [&](const char* name, const auto&) { all = all && table.find_column(name) != DataTable::unsorted; });
  return all;
}

std::vector<SweepRow> read_sweep_rows(const DataTable& table, const std::string& file) {
  std::vector<SweepRow> rows(table.row_count());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for_each_field(rows[i], [&](const char* name, auto& field) {
      const std::string text = table.raw(i, table.find_column(name));
      try {
        read(text, field);
      } catch (const std::logic_error&) {  // std::stoull throws them too
        throw Error(file, 0, fmt::format("row {}: '{}' is no {}", i + 1, text, name));
      }
    });
  }
  return rows;
}

// The first kilobytes, unpacked.
std::string head_of(const std::string& path) {
  constexpr std::size_t head_bytes = 64 * KiB;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw Error(path, 0, "is a directory; name a file");
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw Error(path, 0, "cannot be opened; does it exist, and may you read it?");
  std::string head(head_bytes, '\0');
  head.resize(std::fread(head.data(), 1, head.size(), file));
  std::fclose(file);
  const bool gzip = head.starts_with("\x1f\x8b"), zstd = head.starts_with("\x28\xb5\x2f\xfd");
  if (gzip || zstd) head = read_file(path).substr(0, head_bytes);
  return head;
}

Document::Kind kind_of(const std::string& path) {
  const std::string head = head_of(path);
  if (head.starts_with("SQLite format 3")) return Document::Kind::sweep;
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw Error(path, 0, "is empty");
  if (head.find("\"traceEvents\"") != std::string::npos || head.compare(first, 8, "[\n{\"ph\":") == 0)
    return Document::Kind::timeline;
  const std::string line = head.substr(first, head.find('\n', first) - first);
  if (line.find("\"kind\"") != std::string::npos && line.find("\"header\"") != std::string::npos) {
    return Document::Kind::trace;
  }
  if (head[first] == '{' || head[first] == '[') return Document::Kind::results;
  if (path.ends_with(".yaml") || path.ends_with(".yml")) return Document::Kind::table;
  if (path.ends_with(".svg") || path.ends_with(".md") || path.ends_with(".html")) {
    throw Error(path, 0, "is for a browser; the same figures open here as what the command prints with --json");
  }
  if (line.find(',') != std::string::npos) return Document::Kind::table;
  throw Error(path, 0, "is no trace, result, timeline, table or other document of tencache");
}

std::string found(const std::string& path, const std::string& result_file) {
  namespace fs = std::filesystem;
  if (fs::exists(path)) return path;
  const fs::path beside = fs::path(result_file).parent_path() / path;
  if (fs::exists(beside)) return beside.string();
  const fs::path same_folder = fs::path(result_file).parent_path() / fs::path(path).filename();
  return fs::exists(same_folder) ? same_folder.string() : path;
}

// What commands print with --json, and logs of one object a line.
void open_json(const std::string& path, Document& document) {
  const std::string text = read_file(path);
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  if (line.find("\"action\"") != std::string_view::npos && Json::accept(line)) {
    document.kind = Document::Kind::table;
    document.tables.push_back(read_json_lines(text, path));
    return;
  }
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw Error(path, 0, "begins as JSON and is none; was it copied whole?");
  document.tables = tables_of(json, std::filesystem::path(path).filename().string());
  if (is_sensitivity(json)) {
    document.kind = Document::Kind::sensitivity;
    document.sensitivity = std::make_shared<const SensitivityAnswer>(read_sensitivity(json, path));
    set_units(document.tables, *document.sensitivity);
  } else if (is_sweep(json)) {
    document.kind = Document::Kind::sweep;
    document.sweep_rows = read_sweep_rows(json, path);
    if (document.sweep_rows.empty()) throw Error(path, 0, "holds no combination");
  } else if (document.answer = document_of(json, path); document.answer && member(json, "measured") != true) {
    document.kind = Document::Kind::table;
  } else {
    document.results = read_results(path);
    try {
      std::vector<ResultAnswer> readable;
      read_answer(Json(document.results), readable);
    } catch (const Error& error) {
      throw Error(path, 0, std::string("is damaged: ") + error.what());
    }
  }
}

Json price_json(const std::string& machine, const char* kind, const PriceFigure& price) {
  return {{"machine", machine},           {"kind", kind},
          {"usd_per_hour", price.value},  {"source", price.source},
          {"retrieved", price.retrieved}, {"confidence", price.confidence}};
}

// Machines that `calibrate` wrote, prices that `prices` imported.
void open_yaml(const std::string& path, Document& document) {
  if (read_file(path).find("\ncloud:") == std::string::npos) {
    document.tables = tables_of(machine_json(read_machine(path)), "machine");
    return;
  }
  Json rows = Json::array();
  for (const auto& [machine, price] : read_price_table(path).machines) {
    if (price.on_demand) rows.push_back(price_json(machine, "on demand", *price.on_demand));
    if (price.spot) rows.push_back(price_json(machine, "spot", *price.spot));
  }
  document.tables = tables_of(rows, "prices");
}

// A table, which may be a sweep's or a sensitivity analysis'.
void open_csv(const std::string& path, Document& document) {
  const DataTable& table = document.tables.emplace_back(read_csv(read_file(path), path));
  if (std::optional<ScatterChart> chart = candidates_of(table)) {
    document.answer = {.kind = "", .title = chart->title, .blocks = {*chart}};
  }
  if (is_sensitivity(table)) {
    document.kind = Document::Kind::sensitivity;
    document.sensitivity = std::make_shared<const SensitivityAnswer>(read_sensitivity(table, path));
  }
  if (!is_sweep(table)) return;
  document.kind = Document::Kind::sweep;
  document.sweep_rows = read_sweep_rows(table, path);
}

}  // namespace

std::optional<ScatterChart> candidates_of(const DataTable& table) {
  const std::size_t candidate = table.find_column("candidate"), time = table.find_column("relative_time");
  if (candidate == DataTable::unsorted || time == DataTable::unsorted) return std::nullopt;
  ScatterChart chart;
  chart.title = fmt::format("{} candidates, in the order in which they were tried", table.row_count());
  chart.x_label = "candidate";
  chart.y_label = "time, × the best";
  const std::size_t best = table.find_column("best");
  std::size_t misfits = 0;
  for (std::size_t row = 0; row < table.row_count(); ++row) {
    const double x = table.number(row, candidate), y = table.number(row, time);
    if (!(y > 0)) {  // does not fit
      ++misfits;
      continue;
    }
    const bool is_best = best != DataTable::unsorted && table.raw(row, best) == "true";
    chart.dots.push_back({.x = x,
                          .y = y,
                          .marked = is_best,
                          .facts = {{"", fmt::format("candidate {:.0f}: {:+.1f} %", x, 100 * (y - 1))}}});
  }
  if (misfits > 0) chart.note = fmt::format("{} do not fit", misfits);
  return chart.dots.empty() ? std::nullopt : std::optional(std::move(chart));
}

std::optional<tencache::Document> document_of(const Json& json, const std::string& file) {
  try {
    const AnswerSchema* schema = schema_of_answer(json);
    if (schema != nullptr && schema->document != nullptr) return schema->document(json);
  } catch (const std::exception& error) {
    throw Error(file, 0, std::string("is damaged: ") + error.what());
  }
  tencache::Document document;
  document.kind = kind_of_document(json);
  return document.kind.empty() ? std::nullopt : std::optional(std::move(document));
}

DocumentPointer open_document(const std::string& path) {
  auto document = std::make_shared<Document>();
  document->path = path;
  document->kind = kind_of(path);
  switch (document->kind) {
    case Document::Kind::trace:
      document->trace = std::make_shared<const Trace>(read_trace_to_simulate(path));
      break;
    case Document::Kind::results:
      open_json(path, *document);
      break;
    case Document::Kind::sensitivity:  // told by their JSON
      break;
    case Document::Kind::table:
      if (path.ends_with(".yaml") || path.ends_with(".yml")) {
        open_yaml(path, *document);
      } else {
        open_csv(path, *document);
      }
      break;
    case Document::Kind::sweep:
      document->sweep_rows = read_sweep(path).rows;
      if (document->sweep_rows.empty()) throw Error(path, 0, "holds no combination yet");
      break;
    case Document::Kind::timeline:
      for (Recording& recording : read_timeline(path, &document->note)) {
        document->runs.push_back(std::make_shared<const Run>(std::move(recording)));
      }
      std::ranges::stable_sort(document->runs, {}, [](const RunPointer& run) { return run->origin(); });
      break;
  }
  return document;
}

Workload workload_of(const Json& result, const std::string& result_file) {
  Scenario scenario = read_manifest(result, result_file);
  if (scenario.policy.name.empty() || scenario.machine.name.empty()) {
    throw Error(result_file, 0, "does not say what was simulated, so its timeline cannot be shown");
  }
  TraceChoice& trace = scenario.trace;
  if (trace.generate.empty()) {
    trace.found_at = found(trace.file, result_file);
  } else {
    trace.file.clear();
  }
  for (auto& [name, text] : trace.generate) {
    if (name == "model" && is_config_path(text)) text = found(text, result_file);
  }
  trace.rescale.where_known = true;
  scenario.prices = {};
  return load_workload(scenario);
}

}  // namespace tencache::gui
