#include "gui/model/chart.h"

#include <fmt/format.h>

#include <algorithm>

#include "answers/schemas.h"
#include "core/error.h"

namespace tencache::gui {
namespace {

// What each command prints is told by members that only it has.
struct Kind {
  const char* name;
  std::vector<const char*> members;
};
const std::vector<Kind> kinds = {{"diff", {"pairs", "only_in_a", "only_in_b"}},
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
  for (const Kind& kind : kinds) {
    const bool has_all = std::ranges::all_of(
        kind.members, [&](const char* name) { return object.is_object() && object.contains(name); });
    if (has_all) return kind.name;
  }
  return "";
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

}  // namespace tencache::gui
