#include "answers/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "answers/intervals.h"
#include "answers/result_file.h"
#include "answers/text_table.h"
#include "core/text.h"
#include "studies/validity.h"

namespace tencache {
namespace {

constexpr std::size_t table_width = 100;
constexpr std::size_t bar_width = 30, short_bar_width = 14;  // short beside more columns

bool is_bound(const ResultAnswer& result) { return result.policy == bound_row; }
bool is_reference(const ResultAnswer& result) { return is_bound(result) || result.policy == "ideal"; }
bool is_sampled(const ResultAnswer& result) { return result.interval_seconds.has_value(); }
bool is_of_generation(const ResultAnswer& result) { return result.generation.has_value(); }
bool is_measured(const ResultAnswer& result) { return result.measured.value_or(false); }
double seconds_of(const ResultAnswer& result) { return result.iteration_seconds.value_or(0); }

std::string name_of(const ResultAnswer& result) { return result.policy + (is_measured(result) ? " (measured)" : ""); }
std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// Of two finite ends.
std::optional<std::pair<double, double>> interval_of(const ResultAnswer& result) {
  const auto& interval = result.interval_seconds;
  return interval && std::isfinite(interval->first + interval->second) ? interval : std::nullopt;
}

double moved_bytes(const ResultAnswer& result) {
  double bytes = 0;
  for (const auto& [link, moved] : result.traffic_bytes.value_or(Named<Json>())) {
    if (moved.is_number()) bytes += moved.get<double>();
  }
  return bytes;
}

TimeParts parts_of(const ResultAnswer& result) {
  return {.fits = result.fits,
          .iteration_seconds = seconds_of(result),
          .compute_seconds = result.compute_seconds.value_or(0),
          .gap_seconds = result.gap_seconds.value_or(0),
          .stall_seconds = result.stall_seconds.value_or(StallSeconds())};
}

template <typename Value>
std::optional<double> figure(const std::optional<Named<Value>>& figures, const std::string& name) {
  for (const auto& [key, value] : figures.value_or(Named<Value>())) {
    if (key != name) continue;
    if constexpr (std::same_as<Value, Json>)
      return value.is_number() ? std::optional(value.template get<double>()) : std::nullopt;
    else if constexpr (std::same_as<Value, Bytes>)
      return static_cast<double>(value);
    else
      return value;
  }
  return std::nullopt;
}

// Of a result that does not say so it is not known.
bool runs_somewhere(const ResultAnswer& result) { return !result.runs_with || can_be_run(*result.runs_with); }

// The fastest that fits and, unless any policy may be it, can be run; references apart. Null: none does.
const ResultAnswer* best_of(const std::vector<ResultAnswer>& results, bool any_policy = true) {
  const ResultAnswer* best = nullptr;
  for (const ResultAnswer& result : results) {
    if (!result.fits || is_reference(result) || !(seconds_of(result) > 0)) continue;
    if (!any_policy && !runs_somewhere(result)) continue;
    if (best == nullptr || seconds_of(result) < seconds_of(*best)) best = &result;
  }
  return best;
}

// Which bound it is (docs/results.md).
std::string bound_name(const ResultAnswer& bound) { return bound.bound_choice_seconds ? "bound_choice" : "bound"; }

const ResultAnswer* bound_of(const std::vector<ResultAnswer>& results) {
  const auto found = std::ranges::find_if(
      results, [](const ResultAnswer& result) { return is_bound(result) && seconds_of(result) > 0; });
  return found == results.end() ? nullptr : &*found;
}

// What bars are drawn up to: the slowest row within 4 × the best, and ends of intervals up to 1.5 × that.
double longest_bar_seconds(const std::vector<ResultAnswer>& results) {
  constexpr double most_times_the_best = 4, most_times_the_longest = 1.5;
  const ResultAnswer* const best = best_of(results);
  double longest = 0, high = 0;
  for (const ResultAnswer& result : results) {
    const double seconds = seconds_of(result);
    if (!result.fits || (best != nullptr && seconds > most_times_the_best * seconds_of(*best))) continue;
    longest = std::max(longest, seconds);
    if (const auto interval = interval_of(result)) high = std::max(high, interval->second);
  }
  return std::max(longest, std::min(high, most_times_the_longest * longest));
}

// What a reader may believe of it besides its interval.
std::string belief_of(const ResultAnswer& result) {
  if (is_bound(result)) {
    return result.bound_choice_seconds ? fmt::format("no policy can be faster, whatever it recomputes; as recorded {}",
                                                     format_seconds(result.bound_seconds))
                                       : "no policy can be faster";
  }
  if (is_measured(result)) {
    const auto error = result.prediction ? result.prediction->error : std::nullopt;
    return "measured" + (error ? fmt::format("; predicted {:+.1f} %", 100 * *error) : "");
  }
  if (!result.fits || result.policy == "ideal") return "";
  if (const std::uint64_t misfits = result.misfit_samples.value_or(0); misfits > 0) {
    return fmt::format("fits in {} of {} samples", result.samples.value_or(0) - misfits, result.samples.value_or(0));
  }
  const std::string validity = result.validity.value_or("extrapolated");
  return validity.substr(0, validity.find(" (")) + (interval_of(result) ? "" : ", no interval");
}

// With the digits of the terminal on pages, too.
Cell alike(Cell cell) {
  cell.page = cell.text;
  return cell;
}

Cell waits_cell(const ResultAnswer& result) {
  if (is_bound(result)) return result.bound_term;
  const StallSeconds stalls = result.stall_seconds.value_or(StallSeconds());
  const StallCause worst = largest_of(stalls);
  if (!(stalls[worst] > 0) || !(seconds_of(result) > 0)) return "";
  const std::string share = fmt::format(" {:.0f} %", 100 * stalls[worst] / seconds_of(result));
  return text_cell(std::string(to_string(worst)) + share, label_of(worst) + share);
}

std::string currency_sign(const std::string& currency) { return currency == "USD" ? "$" : currency; }

std::optional<double> tokens_per_iteration(const std::vector<ResultAnswer>& results) {
  for (const ResultAnswer& result : results) {
    if (result.tokens_per_second) return *result.tokens_per_second * seconds_of(result);
  }
  return std::nullopt;
}

bool asks_for_prices(const ResultAnswer& result) { return result.manifest.run.prices || result.manifest.run.price; }

// Of the whole machine, ranks that the trace leaves idle included.
Cell cost_cell(const ResultAnswer& result, std::optional<double> tokens) {
  if (!result.manifest.price) return "–";
  const double cost = result.manifest.price->per_hour / 3600 * seconds_of(result) * (tokens ? 1e6 / *tokens : 1);
  return alike({fmt::format("{:.4g}", cost), cost});
}

Cell seconds_or_dash(const std::optional<double>& seconds) { return seconds ? seconds_cell(*seconds) : Cell("-"); }
Cell number_cell(const std::optional<double>& value) { return value ? Cell(number_text(*value), *value) : Cell(""); }

Facts facts_of(const ResultAnswer& result) {
  Facts facts{{"", result.policy + (is_bound(result)      ? ""
                                    : is_measured(result) ? ", measured"
                                                          : ", simulated")},
              {"machine", result.machine},
              {"trace", result.trace}};
  if (!result.fits) {
    facts.emplace_back("does not fit", result.reason);
    return facts;
  }
  facts.emplace_back("iteration", seconds_text(seconds_of(result)));
  for (const ChartPart& part : chart_parts(parts_of(result))) {
    facts.emplace_back(part.label, seconds_text(part.value) + ", " + percent(part.value / seconds_of(result)));
  }
  facts.emplace_back("believe", belief_of(result));
  if (result.validity) facts.emplace_back("such simulations", *result.validity);
  if (const HitRates hits = result.gpu_hit_rate.value_or(HitRates()); hits.bytes && hits.accesses && hits.tensors) {
    facts.emplace_back("hits", fmt::format("{} of bytes, {} of accesses, {} of tensors", percent(*hits.bytes),
                                           percent(*hits.accesses), percent(*hits.tensors)));
  }
  for (const auto& [name, used] : result.mean_utilization.value_or(Named<std::optional<double>>())) {
    if (!used) continue;
    const auto moved = figure(result.traffic_bytes, name), peak = figure(result.peak_bytes, name);
    std::string text = percent(*used) + (moved ? " of the time" : " held in the mean");
    if (moved) text += ", moves " + format_bytes(static_cast<Bytes>(*moved));
    if (peak) text += ", peak " + format_bytes(static_cast<Bytes>(*peak));
    facts.emplace_back(name, text);
  }
  if (result.tokens_per_second) facts.emplace_back("tokens a second", fmt::format("{:.1f}", *result.tokens_per_second));
  if (result.generation && result.generation->kv_cache_hit_rate.bytes) {
    facts.emplace_back("KV cache",
                       percent(*result.generation->kv_cache_hit_rate.bytes) + " of bytes read are in GPU memory");
  }
  return facts;
}

// ---- The figures ----------------------------------------------------------------------------------------------------

// A column: what it is called, where it is shown, and what a row has there.
struct Figure {
  Column column;
  std::function<Cell(const ResultAnswer&)> cell;
};

// Tiers and links that any result has.
std::vector<std::string> resources_of(const std::vector<ResultAnswer>& results) {
  std::vector<std::string> names;
  for (const ResultAnswer& result : results) {
    for (const auto& [name, used] : result.mean_utilization.value_or(Named<std::optional<double>>())) {
      if (used && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

// A terminal has it last, pages beside the times.
Figure figure_of_time(const std::vector<ResultAnswer>& results, Shown shown, bool is_short) {
  Column column("time", shown, "where the time goes");
  column.bars = {.most = longest_bar_seconds(results),
                 .characters = is_short ? short_bar_width : bar_width,
                 .unit = FigureUnit::seconds,
                 .limit = {},
                 .caption = "Where the time of an iteration goes: what the GPU does, or waits for."};
  if (const ResultAnswer* bound = bound_of(results)) {
    const std::string name = bound_name(*bound);
    column.bars->limit = {seconds_of(*bound), name + " " + format_seconds(seconds_of(*bound))};
    column.bars->caption += fmt::format(" No policy can be faster than the {}.", name);
  }
  if (std::ranges::any_of(results, [](const ResultAnswer& result) { return interval_of(result).has_value(); })) {
    column.bars->caption += " Whiskers: the interval.";
  }
  return {std::move(column), [](const ResultAnswer& result) -> Cell {
            if (is_bound(result)) return "";
            std::vector<ChartPart> parts = chart_parts(parts_of(result));
            if (parts.empty()) parts = {{{Ink::Kind::plain}, seconds_of(result), ""}};
            return bar_cell({std::move(parts), interval_of(result)}, format_seconds(seconds_of(result)));
          }};
}

// In the order of the columns.
std::vector<Figure> figures_of(const std::vector<ResultAnswer>& results) {
  const auto any = [&](auto has) { return std::ranges::any_of(results, has); };
  const bool sampled = any(is_sampled), generates = any(is_of_generation);
  const std::string& machine = results.front().machine;
  std::vector<Figure> figures;
  const auto add = [&](Column column, std::function<Cell(const ResultAnswer&)> cell) {
    figures.push_back({std::move(column), std::move(cell)});
  };
  // Empty of the bound, which is no run.
  const auto add_of_runs = [&](Column column, Cell (*cell)(const ResultAnswer&)) {
    add(std::move(column), [cell](const ResultAnswer& result) { return is_bound(result) ? Cell("") : cell(result); });
  };
  add("policy", [](const ResultAnswer& result) {
    return is_bound(result) ? text_cell("(" + bound_name(result) + ")", bound_name(result)) : Cell(name_of(result));
  });
  if (any([&](const ResultAnswer& result) { return result.machine != machine; })) {
    add("machine", [](const ResultAnswer& result) { return Cell(result.machine); });
  }
  add("iteration", [](const ResultAnswer& result) { return alike(seconds_cell(seconds_of(result))); });
  if (sampled) {
    add("interval", [](const ResultAnswer& result) -> Cell {
      if (!result.interval_seconds) return "";
      return (result.ties_with_best.value_or(false) ? "= " : "") + format_interval(*result.interval_seconds);
    });
  }
  if (generates) {
    add_of_runs("tokens/s", [](const ResultAnswer& result) {
      const auto& rate = result.tokens_per_second;
      return rate ? Cell(fmt::format("{:.4g}", *rate), *rate, FigureUnit::rate) : Cell("-");
    });
    add_of_runs({"TTFT", Shown::everywhere, "first token"}, [](const ResultAnswer& result) {
      return seconds_or_dash(result.generation.value_or(GenerationAnswer()).time_to_first_token_seconds);
    });
    add_of_runs({"TPOT", Shown::everywhere, "per token"}, [](const ResultAnswer& result) {
      return seconds_or_dash(result.generation.value_or(GenerationAnswer()).time_per_output_token_seconds);
    });
  }
  add("× ideal", [](const ResultAnswer& result) {
    if (!(result.ideal_seconds > 0)) return Cell("-");
    const double slowdown = seconds_of(result) / result.ideal_seconds;
    return Cell(fmt::format("{:.3f}", slowdown), slowdown, FigureUnit::ratio);
  });
  figures.push_back(figure_of_time(results, Shown::on_page, false));
  add_of_runs("hits", [](const ResultAnswer& result) {
    const double hits = result.gpu_hit_rate.value_or(HitRates()).accesses.value_or(1);
    return alike({fmt::format("{:.1f} %", 100 * hits), hits, FigureUnit::share});
  });
  add_of_runs("moved", [](const ResultAnswer& result) {
    return alike({moved_text(moved_bytes(result)), moved_bytes(result), FigureUnit::bytes});
  });
  add("waits most for", waits_cell);
  if (any([](const ResultAnswer& result) { return result.runs_with.has_value(); })) {
    add_of_runs("runs with", [](const ResultAnswer& result) {
      return Cell(result.runs_with ? std::string(to_string(*result.runs_with)) : std::string());
    });
  }
  const bool priced = any(asks_for_prices);
  if (priced || any([](const ResultAnswer& result) { return result.usd_per_million_tokens.has_value(); })) {
    const auto with_price =
        std::ranges::find_if(results, [](const ResultAnswer& result) { return result.manifest.price.has_value(); });
    const std::optional<double> tokens = tokens_per_iteration(results);
    if (with_price != results.end()) {
      add({currency_sign(with_price->manifest.price->currency) + (tokens ? "/1M tokens" : "/iteration"),
           priced ? Shown::everywhere : Shown::on_page},
          [tokens](const ResultAnswer& result) { return cost_cell(result, tokens); });
    }
  }
  figures.push_back(figure_of_time(results, Shown::on_terminal, sampled || generates));
  add({"to be believed", Shown::on_page}, [](const ResultAnswer& result) { return Cell(belief_of(result)); });

  // What only programs read.
  const auto of_files = [&](std::string name, auto value) {
    add({std::move(name), Shown::in_files}, [value](const ResultAnswer& result) { return number_cell(value(result)); });
  };
  add({"trace", Shown::in_files}, [](const ResultAnswer& result) { return Cell(result.trace); });
  of_files("compute_seconds", [](const ResultAnswer& result) { return result.compute_seconds; });
  of_files("gap_seconds", [](const ResultAnswer& result) { return result.gap_seconds; });
  for (const StallCause cause : all_causes) {
    of_files(fmt::format("stall_{}_seconds", to_string(cause)), [cause](const ResultAnswer& result) {
      return result.stall_seconds ? std::optional((*result.stall_seconds)[cause]) : std::nullopt;
    });
  }
  for (const std::string& name : resources_of(results)) {
    of_files("utilization_" + name,
             [name](const ResultAnswer& result) { return figure(result.mean_utilization, name); });
  }
  of_files("low_seconds", [](const ResultAnswer& result) {
    return result.interval_seconds ? std::optional(result.interval_seconds->first) : std::nullopt;
  });
  of_files("high_seconds", [](const ResultAnswer& result) {
    return result.interval_seconds ? std::optional(result.interval_seconds->second) : std::nullopt;
  });
  add({"changes training", Shown::in_files},
      [](const ResultAnswer& result) { return Cell(result.changes_training.value_or("")); });
  add({"validity", Shown::in_files}, [](const ResultAnswer& result) { return Cell(result.validity.value_or("")); });
  add({"why not", Shown::in_files}, [](const ResultAnswer&) { return Cell(""); });  // of what does not fit
  return figures;
}

// A row a result that `is_shown`.
DocumentTable table_of(const std::vector<ResultAnswer>& results, const std::vector<Figure>& figures,
                       const ResultAnswer* best, const std::function<bool(const ResultAnswer&)>& is_shown) {
  using Weight = DocumentTable::Row::Weight;
  DocumentTable table{"results", "", {}};
  for (const Figure& figure : figures) table.columns.push_back(figure.column);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ResultAnswer& result = results[i];
    if (!is_shown(result)) continue;
    DocumentTable::Row& row = table.rows.emplace_back();
    row.weight = &result == best ? Weight::best : is_reference(result) ? Weight::reference : Weight::normal;
    row.key = std::to_string(i);
    row.facts = facts_of(result);
    if (result.fits) {
      for (const Figure& figure : figures) row.cells.push_back(figure.cell(result));
    } else {
      row.cells = {name_of(result)};
      row.instead = "does not fit: " + std::string(result.reason);
      row.line_width = table_width;
    }
  }
  return table;
}

// How much of each tier is held and how long each link is busy, in the mean.
DocumentTable use_table(const std::vector<ResultAnswer>& results, std::vector<Figure> figures,
                        const ResultAnswer* best) {
  std::erase_if(figures, [](const Figure& figure) {
    const std::string& heading = figure.column.heading;
    return heading != "policy" && heading != "machine" && heading != "iteration" && heading != "× ideal";
  });
  for (const std::string& name : resources_of(results)) {
    Column column(name);
    column.bars = {.most = 1, .limit = {}, .caption = ""};
    figures.push_back({std::move(column), [name](const ResultAnswer& result) -> Cell {
                         const auto used = figure(result.mean_utilization, name);
                         if (!used) return "";
                         const bool link = figure(result.traffic_bytes, name).has_value();
                         Cell cell(percent(*used), *used, FigureUnit::share);
                         cell.bar = {{{{link ? Ink::Kind::link : Ink::Kind::memory},
                                       std::min(1.0, *used),
                                       link ? "share of the time busy" : "mean share of the memory held"}}};
                         return cell;
                       }});
  }
  DocumentTable table =
      table_of(results, figures, best, [](const ResultAnswer& result) { return result.fits && !is_bound(result); });
  table.name = "use";
  table.title = "Use of memory and links";
  table.note = "Of memory the mean share that is held; of links the share of the time that they are busy.";
  table.shown = Shown::on_page;
  return table;
}

// ---- Words ----------------------------------------------------------------------------------------------------------

// What is fastest, and how far from the ideal and the bound.
std::string answer_words(const std::vector<ResultAnswer>& results, const ResultAnswer* best) {
  if (results.size() == 1 && best != nullptr) {
    return fmt::format("An iteration takes {} under {}.", format_seconds(seconds_of(*best)), name_of(*best));
  }
  if (best == nullptr) {
    return best_of(results) == nullptr ? "It fits under none of the policies."
                                       : "No system runs any of the policies under which it fits.";
  }
  std::string text =
      fmt::format("{} is the fastest: {} an iteration", name_of(*best), format_seconds(seconds_of(*best)));
  if (best->ideal_seconds > 0) {
    text += fmt::format(", {:.2f} times the time with unlimited GPU memory", seconds_of(*best) / best->ideal_seconds);
  }
  if (const ResultAnswer* bound = bound_of(results)) {
    text += fmt::format("; no policy can take less than {}", format_seconds(seconds_of(*bound)));
  }
  text += ".";
  std::string ties;
  std::size_t misfits = 0;
  for (const ResultAnswer& result : results) {
    if (result.ties_with_best.value_or(false) && &result != best) ties += (ties.empty() ? "" : ", ") + result.policy;
    misfits += result.fits ? 0 : 1;
  }
  if (!ties.empty()) text += " Within the machine's uncertainty it ties with " + ties + ".";
  if (misfits != 0) text += fmt::format(" Under {} of the policies it does not fit.", misfits);
  return text;
}

// Of each policy that something is said of, the others that it is said of, too.
using PoliciesByText = std::vector<std::pair<std::string, std::vector<std::string>>>;
void add_to(PoliciesByText& list, const std::string& text, const std::string& policy) {
  auto at = std::ranges::find(list, text, &PoliciesByText::value_type::first);
  if (at == list.end()) at = list.insert(at, {text, {}});
  at->second.push_back(policy);
}

// Whole, the reasons that do not fit into their rows, each once.
std::string cut_misfits(const std::vector<ResultAnswer>& results) {
  std::size_t first_column = columns_of("(bound)");
  for (const ResultAnswer& result : results) first_column = std::max(first_column, columns_of(result.policy));
  PoliciesByText policies;
  for (const ResultAnswer& result : results) {
    const std::string reason = printable(result.reason);
    if (result.fits || first_column + 2 + columns_of("does not fit: " + reason) <= table_width) continue;
    add_to(policies, reason, result.policy);
  }
  std::string text;
  for (const auto& [reason, of] : policies) text += join(of) + ": " + reason + "\n";
  return text;
}

std::string price_line(const std::vector<ResultAnswer>& results) {
  const auto asked = std::ranges::find_if(
      results, [](const ResultAnswer& result) { return asks_for_prices(result) && result.manifest.price.has_value(); });
  if (asked == results.end()) return "";
  const ManifestPrice& price = *asked->manifest.price;
  return fmt::format("Cost at {:.4g} {}/h on demand{}.\n", price.per_hour, currency_sign(price.currency),
                     price.retrieved.empty() ? "" : ", price of " + price.retrieved);
}

// How much of the waits for the CPU's optimizer is the CPU's own computing, in lines of the table's width.
std::string cpu_wait_lines(const std::vector<ResultAnswer>& results) {
  constexpr double least_share = 0.01;  // of the iteration
  std::string text, line;
  for (const ResultAnswer& result : results) {
    const CpuWait wait = result.cpu_optimizer_wait_seconds.value_or(CpuWait());
    const double whole = wait.computing + wait.transfers;
    if (!result.fits || whole <= least_share * seconds_of(result)) continue;
    const std::string item = fmt::format("{} {:.0f} %", result.policy, 100 * wait.computing / whole);
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

// What is faster than the best that can be run, and whether training ends elsewhere under any.
std::string system_lines(const std::vector<ResultAnswer>& results, const ResultAnswer* best) {
  std::vector<std::string> faster;
  std::string text;
  for (const ResultAnswer& result : results) {
    if (!result.fits || is_reference(result)) continue;
    if (!runs_somewhere(result) && (best == nullptr || seconds_of(result) < seconds_of(*best))) {
      faster.push_back(result.policy);
    }
    const std::string changes = result.changes_training.value_or("no");
    if (changes != "no") text += fmt::format("{} changes what training ends with: {}.\n", result.policy, changes);
  }
  if (faster.empty()) return text;
  return fmt::format("No system runs such a step under {} today. {}\n", join(faster),
                     best == nullptr ? "Nothing that fits can be run."
                                     : fmt::format("Of what can be run {} is the fastest.", name_of(*best))) +
         text;
}

std::string validity_lines(const std::vector<ResultAnswer>& results) {
  PoliciesByText policies;
  for (const ResultAnswer& result : results) {
    if (!result.validity) continue;
    const bool unknown = *result.validity == "extrapolated";
    add_to(policies,
           *result.validity + (unknown ? ": no measurement of such a machine and trace says how far they are off" : ""),
           result.policy);
  }
  std::string text;
  for (const auto& [validity, of] : policies) {
    text += fmt::format("Figures{} are {}.\n", policies.size() == 1 ? "" : " of " + join(of), validity);
  }
  return text;
}

// ---- What was run ---------------------------------------------------------------------------------------------------

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? std::string() : value.dump();
}

// Options of the command that change what is asked, as one would type them.
std::string options_words(const Json& run) {
  std::vector<std::string> words;
  for (const char* option : {"gpu_memory", "cpu_memory", "gpu_allocator", "gpus", "link", "nvme", "run_ahead",
                             "iterations", "assume_gpu", "scale_bytes", "scale_time", "samples"}) {
    const Json& value = member(run, option);
    if (value.is_null() || value == "1") continue;
    std::string name = option;
    std::ranges::replace(name, '_', '-');
    words.push_back(fmt::format("--{} {}", name, text_of(value)));
  }
  for (const Json& limit : member(run, "limits")) words.push_back("--limit " + text_of(limit));
  if (member(run, "no_rescale") == true) words.emplace_back("--no-rescale");
  return fmt::format("{}", fmt::join(words, " "));
}

std::string price_words(const std::optional<ManifestPrice>& price) {
  if (!price) return "not known, so no cost is stated";
  std::string words = fmt::format("{:.4g} {} an hour", price->per_hour, price->currency);
  if (!price->source.empty()) {
    words += " (" + price->source + (price->retrieved.empty() ? "" : ", " + price->retrieved) + ")";
  }
  return words;
}

DocumentTable what_was_run(const std::vector<ResultAnswer>& results) {
  const ResultAnswer& first = results.front();
  DocumentTable table{"run", "What was run", {"", ""}, Shown::on_page};
  const auto add = [&](const char* label, const std::string& value) {
    if (!value.empty()) table.add({label, value});
  };
  const auto short_hash = [](const std::string& hash) {
    return hash.empty() ? std::string() : ", SHA-256 " + hash.substr(0, 12) + "…";
  };
  add("trace", first.trace + short_hash(first.manifest.hashes.trace.value_or("")));
  add("made by", first.manifest.run.recorded_by);
  add("machine", first.machine + short_hash(first.manifest.hashes.machine));
  add("changed by", options_words(to_json_of(first.manifest.run)));
  add("price", price_words(first.manifest.price));
  add("note", fmt::format("{}", fmt::join(first.notes, "; ")));
  add("tencache", first.manifest.version);
  std::vector<std::string> files, again;
  for (const ResultAnswer& result : results) {
    if (result.file.empty() || std::ranges::find(files, file_name(result.file)) != files.end()) continue;
    files.push_back(file_name(result.file));
    again.push_back("tencache reproduce " + files.back());
  }
  add("results from", fmt::format("{}", fmt::join(files, ", ")));
  add("to have it again", fmt::format("{}", fmt::join(again, "; ")));
  return table;
}

}  // namespace

Document document_of(const CompareAnswer& answer) {
  const std::vector<ResultAnswer>& results = answer.results;
  Document document{.kind = "compare", .title = answer.title, .blocks = {}};
  if (results.empty()) return document;
  const std::vector<Figure> figures = figures_of(results);
  const bool generates = std::ranges::any_of(results, is_of_generation);
  const bool sampled = std::ranges::any_of(results, is_sampled);
  document.add_text(answer.title + "\n\n");
  const ResultAnswer* const best = best_of(results, answer.any_policy);
  document.add_paragraph(answer_words(results, best));
  DocumentTable table = table_of(results, figures, best, [](const ResultAnswer&) { return true; });
  table.note =
      "Of one steady iteration. × ideal: against unlimited GPU memory. Hits: accesses that found their tensor in GPU "
      "memory. Moved: over all links.";
  if (generates) table.note += " First token: time to it, mean over passes; per token: time for each one after it.";
  if (sampled) {
    table.note +=
        " Interval: 90 % of samples of the machine's figures within what their sources allow; = ties with the best.";
  }
  document.add_table(std::move(table));
  std::string text = "\n█ compute  ▒ what it waits most for  ░ other stalls\n";
  if (generates) text += "TTFT: time to first token  TPOT: time per output token after it\n";
  for (const std::string& remark : answer.remarks) text += remark + "\n";
  document.add_text(text + cut_misfits(results) + price_line(results) + system_lines(results, best) +
                    cpu_wait_lines(results) + validity_lines(results));
  document.add_table(use_table(results, figures, best));
  document.add_table(what_was_run(results));
  return document;
}

namespace {

// What the order hangs on, which samples do not fit, and what would make it surer.
std::vector<std::string> what_decides(const Comparison& comparison) {
  const Intervals& intervals = comparison.intervals;
  if (intervals.samples == 0) return {};
  const auto competes = [](const ComparedPolicy& compared) {
    return compared.interval && compared.outcome.result.fits;
  };
  const auto best = std::ranges::find_if(comparison.policies, competes);
  const bool any = best != comparison.policies.end();
  const bool ties = std::ranges::any_of(comparison.policies, [](const ComparedPolicy& compared) {
    return compared.interval && compared.interval->ties_with_best;
  });
  std::vector<std::string> sentences = {
      fmt::format("Intervals hold 90 % of {} samples of {}.", intervals.samples, intervals.drawn())};
  if (ties && any) sentences.back() += fmt::format(" Rows marked = tie with {}.", best->outcome.policy);
  for (const ComparedPolicy& compared : comparison.policies) {
    if (!competes(compared) || compared.interval->misfits() == 0) continue;
    sentences.push_back(
        fmt::format("{} does not fit in {} of them.", compared.outcome.policy, compared.interval->misfits()));
  }
  const bool certain = intervals.winner_depends_on.empty();
  const Influence* decides = nullptr;
  if (!certain) decides = &intervals.winner_depends_on.front();
  if (certain && any && !best->interval->influences.empty()) decides = &best->interval->influences.front();
  if (decides == nullptr) return sentences;
  const UncertainFigure& figure = intervals.figures[decides->figure];
  sentences.push_back(fmt::format("The {} most on {}{}",
                                  certain ? "time of " + best->outcome.policy + " depends" : "winner depends",
                                  intervals.name_of(*decides),
                                  figure.of_kernels                 ? ": record a step on the GPU (docs/recording.md)."
                                  : figure.confidence == "measured" ? "."
                                                                    : ": run `tencache calibrate` on the machine."));
  return sentences;
}

// Which policy would be the fastest with links at the ends of what is known of their rates; empty: the same one.
std::string what_bounds_decide(const Comparison& comparison) {
  const ComparedPolicy *best = nullptr, *fast = nullptr, *slow = nullptr;
  TimeAtBounds best_at, fast_at, slow_at;
  std::vector<std::string> links;
  for (const ComparedPolicy& compared : comparison.policies) {
    const Outcome& outcome = compared.outcome;
    if (!outcome.result.fits || outcome.policy == "ideal") continue;
    const MachineSpec& machine = comparison.workload.machine.of_rank(outcome.rank);
    const TimeAtBounds at = time_at_bounds(machine, outcome.result, outcome.result.iteration_seconds());
    if (links.empty()) links = at.links;
    if (best == nullptr) best = &compared;  // they come by time
    if (fast == nullptr || at.fast < fast_at.fast) fast = &compared, fast_at = at;
    if (slow == nullptr || at.slow < slow_at.slow) slow = &compared, slow_at = at;
  }
  if (fast == slow && fast == best) return "";
  const auto of = [&](const ComparedPolicy* compared, double seconds) {
    return fmt::format("{} (about {})", compared->outcome.policy, format_seconds(seconds));
  };
  return fmt::format(
      "Of the rate of {} only bounds are known, and the winner depends on it: at the upper ones {}, at the "
      "lower ones {}. `tencache calibrate` on the machine decides.",
      join(links), of(fast, fast_at.fast), of(slow, slow_at.slow));
}

}  // namespace

CompareAnswer compare_answer(const Comparison& comparison, bool any_policy) {
  const Workload& workload = comparison.workload;
  const References& references = comparison.references;
  CompareAnswer answer;
  answer.any_policy = any_policy;
  answer.title = fmt::format("{} on {}", trace_title(workload), machine_title(workload));
  answer.results.push_back(bound_row_answer(workload, references));
  answer.remarks = what_decides(comparison);
  // Samples cover it.
  const std::string bounds = comparison.intervals.samples == 0 ? what_bounds_decide(comparison) : "";
  if (!bounds.empty()) answer.remarks.push_back(bounds);
  for (const std::string& note : notes_of(workload)) answer.remarks.push_back(note);
  for (const ComparedPolicy& compared : comparison.policies) {
    ResultAnswer& result = answer.results.emplace_back(result_answer(workload, compared.outcome, references));
    result.validity = compared.validity;
    if (compared.interval) add_interval(result, comparison.intervals, *compared.interval);
    if (const std::string note = deepspeed_note(workload, compared.outcome); !note.empty()) {
      answer.remarks.push_back(fmt::format("{}: {}.", compared.outcome.policy, note));
    }
  }
  const std::string note = storage_bound_note(workload, references.binding, references.bound_rank);
  if (!note.empty()) answer.remarks.push_back(note);
  return answer;
}

std::string changes_of(const ResultAnswer& result) {
  const Json run = to_json_of(result.manifest.run);
  Json changes = Json::object();
  for (const char* option : {"gpu_memory", "cpu_memory", "gpu_allocator", "limits", "gpus", "link", "nvme", "run_ahead",
                             "assume_gpu", "scale_bytes", "scale_time"}) {
    const Json& value = member(run, option);
    if (!value.is_null() && value != "1" && !(value.is_array() && value.empty())) changes[option] = value;
  }
  return changes.empty() ? "" : changes.dump();
}

std::vector<CompareAnswer> comparisons_of(std::vector<ResultAnswer> results) {
  std::vector<CompareAnswer> groups;
  std::map<std::string, std::size_t> known;
  for (ResultAnswer& result : results) {
    const auto [at, is_new] =
        known.try_emplace(result.trace + "\n" + result.machine + "\n" + changes_of(result), groups.size());
    if (is_new) {
      const ManifestRun& run = result.manifest.run;
      std::string& title = groups.emplace_back().title;
      title = file_name(result.trace) + " on " + result.machine;
      if (run.gpu_memory) title += ", GPU memory " + *run.gpu_memory;
      if (run.cpu_memory) title += ", CPU memory " + *run.cpu_memory;
      if (run.gpu_allocator) title += ", GPU allocator " + *run.gpu_allocator;
      for (const std::string& limit : run.limits.value_or(std::vector<std::string>())) title += ", " + limit;
      if (run.run_ahead) title += ", run ahead " + *run.run_ahead;
    }
    groups[at->second].results.push_back(std::move(result));
  }
  return groups;
}

}  // namespace tencache
