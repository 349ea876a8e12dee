#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "answers/bound.h"
#include "answers/intervals.h"
#include "answers/questions.h"
#include "answers/result.h"
#include "answers/text_table.h"
#include "configs/rescale_to_machine.h"
#include "configs/validated.h"
#include "core/remark.h"
#include "core/text.h"
#include "policies/registry.h"
#include "studies/generation.h"
#include "studies/scenario_options.h"

namespace tencache {
namespace {

constexpr std::size_t table_width = 100;
constexpr std::size_t bar_width = 30;
constexpr std::size_t short_bar_width = 14;  // beside more columns

struct CompareRequest {
  Scenario scenario;
  std::string policies = "all";
};

bool better(const Outcome& a, const Outcome& b) {
  if (a.result.fits != b.result.fits) return a.result.fits;
  return a.result.fits && a.result.iteration_seconds() < b.result.iteration_seconds();
}

// "12.3 GB" over all links, an iteration.
std::string moved(const MachineSpec& machine, const RunResult& result) {
  double bytes = 0;
  for (std::size_t i = 0; i < machine.links.size(); ++i) bytes += static_cast<double>(result.window.links[i].bytes);
  bytes /= static_cast<double>(result.period);
  const double unit = bytes >= 1e9 ? 1e9 : 1e6;
  const double value = bytes / unit;
  return fmt::format("{:.{}f} {}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2, bytes >= 1e9 ? "GB" : "MB");
}

// What fills the width of a bar: the slowest policy, but for those so slow that the others could not be told apart.
double longest_bar_seconds(const std::vector<Outcome>& outcomes, const References& references) {
  constexpr double most_times_the_best = 4;
  double best = std::numeric_limits<double>::infinity(), longest = references.ideal_seconds;
  for (const Outcome& outcome : outcomes) {
    if (outcome.result.fits && outcome.policy != "ideal") best = std::min(best, outcome.result.iteration_seconds());
  }
  for (const Outcome& outcome : outcomes) {
    const double seconds = outcome.result.iteration_seconds();
    if (outcome.result.fits && seconds <= most_times_the_best * best) longest = std::max(longest, seconds);
  }
  return longest;
}

// Which figures the order hangs on, a line each.
std::string what_decides(const Intervals& intervals, const std::vector<const Interval*>& of_outcome,
                         const std::vector<Outcome>& outcomes) {
  if (intervals.samples == 0) return "";
  std::string text = fmt::format("Intervals hold 90 % of {} samples of {}.", intervals.samples, intervals.drawn());
  std::string best, misfits;
  bool ties = false;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (of_outcome[i] == nullptr) continue;
    ties = ties || of_outcome[i]->ties_with_best;
    if (best.empty() && outcomes[i].result.fits) best = outcomes[i].policy;
    const std::uint64_t missing = of_outcome[i]->misfits();
    if (missing != 0 && outcomes[i].result.fits) {
      misfits += fmt::format("{} does not fit in {} of them.\n", outcomes[i].policy, missing);
    }
  }
  if (ties) text += fmt::format(" Rows marked = tie with {}.", best);
  text += "\n" + misfits;
  const bool certain = intervals.winner_depends_on.empty();
  const Influence* decides = certain ? nullptr : &intervals.winner_depends_on.front();
  for (std::size_t i = 0; i < outcomes.size() && certain; ++i) {
    if (outcomes[i].policy == best && of_outcome[i] != nullptr && !of_outcome[i]->influences.empty()) {
      decides = &of_outcome[i]->influences.front();
    }
  }
  if (decides == nullptr) return text;
  text += fmt::format("The {} most on {}", certain ? "time of " + best + " depends" : std::string("winner depends"),
                      intervals.name_of(*decides));
  const UncertainFigure& figure = intervals.figures[decides->figure];
  if (figure.of_kernels) return text + ": record a step on the GPU (docs/recording.md).\n";
  return text + (figure.confidence == "measured" ? ".\n" : ": run `tencache calibrate` on the machine.\n");
}

// What may be believed of the figures, and which, in the words of `sweep`.
std::string validity_lines(const Workload& workload, const std::vector<Outcome>& outcomes) {
  const std::vector<Validated> list = read_validated();
  const std::string& recorded_by = workload.trace->header.recorded_by;
  const Validated* validated =
      is_like_measured(workload) ? validated_for(list, workload.machine.name, recorded_by) : nullptr;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // validity and the policies that have it
  for (const Outcome& outcome : outcomes) {
    if (!outcome.result.fits || outcome.policy == "ideal") continue;
    const PolicyRun run{outcome.policy, outcome.options, make_policy(outcome.policy).options};
    std::string validity = validity_text(validated, run, recorded_by);
    if (validity == "extrapolated")
      validity += ": no measurement of such a machine and trace says how far they are off";
    auto found = std::ranges::find(rows, validity, &std::pair<std::string, std::vector<std::string>>::first);
    if (found == rows.end()) found = rows.insert(rows.end(), {validity, {}});
    found->second.push_back(outcome.policy);
  }
  std::string text;
  for (const auto& [validity, policies] : rows) {
    text += fmt::format("Figures{} are {}.\n", rows.size() == 1 ? "" : " of " + join(policies), validity);
  }
  return text;
}

// How much of the waits for the CPU's optimizer is the CPU's own computing, in lines of the table's width.
std::string cpu_wait_lines(const std::vector<Outcome>& outcomes) {
  constexpr double least_share = 0.01;  // of the iteration
  std::string text, line;
  for (const Outcome& outcome : outcomes) {
    const RunResult& result = outcome.result;
    const auto wait = static_cast<double>(result.window.stall_ns[static_cast<std::size_t>(StallCause::cpu_optimizer)]);
    if (!result.fits || wait <= least_share * static_cast<double>(result.window.time_ns)) continue;
    const double computing = static_cast<double>(result.window.cpu_wait_compute_ns) / wait;
    const std::string item = fmt::format("{} {:.0f} %", outcome.policy, 100 * computing);
    if (line.empty()) {
      line = "Of cpu_optimizer the CPU's own computing, the rest its waits for transfers: " + item;
    } else if (line.size() + item.size() + 3 > table_width) {
      text += line + ",\n";
      line = "  " + item;
    } else {
      line += ", " + item;
    }
  }
  return line.empty() ? "" : text + line + ".\n";
}

std::string misfit_text(const Outcome& outcome) { return "does not fit: " + outcome.result.misfit; }

// Below the table, whole: the reasons that do not fit into their rows, each once.
std::string cut_misfits(const std::vector<Outcome>& outcomes) {
  std::size_t first_column = columns_of("(bound)");
  for (const Outcome& outcome : outcomes) first_column = std::max(first_column, columns_of(outcome.policy));
  std::vector<std::pair<std::string, std::vector<std::string>>> policies_by_reason;
  for (const Outcome& outcome : outcomes) {
    const std::string reason = printable(outcome.result.misfit);
    if (outcome.result.fits || first_column + 2 + columns_of(misfit_text(outcome)) <= table_width) continue;
    auto at = std::ranges::find(policies_by_reason, reason, [](const auto& entry) { return entry.first; });
    if (at == policies_by_reason.end()) at = policies_by_reason.insert(at, {reason, {}});
    at->second.push_back(outcome.policy);
  }
  std::string text;
  for (const auto& [reason, policies] : policies_by_reason) text += join(policies) + ": " + reason + "\n";
  return text;
}

// Cells of a text generation: tokens a second, times to the first token and per token after it.
std::vector<std::string> generation_cells(const Generation& generation, const RunResult& result) {
  const auto seconds = [](const std::optional<double>& value) { return value ? format_seconds(*value) : "-"; };
  const double iteration = result.iteration_seconds();
  const bool known = generation.tokens > 0 && iteration > 0;
  return {known ? fmt::format("{:.4g}", static_cast<double>(generation.tokens) / iteration) : "-",
          seconds(time_to_first_token_seconds(generation, result)),
          seconds(time_per_output_token_seconds(generation, result))};
}

// `intervals`: one an outcome, nullptr where there is none.
std::string table(const Workload& workload, const std::vector<Outcome>& outcomes, const References& references,
                  const Intervals& sampled, const std::vector<const Interval*>& intervals) {
  const double longest = longest_bar_seconds(outcomes, references);
  const bool with_intervals = sampled.samples != 0;
  std::string remarks;
  for (const std::string& note : notes_of(workload)) remarks += note + "\n";
  const std::optional<Generation> generation = generation_of(*workload.trace);
  std::vector<std::string> header = {"policy", "iteration", "× ideal", "hits", "moved", "waits most for", "time"};
  if (generation) header.insert(header.begin() + 2, {"tokens/s", "TTFT", "TPOT"});
  if (with_intervals) header.insert(header.begin() + 2, "interval");
  const Price& price = workload.machine.price;
  const PriceChoice& asked = workload.scenario.prices;
  const bool with_cost = price.on_demand > 0 && !(asked.file.empty() && asked.prices.empty());
  const double tokens = static_cast<double>(workload.trace->header.tokens_per_iteration());
  const std::string currency = price.currency == "USD" ? "$" : price.currency;
  if (with_cost) header.insert(header.end() - 1, currency + (tokens > 0 ? "/1M tokens" : "/iteration"));
  // Of the whole machine, ranks that the trace leaves idle included.
  const auto cost = [&](double seconds) {
    return fmt::format("{:.4g}", price.on_demand / 3600 * seconds * (tokens > 0 ? 1e6 / tokens : 1));
  };
  Table table(header);
  const auto ratio = [&](double seconds) {
    return references.ideal_seconds > 0 ? fmt::format("{:.3f}", seconds / references.ideal_seconds) : std::string("-");
  };
  // `result`: null of the bound.
  const auto row = [&](std::vector<std::string> cells, const std::string& interval, double seconds,
                       const RunResult* result) {
    if (with_cost) cells.insert(cells.begin() + 6, cost(seconds));  // before the bars
    if (generation) {
      const std::vector<std::string> more =
          result == nullptr ? std::vector<std::string>(3) : generation_cells(*generation, *result);
      cells.insert(cells.begin() + 2, more.begin(), more.end());
    }
    if (with_intervals) cells.insert(cells.begin() + 2, interval);
    table.add(std::move(cells));
  };
  row({"(bound)", format_seconds(references.bound_seconds), ratio(references.bound_seconds), "", "",
       references.bound_term},
      "", references.bound_seconds, nullptr);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    const RunResult& result = outcome.result;
    if (!result.fits) {
      table.add_wide(outcome.policy, misfit_text(outcome), table_width);
      continue;
    }
    const AccessCounters accesses = result.window.all_accesses();
    const double hits =
        accesses.accesses == 0 ? 1.0 : static_cast<double>(accesses.hits) / static_cast<double>(accesses.accesses);
    std::string interval;
    if (intervals[i] != nullptr) interval = (intervals[i]->ties_with_best ? "= " : "") + format_interval(*intervals[i]);
    row({outcome.policy, format_seconds(result.iteration_seconds()), ratio(result.iteration_seconds()),
         fmt::format("{:.1f} %", 100 * hits), moved(workload.machine, result), main_stall(result),
         time_bar(result, longest, with_intervals || generation ? short_bar_width : bar_width)},
        interval, result.iteration_seconds(), &result);
  }
  remarks += cut_misfits(outcomes);
  if (with_cost) {
    const std::string& date = workload.price.on_demand.retrieved;
    remarks += fmt::format("Cost at {:.4g} {}/h on demand{}.\n", price.on_demand, currency,
                           date.empty() ? "" : ", price of " + date);
  }
  remarks += cpu_wait_lines(outcomes);
  for (const Outcome& outcome : outcomes) {
    if (const std::string note = deepspeed_note(workload, outcome); !note.empty()) {
      remarks += fmt::format("{}: {}.\n", outcome.policy, note);
    }
  }
  if (const std::string note = storage_bound_note(workload, references.binding, references.bound_rank); !note.empty()) {
    remarks += note + "\n";
  }
  remarks += validity_lines(workload, outcomes);
  std::string legend = "█ compute  ▒ what it waits most for  ░ other stalls\n";
  if (generation) legend += "TTFT: time to first token  TPOT: time per output token after it\n";
  return fmt::format("{} on {}\n\n{}\n{}{}{}", trace_title(workload), machine_title(workload), table.text(), legend,
                     what_decides(sampled, intervals, outcomes), remarks);
}

Answered compare(const CompareRequest& request) {
  const std::vector<std::string> names = policies_named(request.policies);
  const Workload workload = load_workload(request.scenario);
  const References references = references_of(workload);
  std::vector<Outcome> outcomes;
  {
    ProgressLine progress;
    for (const std::string& name : names) {
      progress.show(fmt::format("{} of {}: {}", outcomes.size() + 1, names.size(), name));
      outcomes.push_back(simulate_or_refuse(workload, name, {}));
      outcomes.back().program.trace = Trace();  // a table needs only what was changed
    }
  }
  std::stable_sort(outcomes.begin(), outcomes.end(), better);

  // That the ideal fits says nothing, unless nothing else was asked.
  const bool any_fits = std::any_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
    return outcome.result.fits && (outcome.policy != "ideal" || names.size() == 1);
  });
  // No policy competes with the ideal.
  std::vector<Sampled> sampled;
  for (const Outcome& outcome : outcomes) {
    if (outcome.policy == "ideal") continue;
    sampled.push_back(
        {outcome.policy,
         {},
         outcome.result.fits ? outcome.result.iteration_seconds() : std::numeric_limits<double>::infinity()});
  }
  const Intervals intervals = sample_intervals(workload, sampled, workload.scenario.sampling);
  // `ideal` is a row whether it was asked for or not.
  if (std::find(names.begin(), names.end(), "ideal") == names.end()) {
    outcomes.insert(outcomes.begin(), simulate_or_refuse(workload, "ideal", {}));
  }

  std::vector<const Interval*> interval_of(outcomes.size(), nullptr);
  for (std::size_t i = 0; i < outcomes.size() && intervals.samples != 0; ++i) {
    for (std::size_t j = 0; j < sampled.size(); ++j) {
      if (sampled[j].policy == outcomes[i].policy) interval_of[i] = &intervals.policies[j];
    }
  }

  std::vector<ResultAnswer> rows = {bound_row_answer(workload, references)};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    rows.push_back(result_answer(workload, outcomes[i], references));
    if (interval_of[i] != nullptr) add_interval(rows.back(), intervals, *interval_of[i]);
  }
  return {.json = [rows = std::move(rows)] { return to_json_of(rows); },
          .text = [text = table(workload, outcomes, references, intervals, interval_of)] { return text; },
          .yes = any_fits};
}

}  // namespace

std::unique_ptr<Question> compare_question() {
  auto question = std::make_unique<Question>("compare");
  auto request = std::make_shared<CompareRequest>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  add_price_options(options, request->scenario.prices);
  options.text("--policies,-p,--policy", request->policies, "Names separated by commas, or all");
  add_sample_options(options, request->scenario.sampling);
  question->ask = [request] { return compare(*request); };
  return question;
}

}  // namespace tencache
