#include "gui/model/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "answers/described.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "studies/sweep/cost.h"

namespace tencache::gui {
namespace {

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

std::optional<double> usd_of(const SweepRow& row, bool spot, CostUnit unit) {
  if (unit == CostUnit::million_tokens) return spot ? row.spot_usd_per_million_tokens : row.usd_per_million_tokens;
  return spot ? row.spot_usd_per_iteration : row.usd_per_iteration;
}

template <typename Member>
std::vector<std::string> values_of(const std::vector<SweepRow>& rows, const std::string* workload, Member member) {
  std::vector<std::string> values;
  for (const SweepRow& row : rows) {
    if (workload != nullptr && row.workload != *workload) continue;
    if (std::ranges::find(values, row.*member) == values.end()) values.push_back(row.*member);
  }
  return values;
}

}  // namespace

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

bool CostFilter::shows(const SweepRow& row) const {
  return row.workload == workload && !hidden_machines.contains(row.machine) && !hidden_policies.contains(row.policy);
}

CostChart cost_chart(const std::vector<SweepRow>& rows, const CostFilter& filter) {
  CostChart chart;
  const bool tokens = std::ranges::any_of(
      rows, [&](const SweepRow& row) { return filter.shows(row) && row.usd_per_million_tokens.has_value(); });
  chart.unit = tokens ? CostUnit::million_tokens : CostUnit::iteration;
  for (const SweepRow& row : rows) {
    if (!filter.shows(row)) continue;
    const std::optional<double> usd = usd_of(row, filter.spot, chart.unit);
    if (!row.fits || !row.iteration_seconds) {
      ++chart.misfits;
    } else if (!usd) {
      ++chart.without_price;
    } else {
      const double slowdown = filter.spot ? row.spot_slowdown.value_or(1) : 1;
      chart.points.push_back({&row, *row.iteration_seconds * slowdown, *usd, false, row.policy == "ideal"});
    }
  }
  std::ranges::stable_sort(chart.points, {},
                           [](const CostPoint& point) { return std::pair(point.seconds, point.usd); });
  std::vector<TimeAndCost> both;
  std::vector<CostPoint*> real;
  for (CostPoint& point : chart.points) {
    if (point.reference) continue;
    both.push_back({point.seconds, point.usd});
    real.push_back(&point);
  }
  const std::vector<bool> front = pareto_front(both);
  for (std::size_t i = 0; i < front.size(); ++i) real[i]->on_front = front[i];
  return chart;
}

std::vector<std::string> workloads_of(const std::vector<SweepRow>& rows) {
  return values_of(rows, nullptr, &SweepRow::workload);
}
std::vector<std::string> machines_of(const std::vector<SweepRow>& rows, const std::string& workload) {
  return values_of(rows, &workload, &SweepRow::machine);
}
std::vector<std::string> policies_of(const std::vector<SweepRow>& rows, const std::string& workload) {
  return values_of(rows, &workload, &SweepRow::policy);
}

Facts describe_row(const SweepRow& row) {
  Facts facts{{"", row.policy + " on " + row.machine}, {"workload", row.workload}, {"options", row.options}};
  const auto add = [&](const char* label, std::optional<double> value, const char* form) {
    if (value) facts.emplace_back(label, fmt::format(fmt::runtime(form), *value));
  };
  if (!row.fits) facts.emplace_back("does not fit", row.reason);
  if (row.iteration_seconds) {
    facts.emplace_back("iteration", duration_text(static_cast<Nanoseconds>(*row.iteration_seconds * 1e9)) +
                                        (row.slowdown ? fmt::format(", {:.3f} × ideal", *row.slowdown) : ""));
  }
  if (!row.waits_for.empty() && row.waits_seconds) {
    facts.emplace_back("waits most for",
                       row.waits_for + ", " + duration_text(static_cast<Nanoseconds>(*row.waits_seconds * 1e9)));
  }
  add("tokens a second", row.tokens_per_second, "{:.0f}");
  add("on demand, an hour", row.usd_per_hour, "${:.3f}");
  add("a million tokens", row.usd_per_million_tokens, "${:.4f}");
  add("spot, an hour", row.spot_usd_per_hour, "${:.3f}");
  add("a million tokens on spot", row.spot_usd_per_million_tokens, "${:.4f}");
  add("the whole run", row.run_hours, "{:.1f} hours");
  add("costs", row.run_usd, "${:.2f}");
  if (!row.validity.empty()) facts.emplace_back("believed", row.validity);
  if (!row.durations.empty()) {
    facts.emplace_back("durations", row.durations + (row.rescaled_from.empty() ? "" : " from " + row.rescaled_from));
  }
  const auto add_source = [&](const char* label, const std::string& source, const std::string& retrieved,
                              const std::string& confidence) {
    if (source.empty()) return;
    facts.emplace_back(label, source + (retrieved.empty() ? "" : ", " + retrieved) + ", " + confidence);
  };
  add_source("price", row.price_source, row.price_retrieved, row.price_confidence);
  add_source("price on spot", row.spot_price_source, row.spot_price_retrieved, row.spot_price_confidence);
  return facts;
}

const char* label_of(CostUnit unit) {
  return unit == CostUnit::million_tokens ? "USD a million tokens" : "USD an iteration";
}

}  // namespace tencache::gui
