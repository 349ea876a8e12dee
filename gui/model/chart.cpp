#include "gui/model/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>

#include "answers/result_file.h"
#include "answers/schemas.h"
#include "core/error.h"
#include "gui/model/describe.h"

namespace tencache::gui {
namespace {

// What each command prints is told by members that only it has.
struct Kind {
  const char* name;
  std::vector<const char*> members;
};
const std::vector<Kind> kinds = {{"validate", {"summary", "systems"}},
                                 {"diff", {"pairs", "only_in_a", "only_in_b"}},
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

double number(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_number() ? std::max(0.0, value.get<double>()) : 0;
}
std::string text(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}
bool yes(const Json& object, const char* key) { return member(object, key) == true; }
std::string off_text(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

const Ink plain{Ink::Kind::plain}, marked{Ink::Kind::marked}, pale{Ink::Kind::pale};

// ---- validate -------------------------------------------------------------------------------------------------------

auto of_same_name(const Json& row) {
  return [name = text(row, "row"), experiment = text(row, "experiment")](const Json& other) {
    return text(other, "row") == name && text(other, "experiment") == experiment;
  };
}
std::string names(const Json& object, const char* key) {
  std::string joined;
  for (const Json& name : member(object, key)) {
    if (name.is_string()) joined += (joined.empty() ? "" : ", ") + name.get<std::string>();
  }
  return joined;
}

BarChart validate_chart(const Json& json) {
  BarChart chart;
  const char* shown = "summary";
  for (const char* key : {"memory_summary", "gpu_summary", "summary"}) {
    if (number(member(json, key), "judged") > 0) shown = key;
  }
  const Json& summary = member(json, shown);
  chart.title =
      fmt::format("Simulated against published: {:.0f} rows judged, {:.0f} missed, median error {}",
                  number(summary, "judged"), number(summary, "missed"), percent(number(summary, "median_error")));
  chart.mark_label = "published";
  for (const Json& system : member(json, "systems")) {
    const Json& rows = member(system, "rows");
    for (const Json& row : rows) {
      const Json& published = member(row, "published");
      const double from = number(published, "from"), to = number(published, "to"), middle = (from + to) / 2;
      const double simulated = number(row, "simulated");
      if (middle <= 0 || simulated <= 0) continue;  // orders, and what was skipped: in the table
      ChartBar bar;
      bar.group = text(system, "system") + ": " + text(row, "experiment");
      bar.label = text(row, "row");
      // First, since what is too long for the picture is cut off at its end.
      if (std::ranges::count_if(rows, of_same_name(row)) > 1) bar.label = names(row, "workloads") + ": " + bar.label;
      const std::string verdict = text(row, "verdict");
      const bool missed = verdict == "missed", judged = verdict == "within";
      bar.marked = missed;
      bar.parts = {{missed   ? marked
                    : judged ? plain
                             : pale,
                    simulated / middle,
                    missed   ? "missed"
                    : judged ? "within what its file tolerates"
                             : "listed, not judged"}};
      bar.between = {from / middle, to / middle};
      bar.text = off_text(simulated / middle) + (missed ? ", missed" : yes(row, "fitted") ? ", fitted" : "");
      bar.facts = {{"", bar.label},
                   {"of", text(row, "metric")},
                   {"published", text(published, "text")},
                   {"simulated", fmt::format("{:.4g}", simulated)},
                   {"error", off_text(simulated / middle)}};
      if (!text(row, "note").empty()) bar.facts.emplace_back("note", text(row, "note"));
      chart.bars.push_back(std::move(bar));
    }
  }
  chart.most = 2;
  return chart;
}

// What the document is, by its members; empty where no command of tencache prints it.
std::string kind_of_document(const Json& document) {
  const Json& object = document.is_array() && !document.empty() ? document.front() : document;
  for (const Kind& kind : kinds) {
    const bool has_all = std::ranges::all_of(
        kind.members, [&](const char* name) { return object.is_object() && object.contains(name); });
    if (has_all) return kind.name;
  }
  return "";
}

}  // namespace

std::optional<BarChart> chart_of(const DataTable& table) {
  const std::size_t candidate = table.find_column("candidate"), time = table.find_column("relative_time");
  if (candidate == DataTable::unsorted || time == DataTable::unsorted) return std::nullopt;
  BarChart chart;
  chart.title = fmt::format("{} candidates, in the order in which they were tried", table.row_count());
  chart.x_label = "candidate";
  chart.y_label = "time, × the best";
  const std::size_t best = table.find_column("best");
  for (std::size_t row = 0; row < table.row_count(); ++row) {
    const double y = table.number(row, time);
    if (!(y > 0)) {  // does not fit
      ++chart.dots_without_place;
      continue;
    }
    const bool is_best = best != DataTable::unsorted && table.raw(row, best) == "true";
    chart.dots.push_back({table.number(row, candidate), y, is_best, off_text(y)});
  }
  return chart.dots.empty() ? std::nullopt : std::optional(std::move(chart));
}

std::optional<tencache::Document> document_of(const Json& json, const std::string& file) {
  tencache::Document document;
  BarChart chart;
  try {
    const AnswerSchema* schema = schema_of_answer(json);
    if (schema != nullptr && schema->document != nullptr) return schema->document(json);
    document.kind = kind_of_document(json);
    if (document.kind.empty()) return std::nullopt;
    if (document.kind == "validate") chart = validate_chart(json);
  } catch (const Json::exception& error) {
    throw Error(file, 0, std::string("is damaged: ") + error.what());
  } catch (const Error& error) {
    throw Error(file, 0, std::string("is damaged: ") + error.what());
  }
  const double at_most = chart.most > 0 ? chart.most : std::numeric_limits<double>::infinity();
  if (!chart.scale(at_most)) return document;
  document.title = chart.title;
  document.blocks.emplace_back(std::move(chart));
  return document;
}

}  // namespace tencache::gui
