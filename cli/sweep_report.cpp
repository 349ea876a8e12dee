#include "cli/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/report.h"

namespace tencache {
namespace {

// Of more workloads only the ends of the fronts are shown.
constexpr std::size_t most_workloads_in_full = 6;
constexpr std::size_t most_reasons = 5;

struct JsonField {
  template <typename T>
  Json operator()(const T& value) const {
    return value;
  }
  template <typename T>
  Json operator()(const std::optional<T>& value) const {
    return value ? Json(*value) : Json(nullptr);
  }
};

Json row_json(const SweepRow& row) {
  Json json;
  for_each_field(row, [&](const char* name, const auto& field) { json[name] = JsonField{}(field); });
  json["options"] = Json::parse(row.options);
  if (row.fits) json["reason"] = nullptr;
  return json;
}

std::string machine_text(const SweepRow& row) {
  std::string text = row.machine;
  if (!row.gpu_memory.empty()) text += ", GPU " + row.gpu_memory;
  if (!row.cpu_memory.empty()) text += ", CPU " + row.cpu_memory;
  if (!row.limits.empty()) text += ", " + row.limits;
  return text;
}

// Of each policy the options that are not the same in all its rows.
using VaryingOptions = std::map<std::string, std::set<std::string>>;

VaryingOptions varying_options(const std::vector<SweepRow>& rows) {
  std::map<std::string, Json> first;
  VaryingOptions varying;
  for (const SweepRow& row : rows) {
    const Json options = Json::parse(row.options);
    const Json& before = first.try_emplace(row.policy, options).first->second;
    for (const auto& [option, value] : options.items()) {
      if (!before.contains(option) || before[option] != value) varying[row.policy].insert(option);
    }
  }
  return varying;
}

// "zero-infinity offload_optimizer=nvme".
std::string policy_text(const SweepRow& row, const VaryingOptions& varying) {
  std::string text = row.policy;
  const auto found = varying.find(row.policy);
  if (found == varying.end()) return text;
  const Json options = Json::parse(row.options);
  for (const std::string& option : found->second) {
    if (options.contains(option)) text += " " + option + "=" + options[option].get<std::string>();
  }
  return text;
}

std::string choice_text(const SweepRow& row, const VaryingOptions& varying) {
  return machine_text(row) + ", " + policy_text(row, varying);
}

std::string usd_text(const std::optional<double>& usd) { return usd ? fmt::format("{:.4g}", *usd) : std::string("-"); }

std::string row_text(const SweepRow& row, const VaryingOptions& varying) {
  std::string text = choice_text(row, varying) + ": " + format_seconds(*row.iteration_seconds) + " an iteration";
  if (row.usd_per_hour) text += fmt::format(", {:.4g} $/h", *row.usd_per_hour);
  if (row.usd_per_million_tokens) {
    text += fmt::format(", {:.4g} $/1M tokens", *row.usd_per_million_tokens);
  } else if (row.usd_per_iteration) {
    text += fmt::format(", {:.4g} $ for 1000 iterations", 1000 * *row.usd_per_iteration);
  }
  if (row.run_usd) text += fmt::format("; the run {:.4g} $ in {:.4g} h", *row.run_usd, *row.run_hours);
  if (row.spot_run_usd) text += fmt::format(" (spot {:.4g} $ in {:.4g} h)", *row.spot_run_usd, *row.spot_run_hours);
  if (row.gpus_used < row.gpus) text += fmt::format("; uses {} of {} GPUs paid for", row.gpus_used, row.gpus);
  return text;
}

// The front, marked, and the fastest others.
std::string row_table(const std::vector<SweepRow>& rows, const Advice& advice, const VaryingOptions& varying,
                      std::size_t top) {
  Table table(
      {"machine", "policy", "", "iteration", "× ideal", "$/h", "$/1000 it.", "$/1M tokens", "GPUs", "waits for"});
  std::size_t others = 0;
  for (const std::size_t i : advice.fitting) {
    const SweepRow& row = rows[i];
    if (!row.on_front && ++others > top) continue;
    const std::string usd = row.usd_per_iteration ? fmt::format("{:.4g}", 1000 * *row.usd_per_iteration) : "-";
    table.add({machine_text(row), policy_text(row, varying), row.on_front ? "*" : "",
               format_seconds(*row.iteration_seconds), row.slowdown ? fmt::format("{:.3f}", *row.slowdown) : "-",
               usd_text(row.usd_per_hour), usd, usd_text(row.usd_per_million_tokens),
               fmt::format("{}/{}", row.gpus_used, row.gpus), row.waits_for});
  }
  std::string text = table.text();
  if (others > top) text += fmt::format("and {} slower ones\n", others - top);
  if (!advice.front.empty()) text += "* on the front of time against cost: nothing is both faster and cheaper\n";
  return text;
}

std::string in_full(const std::vector<SweepRow>& rows, const Advice& advice, const VaryingOptions& varying,
                    double budget, std::size_t top) {
  std::string text =
      fmt::format("{}: {} of {} combinations fit\n", advice.workload, advice.fitting.size(), advice.combinations);
  if (!advice.fastest) return text;
  text += row_table(rows, advice, varying, top) + "\n";
  text += advice.cheapest ? "cheapest that fits: " + row_text(rows[*advice.cheapest], varying) + "\n"
                          : "cheapest that fits: not known, nothing that fits has a price\n";
  text += "fastest: " + row_text(rows[*advice.fastest], varying) + "\n";
  if (budget > 0) {
    text += fmt::format("fastest under {:.4g} $/h: {}\n", budget,
                        advice.in_budget ? row_text(rows[*advice.in_budget], varying) : "nothing that fits is");
  }
  return text;
}

std::string in_short(const std::vector<SweepRow>& rows, const std::vector<Advice>& advice,
                     const VaryingOptions& varying, double budget) {
  std::vector<std::string> header = {"workload", "fit", "cheapest that fits", "$/1000 it.", "fastest", "iteration"};
  if (budget > 0) header.insert(header.end(), {fmt::format("fastest under {:.4g} $/h", budget), "iteration"});
  Table table(header);
  for (const Advice& of : advice) {
    std::vector<std::string> cells = {of.workload, fmt::format("{}/{}", of.fitting.size(), of.combinations)};
    const auto add = [&](const std::optional<std::size_t>& i, bool cost) {
      cells.push_back(i ? choice_text(rows[*i], varying) : "-");
      cells.push_back(!i     ? "-"
                      : cost ? usd_text(1000 * *rows[*i].usd_per_iteration)
                             : format_seconds(*rows[*i].iteration_seconds));
    };
    add(of.cheapest, true);
    add(of.fastest, false);
    if (budget > 0) add(of.in_budget, false);
    table.add(std::move(cells));
  }
  return table.text();
}

// The commonest reasons why combinations do not fit or are refused.
std::string reasons_text(const std::vector<SweepRow>& rows) {
  std::map<std::string, std::size_t> counts;
  std::size_t misfits = 0;
  for (const SweepRow& row : rows) {
    if (row.fits) continue;
    ++misfits;
    const bool memory =
        row.reason.starts_with("out of memory") || row.reason.find(": out of memory") != row.reason.npos;
    ++counts[memory ? "out of memory" : row.reason];
  }
  if (misfits == 0) return "";
  std::vector<std::pair<std::size_t, std::string>> sorted;
  for (const auto& [reason, count] : counts) sorted.emplace_back(count, reason);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = fmt::format("{} of {} do not fit:\n", misfits, rows.size());
  for (std::size_t i = 0; i < std::min(most_reasons, sorted.size()); ++i) {
    text += fmt::format("  {:>6}  {}\n", sorted[i].first, sorted[i].second);
  }
  if (sorted.size() > most_reasons) text += fmt::format("  and {} other reasons\n", sorted.size() - most_reasons);
  return text;
}

std::string prices_text(const std::vector<SweepRow>& rows) {
  std::set<std::string> dates;
  std::set<std::string> without;
  for (const SweepRow& row : rows) {
    if (row.usd_per_hour) {
      dates.insert(row.price_retrieved.empty() ? "of no date" : "of " + row.price_retrieved);
    } else {
      without.insert(row.machine);
    }
  }
  std::string text;
  if (!dates.empty()) text += fmt::format("Prices {}; see `tencache prices`.\n", fmt::join(dates, ", "));
  if (!without.empty()) text += fmt::format("Without a price: {}.\n", fmt::join(without, ", "));
  return text;
}

}  // namespace

Json sweep_json(const SweepResults& results, double budget_usd_per_hour) {
  Json about = Json::object(), rows = Json::array(), advice = Json::array();
  for (const auto& [name, value] : results.about) about[name] = value;
  for (const SweepRow& row : results.rows) rows.push_back(row_json(row));
  for (const Advice& of : advise(results.rows, budget_usd_per_hour)) {
    const auto position = [&](const std::optional<std::size_t>& i) {
      return i ? Json(results.rows[*i].position) : Json(nullptr);
    };
    Json front = Json::array();
    for (const std::size_t i : of.front) front.push_back(results.rows[i].position);
    advice.push_back({{"workload", of.workload},
                      {"combinations", of.combinations},
                      {"fitting", of.fitting.size()},
                      {"cheapest", position(of.cheapest)},
                      {"fastest", position(of.fastest)},
                      {"fastest_in_budget", position(of.in_budget)},
                      {"budget_usd_per_hour", budget_usd_per_hour > 0 ? Json(budget_usd_per_hour) : Json(nullptr)},
                      {"front", std::move(front)}});
  }
  return {{"sweep", std::move(about)}, {"rows", std::move(rows)}, {"advice", std::move(advice)}};
}

std::string sweep_text(const SweepResults& results, double budget_usd_per_hour, std::size_t top) {
  const std::vector<Advice> advice = advise(results.rows, budget_usd_per_hour);
  const VaryingOptions varying = varying_options(results.rows);
  std::string text;
  if (advice.size() > most_workloads_in_full) {
    text = in_short(results.rows, advice, varying, budget_usd_per_hour);
  } else {
    for (const Advice& of : advice) {
      if (!text.empty()) text += '\n';
      text += in_full(results.rows, of, varying, budget_usd_per_hour, top);
    }
  }
  return text + "\n" + reasons_text(results.rows) + prices_text(results.rows);
}

}  // namespace tencache
