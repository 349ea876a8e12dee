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

constexpr double rounding_seconds = 1e-6;  // differences of simulated times that are less say nothing
constexpr double most_times_the_best = 3;  // what is longer is cut off: it would flatten all others

// What each command prints is told by members that only it has.
struct Kind {
  const char* name;
  std::vector<const char*> members;
};
const std::vector<Kind> kinds = {{"explain", {"causes", "in_turn"}},
                                 {"fit", {"demand", "policies", "staging"}},
                                 {"tune", {"knobs", "flatness", "best"}},
                                 {"endurance", {"write_amplification", "tiers"}},
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
std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }
std::string bytes_text(double bytes) { return format_bytes(static_cast<Bytes>(bytes)); }
double noticed(double seconds) { return seconds < rounding_seconds ? 0 : seconds; }
std::string share_text(double seconds, double of) {
  return seconds_text(seconds) + (of > 0 ? ", " + percent(seconds / of) : std::string());
}
std::string off_text(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

const Ink compute{Ink::Kind::compute}, host{Ink::Kind::host}, plain{Ink::Kind::plain}, marked{Ink::Kind::marked},
    pale{Ink::Kind::pale};

std::optional<StallCause> cause_named(std::string_view name) {
  for (std::size_t i = 0; i < stall_cause_count; ++i) {
    if (to_string(static_cast<StallCause>(i)) == name) return static_cast<StallCause>(i);
  }
  return std::nullopt;
}

// ---- explain --------------------------------------------------------------------------------------------------------

void add_stalls(ChartBar& bar, const Json& stall_seconds) {
  for (std::size_t i = 0; i < stall_cause_count; ++i) {
    const auto cause = static_cast<StallCause>(i);
    const double seconds = number(stall_seconds, std::string(to_string(cause)).c_str());
    if (seconds > 0) bar.parts.push_back({{Ink::Kind::stall, i}, seconds, std::string("waits for ") + label_of(cause)});
  }
}

ChartBar time_bar(const std::string& label, const Json& run) {
  ChartBar bar;
  bar.label = label;
  bar.parts = {{compute, number(run, "compute_seconds"), "compute"}, {host, number(run, "gap_seconds"), "host time"}};
  add_stalls(bar, member(run, "stall_seconds"));
  const double seconds = number(run, "iteration_seconds");
  bar.text = yes(run, "fits") ? seconds_text(seconds) : "does not fit";
  bar.facts = {{"", bar.label}, {"takes", bar.text}};
  for (const ChartPart& part : bar.parts) {
    if (part.value > 0) bar.facts.emplace_back(part.label, share_text(part.value, seconds));
  }
  return bar;
}

ChartBar cause_bar(const Json& cause) {
  ChartBar bar;
  bar.group = "each stall: what goes with its cause, waits all the same, or moves elsewhere";
  const std::string name = text(cause, "cause");
  const std::optional<StallCause> known = cause_named(name);
  bar.label = known ? label_of(*known) : name;
  const std::size_t which = known ? static_cast<std::size_t>(*known) : 0;
  const std::string waits = "waits for " + bar.label, attributed = seconds_text(number(cause, "attributed_seconds"));
  bar.facts = {{"", bar.label}, {"tried", text(cause, "change")}, {"attributed", attributed}};
  const Json& without = member(cause, "without");
  if (!yes(without, "fits") && !text(without, "reason").empty()) {  // nothing is known of what it would gain
    bar.parts = {{{Ink::Kind::stall, which}, number(cause, "attributed_seconds"), waits}};
    bar.text = attributed + ", not confirmed";
    bar.facts.emplace_back("no such run", text(without, "reason"));
    return bar;
  }
  const Json& moved_json = member(cause, "moved_seconds");
  const double moved = moved_json.is_number() ? moved_json.get<double>() : 0;
  const std::string confirmed = seconds_text(number(cause, "confirmed_seconds"));
  bar.parts = {{{Ink::Kind::stall, which}, noticed(number(cause, "confirmed_seconds")), waits},
               {{Ink::Kind::stall, which, true}, noticed(number(cause, "still_seconds")), waits + " all the same"},
               {pale, noticed(moved), "moves elsewhere"}};
  bar.text = fmt::format("{}, {} confirmed", attributed, confirmed);
  bar.facts.insert(bar.facts.end(), {{"confirmed", confirmed},
                                     {"still", seconds_text(number(cause, "still_seconds"))},
                                     {"moved", (moved < 0 ? "-" : "") + seconds_text(std::abs(moved))},
                                     {"without it", seconds_text(number(without, "iteration_seconds"))}});
  return bar;
}

BarChart explain_chart(const Json& json) {
  BarChart chart;
  chart.title = fmt::format("Where the time goes: {} on {}, {}", text(json, "policy"), text(json, "machine"),
                            file_name(text(json, "trace")));
  chart.bars.push_back(time_bar("iteration", member(json, "run")));
  ChartBar ideal;
  ideal.label = "ideal";
  ideal.parts = {{plain, number(json, "ideal_seconds"), "nothing moves"}};
  ideal.text = seconds_text(number(json, "ideal_seconds"));
  chart.bars.push_back(std::move(ideal));
  for (const Json& cause : member(json, "causes")) chart.bars.push_back(cause_bar(cause));
  for (const Json& step : member(member(json, "in_turn"), "steps")) {
    ChartBar bar;
    bar.group = "an iteration, the causes taken away one after the other";
    const std::optional<StallCause> known = cause_named(text(step, "cause"));
    const bool first = bar.group != chart.bars.back().group;
    bar.label = std::string(first ? "without " : "and ") + (known ? label_of(*known) : text(step, "cause").c_str());
    bar.parts = {{plain, number(step, "iteration_seconds"), ""}};
    bar.text = seconds_text(number(step, "iteration_seconds"));
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

// ---- fit ------------------------------------------------------------------------------------------------------------

ChartBar demand_bar(const std::string& group, const std::string& label, const Json& demand) {
  ChartBar bar;
  bar.group = group;
  bar.label = label;
  for (int i = 0; i < role_count; ++i) {
    const auto role = static_cast<Role>(i);
    const double bytes = number(member(demand, "by_role"), std::string(to_string(role)).c_str());
    if (bytes > 0) bar.parts.push_back({{Ink::Kind::role, static_cast<std::size_t>(i)}, bytes, label_of(role)});
  }
  bar.text = bytes_text(number(demand, "bytes"));
  if (!text(demand, "name").empty()) bar.text += " at " + text(demand, "name");
  return bar;
}

BarChart fit_chart(const Json& json) {
  BarChart chart;
  chart.title = fmt::format("{} on {}: {}", file_name(text(json, "trace")), text(json, "machine"),
                            yes(json, "fits") ? "fits" : "does not fit");
  chart.mark_label = "capacity";
  const Json& ranks = member(json, "demand");
  std::vector<std::pair<std::string, double>> capacities;
  for (const Json& rank : ranks) {
    const std::string of = ranks.size() > 1 ? fmt::format("rank {:.0f}: ", number(rank, "rank")) : "";
    chart.bars.push_back(demand_bar(of + "what the step needs", "alive at most", member(rank, "peak")));
    chart.bars.push_back(demand_bar(of + "what the step needs", "persistent", member(rank, "persistent")));
    chart.bars.push_back(demand_bar(of + "what the step needs", "largest GPU op", member(rank, "largest_gpu_op")));
    for (const Json& tier : member(rank, "tiers")) {
      ChartBar bar;
      bar.group = of + "tiers filled from the fastest on";
      bar.label = text(tier, "name");
      const double held = number(tier, "held_bytes"), capacity = number(tier, "capacity_bytes");
      bar.parts = {{plain, held, ""}};
      bar.between = {capacity, capacity};
      bar.text = fmt::format("{} of {}", bytes_text(held), bytes_text(capacity));
      if (number(tier, "left_over_bytes") > 0) bar.text += ", " + bytes_text(number(tier, "left_over_bytes")) + " left";
      if (std::ranges::find(capacities, bar.label, &std::pair<std::string, double>::first) == capacities.end()) {
        capacities.emplace_back(bar.label, capacity);
      }
      chart.bars.push_back(std::move(bar));
    }
  }
  for (const Json& policy : member(json, "policies")) {
    const std::string group = "peaks under " + text(policy, "policy") + (yes(policy, "fits") ? "" : ": does not fit");
    for (const Json& tier : member(policy, "tiers")) {
      ChartBar bar;
      bar.group = group;
      bar.label = text(tier, "name");
      const double steady = number(tier, "steady_peak_bytes"), startup = number(tier, "startup_peak_bytes");
      bar.parts = {{plain, steady, ""}, {pale, std::max(0.0, startup - steady), "more at start-up"}};
      bar.text = bytes_text(std::max(steady, startup));
      const auto capacity = std::ranges::find(capacities, bar.label, &std::pair<std::string, double>::first);
      if (capacity != capacities.end()) bar.between = {capacity->second, capacity->second};
      chart.bars.push_back(std::move(bar));
    }
  }
  return chart;
}

// ---- tune -----------------------------------------------------------------------------------------------------------

void add_tuned_workloads(const Json& json, BarChart& chart) {
  const Json& start_seconds = member(member(json, "start"), "iteration_seconds");
  for (std::size_t w = 0; w < member(json, "workloads").size(); ++w) {
    const Json& workload = json["workloads"][w];
    const double best = number(workload, "iteration_seconds");
    if (best <= 0) continue;
    const auto add = [&](const char* label, double seconds, bool is_best) {
      ChartBar bar;
      bar.group = file_name(text(workload, "trace"));
      bar.label = label;
      bar.marked = is_best;
      bar.parts = {{is_best ? marked : plain, seconds / best, is_best ? "the best found" : ""}};
      bar.text =
          seconds <= 0 ? "does not fit" : seconds_text(seconds) + (is_best ? "" : ", " + off_text(seconds / best));
      chart.bars.push_back(std::move(bar));
    };
    add("best", best, true);
    add("defaults", number(workload, "defaults_seconds"), false);
    if (w < start_seconds.size() && start_seconds[w].is_number()) add("start", start_seconds[w].get<double>(), false);
    add("ideal", number(workload, "ideal_seconds"), false);
  }
}

BarChart tune_chart(const Json& json) {
  BarChart chart;
  chart.title = fmt::format("Tuning of {} on {}: {:.0f} of {:.3g} combinations simulated", text(json, "policy"),
                            text(json, "machine"), number(json, "candidates"), number(json, "combinations"));
  add_tuned_workloads(json, chart);
  for (const Json& knob : member(json, "flatness")) {
    for (const Json& step : member(knob, "steps")) {
      if (!yes(step, "simulated")) continue;
      ChartBar bar;
      bar.group = "one knob of the best moved";
      bar.label = fmt::format("{} {} → {}", text(knob, "knob"), text(knob, "value"), text(step, "value"));
      const double relative = number(step, "relative_time");
      if (yes(step, "fits")) {
        bar.parts = {{plain, std::min(1.0, relative), ""}, {pale, std::max(0.0, relative - 1), "slower than the best"}};
        bar.text = yes(step, "ties") ? "ties" : off_text(relative);
      } else {
        bar.text = "does not fit";
      }
      chart.bars.push_back(std::move(bar));
    }
  }
  chart.most = most_times_the_best;
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
    if (document.kind == "explain") chart = explain_chart(json);
    if (document.kind == "fit") chart = fit_chart(json);
    if (document.kind == "tune") chart = tune_chart(json);
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
