#include "answers/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "answers/result.h"
#include "answers/text_table.h"
#include "core/text.h"

namespace tencache {
namespace {

// Of more workloads only the ends of the fronts are shown.
constexpr std::size_t most_workloads_in_full = 6;
constexpr std::size_t most_reasons = 5;
constexpr std::size_t most_ties = 4;
constexpr std::size_t most_machines = 6;

// Of all parts together it is that of the whole sweep, which gives the same rows.
Json manifest_of(const std::map<std::string, std::string>& about, const std::string& shard) {
  const auto text = [&](const char* name) {
    const auto found = about.find(name);
    return found == about.end() || found->second.empty() ? Json(nullptr) : Json(found->second);
  };
  Json command = text("command");
  if (command.is_string()) command = Json::parse(command.get<std::string>());
  if (command.is_object() && !shard.empty()) command["arguments"]["--shard"] = {shard};
  return {{"version", TENCACHE_VERSION},
          {"build", text("build")},
          {"hashes",
           {{"sweep", text("file_sha256")},
            {"combinations", text("combinations_sha256")},
            {"prices", text("prices_sha256")}}},
          {"run", {{"sweep", text("file")}, {"shard", shard.empty() ? Json(nullptr) : Json(shard)}}},
          {"seed", 0},
          {"command", std::move(command)}};
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

// "validated within 25.0 %", "extrapolated, durations rescaled from a100-80g".
std::string validity_of(const SweepRow& row) {
  std::string text = row.validity.substr(0, row.validity.find(" ("));
  if (!row.rescaled_from.empty()) text += ", durations rescaled from " + row.rescaled_from;
  return text;
}

std::string usd_text(const std::optional<double>& usd) { return usd ? fmt::format("{:.4g}", *usd) : std::string("-"); }
std::string thousand_text(const std::optional<double>& usd) {
  return usd ? fmt::format("{:.4g}", 1000 * *usd) : std::string("-");
}

// "5.866 s an iteration", and what bounds leave of it.
std::string time_text(const SweepRow& row) {
  std::string text = format_seconds(*row.iteration_seconds) + " an iteration";
  if (row.iteration_seconds_fast) {
    text += fmt::format(" (about {} to {}: of its SSD's rate only bounds are known)",
                        format_seconds(*row.iteration_seconds_fast), format_seconds(*row.iteration_seconds_slow));
  }
  return text;
}

// "5.866 s an iteration, 0.8 $/h, …; extrapolated": the cost with what interruptions add.
std::string spot_figures_text(const SweepRow& row) {
  std::string text = time_text(row);
  if (row.spot_usd_per_hour) text += fmt::format(", {:.4g} $/h", *row.spot_usd_per_hour);
  if (row.spot_usd_per_million_tokens) {
    text += fmt::format(", {:.4g} $/1M tokens", *row.spot_usd_per_million_tokens);
  } else {
    text += fmt::format(", {:.4g} $ for 1000 iterations", 1000 * *row.spot_usd_per_iteration);
  }
  if (row.spot_run_usd) text += fmt::format("; the run {:.4g} $ in {:.4g} h", *row.spot_run_usd, *row.spot_run_hours);
  return text + "; " + validity_of(row);
}

// "5.866 s an iteration, 2.427 $/h, …; extrapolated".
std::string figures_text(const SweepRow& row) {
  std::string text = time_text(row);
  if (row.usd_per_hour) text += fmt::format(", {:.4g} $/h", *row.usd_per_hour);
  if (row.usd_per_million_tokens) {
    text += fmt::format(", {:.4g} $/1M tokens", *row.usd_per_million_tokens);
  } else if (row.usd_per_iteration) {
    text += fmt::format(", {:.4g} $ for 1000 iterations", 1000 * *row.usd_per_iteration);
  }
  if (row.run_usd) text += fmt::format("; the run {:.4g} $ in {:.4g} h", *row.run_usd, *row.run_hours);
  if (row.spot_run_usd) text += fmt::format(" (spot {:.4g} $ in {:.4g} h)", *row.spot_run_usd, *row.spot_run_hours);
  if (row.gpus_used < row.gpus) text += fmt::format("; uses {} of {} GPUs paid for", row.gpus_used, row.gpus);
  return text + "; " + validity_of(row);
}

std::string percent(double share) { return fmt::format("{:.3g} %", 100 * share); }

// The row and what it ties with, the cheapest first.
std::vector<std::size_t> tied_rows(const std::vector<SweepRow>& rows, std::size_t best,
                                   const std::vector<std::size_t>& ties, std::optional<double> SweepRow::*cost) {
  std::vector<std::size_t> all = {best};
  all.insert(all.end(), ties.begin(), ties.end());
  sort_by_cost(all, rows, cost);
  return all;
}

// "fastest: M, P: …", or what it ties with, a line each: no row is called better by less than its error. Policies with
// the same figures on a machine share a line.
std::string choice_lines(const std::string& name, const std::vector<SweepRow>& rows, std::size_t best,
                         const std::vector<std::size_t>& ties, const VaryingOptions& varying,
                         std::string (*figures)(const SweepRow&) = figures_text,
                         std::optional<double> SweepRow::*cost = &SweepRow::usd_per_iteration) {
  struct Line {
    std::string machine, policies, figures;
  };
  std::vector<Line> lines;
  double margin = 0;
  for (const std::size_t i : tied_rows(rows, best, ties, cost)) {
    margin = std::max(margin, tie_margin(rows[best], rows[i]));
    Line line{machine_text(rows[i]), policy_text(rows[i], varying), figures(rows[i])};
    const auto same = std::ranges::find_if(
        lines, [&](const Line& other) { return other.machine == line.machine && other.figures == line.figures; });
    if (same == lines.end()) {
      lines.push_back(std::move(line));
    } else {
      same->policies += " or " + line.policies;
    }
  }
  const auto text_of = [](const Line& line) {
    return line.machine + ", " + line.policies + ": " + line.figures + "\n";
  };
  if (lines.size() == 1) return name + ": " + text_of(lines.front());
  std::string text = fmt::format("{}: a tie, within {}, of (the cheapest first)\n", name, percent(margin));
  for (std::size_t i = 0; i < std::min(most_ties, lines.size()); ++i) text += "  " + text_of(lines[i]);
  if (lines.size() > most_ties) text += fmt::format("  and {} others\n", lines.size() - most_ties);
  return text;
}

// The front, marked, and the fastest others.
std::string row_table(const std::vector<SweepRow>& rows, const Advice& advice, const VaryingOptions& varying,
                      std::size_t top) {
  std::vector<std::string> header = {"machine",    "policy",      "",     "iteration", "× ideal",  "$/h",
                                     "$/1000 it.", "$/1M tokens", "GPUs", "runs with", "waits for"};
  const bool has_spot =
      std::ranges::any_of(advice.fitting, [&](std::size_t i) { return rows[i].spot_usd_per_hour.has_value(); });
  if (has_spot) header.insert(header.begin() + 8, {"spot $/h", "spot $/1000 it."});
  const bool generates = std::ranges::any_of(advice.fitting, [&](std::size_t i) {
    return rows[i].time_to_first_token_seconds || rows[i].time_per_output_token_seconds;
  });
  if (generates) header.insert(header.begin() + 4, {"tokens/s", "TTFT", "TPOT"});
  // Where all rows are alike in it, a sentence says so below.
  const bool validity_varies = std::ranges::any_of(
      advice.fitting, [&](std::size_t i) { return validity_of(rows[i]) != validity_of(rows[advice.fitting.front()]); });
  if (validity_varies) header.push_back("validity");
  Table table(header);
  bool any_ties = false, any_below = false;
  std::size_t others = 0;
  for (const std::size_t i : advice.fitting) {
    const SweepRow& row = rows[i];
    if (!row.on_front && ++others > top) continue;
    any_ties = any_ties || row.ties_with_front;
    any_below = any_below || row.slowdown.value_or(1) < 0.9995;
    std::vector<std::string> cells = {machine_text(row),
                                      policy_text(row, varying),
                                      row.on_front          ? "*"
                                      : row.ties_with_front ? "="
                                                            : "",
                                      format_seconds(*row.iteration_seconds),
                                      row.slowdown ? fmt::format("{:.3f}", *row.slowdown) : "-",
                                      usd_text(row.usd_per_hour),
                                      thousand_text(row.usd_per_iteration),
                                      usd_text(row.usd_per_million_tokens),
                                      fmt::format("{}/{}", row.gpus_used, row.gpus),
                                      row.runs_with,
                                      row.waits_for};
    if (has_spot) {
      cells.insert(cells.begin() + 8, {usd_text(row.spot_usd_per_hour), thousand_text(row.spot_usd_per_iteration)});
    }
    if (generates) {
      const auto seconds = [](const std::optional<double>& value) { return value ? format_seconds(*value) : "-"; };
      cells.insert(cells.begin() + 4,
                   {row.tokens_per_second ? fmt::format("{:.4g}", *row.tokens_per_second) : "-",
                    seconds(row.time_to_first_token_seconds), seconds(row.time_per_output_token_seconds)});
    }
    if (validity_varies) cells.push_back(validity_of(row));
    table.add(std::move(cells));
  }
  std::string text = table.text();
  if (others > top) text += fmt::format("and {} slower ones\n", others - top);
  if (!advice.front.empty()) text += "* on the front of time against cost: nothing is both faster and cheaper\n";
  if (any_ties) text += "= as good as one of them: in time and cost no further from it than the error allows to tell\n";
  if (any_below) text += "× ideal below 1: the policy runs ops elsewhere than the trace, where the ideal leaves them\n";
  if (generates) text += "TTFT: time to first token, TPOT: time per output token after it\n";
  return text + "GPUs: used/paid for\n";
}

// Policies of rows that fit and are not recommended, and those that change what training ends with.
std::string systems_text(const std::vector<SweepRow>& rows, bool any_policy) {
  std::set<std::string> passed_over;
  std::map<std::string, std::string> changing;
  for (const SweepRow& row : rows) {
    if (!row.fits || row.policy == "ideal") continue;
    if (!may_be_advised(row, any_policy)) passed_over.insert(row.policy);
    if (row.changes_training != "no" && !row.changes_training.empty()) changing[row.policy] = row.changes_training;
  }
  std::string text;
  if (!passed_over.empty()) {
    text += fmt::format(
        "Not recommended where no system runs such a step under them today: {}; --any-policy recommends them, too.\n",
        fmt::join(passed_over, ", "));
  }
  for (const auto& [policy, when] : changing) text += policy + " changes what training ends with: " + when + ".\n";
  return text;
}

std::string in_full(const std::vector<SweepRow>& rows, const Advice& advice, const VaryingOptions& varying,
                    double budget, std::size_t top) {
  std::string text =
      fmt::format("{}: {} of {} combinations fit\n", advice.workload, advice.fitting.size(), advice.combinations);
  if (advice.fitting.empty()) return text;
  text += row_table(rows, advice, varying, top) + "\n";
  if (!advice.fastest) return text + "nothing that fits can be run\n";
  text += advice.cheapest ? choice_lines("cheapest that fits", rows, *advice.cheapest, advice.cheapest_ties, varying)
                          : "cheapest that fits: not known, nothing that fits has a price\n";
  if (advice.cheapest_on_spot) {
    text += choice_lines("cheapest on spot", rows, *advice.cheapest_on_spot, advice.cheapest_on_spot_ties, varying,
                         spot_figures_text, &SweepRow::spot_usd_per_iteration);
  }
  text += choice_lines("fastest", rows, *advice.fastest, advice.fastest_ties, varying);
  if (budget > 0) {
    const std::string name = fmt::format("fastest under {:.4g} $/h", budget);
    text += advice.in_budget ? choice_lines(name, rows, *advice.in_budget, advice.in_budget_ties, varying)
                             : name + ": nothing that fits is\n";
  }
  return text;
}

std::string in_short(const std::vector<SweepRow>& rows, const std::vector<Advice>& advice,
                     const VaryingOptions& varying, double budget) {
  std::vector<std::string> header = {"workload", "fit", "cheapest that fits", "$/1000 it.", "fastest", "iteration"};
  const bool has_spot = std::ranges::any_of(advice, [](const Advice& of) { return of.cheapest_on_spot.has_value(); });
  if (has_spot) header.insert(header.begin() + 4, {"cheapest on spot", "spot $/1000 it."});
  if (budget > 0) header.insert(header.end(), {fmt::format("fastest under {:.4g} $/h", budget), "iteration"});
  Table table(header);
  for (const Advice& of : advice) {
    std::vector<std::string> cells = {of.workload, fmt::format("{}/{}", of.fitting.size(), of.combinations)};
    const auto add = [&](const std::optional<std::size_t>& best, const std::vector<std::size_t>& ties, bool of_cost,
                         std::optional<double> SweepRow::*cost) {
      const std::string tie = ties.empty() ? "" : fmt::format(" (= {} more)", ties.size());
      const SweepRow* row = best ? &rows[tied_rows(rows, *best, ties, cost).front()] : nullptr;
      cells.push_back(row != nullptr ? choice_text(*row, varying) + tie : "-");
      cells.push_back(row == nullptr ? "-"
                      : of_cost      ? thousand_text(row->*cost)
                                     : format_seconds(*row->iteration_seconds));
    };
    add(of.cheapest, of.cheapest_ties, true, &SweepRow::usd_per_iteration);
    if (has_spot) add(of.cheapest_on_spot, of.cheapest_on_spot_ties, true, &SweepRow::spot_usd_per_iteration);
    add(of.fastest, of.fastest_ties, false, &SweepRow::usd_per_iteration);
    if (budget > 0) add(of.in_budget, of.in_budget_ties, false, &SweepRow::usd_per_iteration);
    table.add(std::move(cells));
  }
  const bool any_ties = std::ranges::any_of(advice, [](const Advice& of) {
    return !of.cheapest_ties.empty() || !of.fastest_ties.empty() || !of.in_budget_ties.empty() ||
           !of.cheapest_on_spot_ties.empty();
  });
  if (!any_ties) return table.text();
  return table.text() +
         "(= n more): the cheapest of a tie with n others, no further apart than the error allows to tell; `advice` in "
         "--json names them\n";
}

// "GPU times are modelled: a100-40g ± 5 %, v100-16g ± 14 % (beyond measured shapes 100 %).": the worst of each GPU.
std::string gpu_times_text(const std::vector<SweepRow>& rows) {
  struct Worst {
    double error = 0, beyond = 0;
  };
  std::map<std::string, Worst> by_gpu;
  for (const SweepRow& row : rows) {
    if (!row.fits || row.policy == "ideal" || !row.gpu_time_error) continue;
    Worst& worst = by_gpu[row.gpu.empty() ? "unknown GPU" : row.gpu];
    worst.error = std::max(worst.error, *row.gpu_time_error);
    worst.beyond = std::max(worst.beyond, row.gpu_time_extrapolated_share.value_or(0));
  }
  std::string text;
  for (const auto& [gpu, worst] : by_gpu) {
    text += fmt::format("{}{} ± {:.0f} %", text.empty() ? "" : ", ", printable(gpu), 100 * worst.error);
    constexpr double least_shown = 0.005, nothing_measured = 1;
    if (worst.beyond == nothing_measured) {
      text += " (not measured)";
    } else if (worst.beyond >= least_shown) {
      text += fmt::format(" (up to {:.0f} % of the time is of shapes beyond the measured ones)", 100 * worst.beyond);
    }
  }
  return text.empty() ? "" : "GPU times are modelled, with median errors of: " + text + ".\n";
}

// What the figures are made of, and what may be believed of them: of which rows that fit.
std::string validity_text_of(const std::vector<SweepRow>& rows) {
  std::map<std::string, std::size_t> validities, durations;
  std::size_t fitting = 0;
  for (const SweepRow& row : rows) {
    if (!row.fits || row.policy == "ideal") continue;
    ++fitting;
    ++validities[row.validity];
    ++durations[row.rescaled_from.empty() ? row.durations : "rescaled from " + row.rescaled_from];
  }
  if (fitting == 0) return "";
  const auto list = [&](const std::map<std::string, std::size_t>& counts, const auto& words) {
    std::string text;
    for (const auto& [name, count] : counts) {
      text += (text.empty() ? "" : "; ") + (count == fitting ? "all" : fmt::format("{} of {}", count, fitting)) + " " +
              words(name);
    }
    return text;
  };
  const std::string made = list(durations, [](const std::string& name) -> std::string {
    if (name == "modelled") return "are modelled (generated traces)";
    if (name == "measured") return "are recorded";
    return "are modelled: " + name + " (docs/rescaling.md)";
  });
  const std::string believed = list(validities, [](const std::string& name) -> std::string {
    return name == "extrapolated"
               ? "are extrapolated: no measurement of such a machine and trace says how far they are off"
               : "are " + name;
  });
  return "Durations: " + made + ".\n" + gpu_times_text(rows) + "Figures: " + believed + ".\n";
}

// The commonest reasons why combinations do not fit or are refused.
std::string reasons_text(const std::vector<SweepRow>& rows) {
  std::map<std::string, std::size_t> counts;
  std::size_t misfits = 0, all = 0;
  for (const SweepRow& row : rows) {
    if (row.policy == "ideal") continue;  // counted nowhere
    ++all;
    if (row.fits) continue;
    ++misfits;
    const bool memory =
        row.reason.starts_with("out of memory") || row.reason.find(": out of memory") != row.reason.npos;
    ++counts[memory ? "out of memory" : row.reason];
  }
  if (misfits == 0) return "";
  std::vector<std::pair<std::size_t, std::string>> sorted;
  for (const auto& [reason, count] : counts) sorted.emplace_back(count, reason);
  std::ranges::stable_sort(sorted, std::greater<>(), &decltype(sorted)::value_type::first);
  std::string text = fmt::format("{} of {} do not fit, or are refused:\n", misfits, all);
  for (std::size_t i = 0; i < std::min(most_reasons, sorted.size()); ++i) {
    text += fmt::format("  {:>6}  {}\n", sorted[i].first, printable(sorted[i].second));
  }
  if (sorted.size() > most_reasons) text += fmt::format("  and {} other reasons\n", sorted.size() - most_reasons);
  return text;
}

// "2026-07, published (3 machines)": of a kind of price, each date and confidence, or who gave it.
class PriceNotes {
 public:
  void add(const std::string& machine, const std::string& source, const std::string& retrieved,
           const std::string& confidence) {
    if (confidence == "given") {
      machines_[source.starts_with("--price") ? "given by --price" : "given by the sweep's file"].insert(machine);
      return;
    }
    machines_[(retrieved.empty() ? "of no date" : "of " + retrieved) + ", " + confidence].insert(machine);
  }
  std::string text(const char* kind) const {
    if (machines_.empty()) return "";
    std::string list;
    for (const auto& [what, machines] : machines_) {
      list += (list.empty() ? "" : "; ") + what;
      if (machines_.size() > 1 && machines.size() <= most_machines)
        list += fmt::format(" ({})", fmt::join(machines, ", "));
      if (machines_.size() > 1 && machines.size() > most_machines)
        list += fmt::format(" ({} machines)", machines.size());
    }
    return fmt::format("{}: {}.\n", kind, list);
  }

 private:
  std::map<std::string, std::set<std::string>> machines_;
};

std::string prices_text(const std::vector<SweepRow>& rows) {
  PriceNotes on_demand, spot, interruptions, storage;
  std::set<std::string> without, what_if, without_rate, hardly_ending;
  for (const SweepRow& row : rows) {
    if (row.policy == "ideal") continue;
    if (!row.usd_per_hour) (row.price_source == what_if_price ? what_if : without).insert(row.machine);
    if (row.usd_per_hour) on_demand.add(row.machine, row.price_source, row.price_retrieved, row.price_confidence);
    if (row.storage_usd_per_hour) {
      storage.add(row.machine, row.storage_price_source, row.storage_price_retrieved, row.storage_price_confidence);
    }
    if (!row.spot_usd_per_hour) continue;
    spot.add(row.machine, row.spot_price_source, row.spot_price_retrieved, row.spot_price_confidence);
    if (!row.spot_interruptions_per_hour) {
      without_rate.insert(row.machine);
    } else {
      interruptions.add(row.machine, row.interruptions_source, row.interruptions_retrieved,
                        row.interruptions_confidence);
      if (!row.spot_slowdown) hardly_ending.insert(row.machine);
    }
  }
  std::string text = on_demand.text("Prices") + storage.text("Prices of attached storage") + spot.text("Spot prices") +
                     interruptions.text("Interruptions of spot machines");
  if (!text.empty()) text += "Where each price is from: `tencache prices`, and price_source of each row.\n";
  if (!without.empty()) {
    text += fmt::format("Without a cost, since no price in USD is known of the machine or of its storage: {}.\n",
                        fmt::join(without, ", "));
  }
  if (!what_if.empty()) {
    text += fmt::format("Without a cost, since no machine is sold with that much memory (what-if): {}.\n",
                        fmt::join(what_if, ", "));
  }
  if (!without_rate.empty()) {
    text += fmt::format(
        "Without a cost on spot, since how often they are taken away is not known: {}; say cost.interruptions_per_hour "
        "(0: never).\n",
        fmt::join(without_rate, ", "));
  }
  if (!hardly_ending.empty()) {
    text += fmt::format("Without a cost on spot, since a run would hardly end: {}.\n", fmt::join(hardly_ending, ", "));
  }
  return text;
}

}  // namespace

SweepAnswer sweep_answer(const SweepResults& results, double budget_usd_per_hour, const std::string& shard) {
  SweepAnswer answer;
  for (const auto& [name, value] : results.about) {
    if (name != "command" && name != "file_sha256") answer.sweep.emplace_back(name, value);
  }
  answer.rows = results.rows;
  for (const Advice& of : advise(results.rows, budget_usd_per_hour, advises_any_policy(results))) {
    const auto position = [&](const std::optional<std::size_t>& i) {
      return i ? std::optional(results.rows[*i].position) : std::nullopt;
    };
    const auto positions = [&](const std::vector<std::size_t>& list) {
      std::vector<std::uint64_t> all;
      for (const std::size_t i : list) all.push_back(results.rows[i].position);
      return all;
    };
    answer.advice.push_back({.workload = of.workload,
                             .combinations = of.combinations,
                             .fitting = of.fitting.size(),
                             .cheapest = position(of.cheapest),
                             .fastest = position(of.fastest),
                             .fastest_in_budget = position(of.in_budget),
                             .cheapest_on_spot = position(of.cheapest_on_spot),
                             .cheapest_on_spot_ties = positions(of.cheapest_on_spot_ties),
                             .cheapest_ties = positions(of.cheapest_ties),
                             .fastest_ties = positions(of.fastest_ties),
                             .fastest_in_budget_ties = positions(of.in_budget_ties),
                             .budget_usd_per_hour = {},
                             .front = positions(of.front)});
    if (budget_usd_per_hour > 0) answer.advice.back().budget_usd_per_hour = budget_usd_per_hour;
  }
  answer.manifest = manifest_of(results.about, shard);
  return answer;
}

std::string sweep_text(const SweepResults& results, double budget_usd_per_hour, std::size_t top) {
  const std::vector<Advice> advice = advise(results.rows, budget_usd_per_hour, advises_any_policy(results));
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
  return text + "\n" + reasons_text(results.rows) + systems_text(results.rows, advises_any_policy(results)) +
         validity_text_of(results.rows) + prices_text(results.rows);
}

}  // namespace tencache
