#include "answers/cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "studies/sweep/cost.h"

namespace tencache {
namespace {

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

Facts facts_of(const SweepRow& row) {
  Facts facts{{"", row.policy + " on " + row.machine}, {"workload", row.workload}, {"options", row.options}};
  const auto add = [&](const char* label, std::optional<double> value, const char* form) {
    if (value) facts.emplace_back(label, fmt::format(fmt::runtime(form), *value));
  };
  if (!row.fits) facts.emplace_back("does not fit", row.reason);
  if (row.iteration_seconds) {
    facts.emplace_back("iteration", seconds_text(*row.iteration_seconds) +
                                        (row.slowdown ? fmt::format(", {:.3f} × ideal", *row.slowdown) : ""));
  }
  if (!row.waits_for.empty() && row.waits_seconds) {
    facts.emplace_back("waits most for", row.waits_for + ", " + seconds_text(*row.waits_seconds));
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

std::string unit_words(CostUnit unit) {
  return unit == CostUnit::million_tokens ? "USD a million tokens" : "USD an iteration";
}

std::string memory_words(const SweepRow& row) {
  std::string memory = row.gpu_memory.empty() ? "" : "GPU " + row.gpu_memory;
  if (!row.cpu_memory.empty()) memory += (memory.empty() ? "CPU " : ", CPU ") + row.cpu_memory;
  return memory;
}

ScatterChart scatter_of(const CostChart& chart) {
  const bool spot = chart.filter.spot;
  ScatterChart scatter;
  scatter.title = "Cost against time";
  scatter.x_label = spot ? "time of an iteration, with interruptions" : "time of an iteration";
  scatter.x_unit = FigureUnit::seconds;
  scatter.y_label = unit_words(chart.unit) + (spot ? ", spot" : ", on demand");
  scatter.y_unit = FigureUnit::usd;
  scatter.logarithmic = true;
  scatter.series = chart.machines;
  scatter.front = "Pareto front: nothing is faster and cheaper";
  scatter.reference = "ideal: on no machine";
  for (const CostPoint& point : chart.points) {
    const SweepRow& row = *point.row;
    scatter.dots.push_back({.x = point.seconds,
                            .y = point.usd,
                            .marked = point.on_front,
                            .label = row.machine + ", " + row.policy,
                            .series = row.machine,
                            .reference = point.reference,
                            .key = row.key,
                            .facts = facts_of(row)});
  }
  return scatter;
}

DocumentTable front_table(const CostChart& chart, const std::string& marked) {
  DocumentTable table{
      "front",
      "",
      {"the front: machine", "policy", "memory", "iteration", unit_words(chart.unit), "an hour", "waits most for"},
      Shown::on_page};
  for (const CostPoint& point : chart.points) {
    const SweepRow& row = *point.row;
    if (!point.on_front && row.key != marked) continue;
    const std::optional<double> hour = chart.filter.spot ? row.spot_usd_per_hour : row.usd_per_hour;
    DocumentTable::Row& added = table.rows.emplace_back();
    added.cells = {point.on_front ? row.machine : "(" + row.machine + ")",
                   row.policy,
                   memory_words(row),
                   seconds_cell(point.seconds),
                   Cell(usd_text(point.usd), point.usd, FigureUnit::usd),
                   hour ? Cell(fmt::format("${:.3f}", *hour), *hour, FigureUnit::usd) : Cell("–"),
                   row.waits_for};
    added.key = row.key;
    added.facts = facts_of(row);
  }
  return table;
}

}  // namespace

bool CostFilter::shows(const SweepRow& row) const {
  return row.workload == workload && !hidden_machines.contains(row.machine) && !hidden_policies.contains(row.policy);
}

CostChart cost_chart(const std::vector<SweepRow>& rows, const CostFilter& filter) {
  CostChart chart;
  chart.filter = filter;
  chart.machines = machines_of(rows, filter.workload);
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

std::string CostChart::rest() const {
  std::string text = fmt::format("{} combinations", points.size());
  if (misfits > 0) text += fmt::format("; {} do not fit", misfits);
  if (without_price > 0) text += fmt::format("{} {} have no price", misfits > 0 ? "," : ";", without_price);
  return text;
}

Document document_of(const CostChart& chart, const std::string& marked) {
  Document document{.kind = "sweep", .title = chart.filter.workload, .blocks = {}};
  if (!chart.points.empty()) {
    document.blocks.emplace_back(scatter_of(chart));
    document.add_table(front_table(chart, marked));
  }
  document.add_paragraph(chart.rest() + ".");
  return document;
}

}  // namespace tencache
