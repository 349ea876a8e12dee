#include "gui/model/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "answers/result_file.h"
#include "configs/validated.h"
#include "core/error.h"
#include "gui/model/describe.h"
#include "policies/registry.h"
#include "traces/import/csv_table.h"

namespace tencache::gui {
namespace {

template <typename Value, typename NumberOf>
NamedFigures figures(const std::optional<Named<Value>>& named, const NumberOf& number_of) {
  NamedFigures list;
  for (const auto& [name, value] : named.value_or(Named<Value>())) {
    if (const std::optional<double> number = number_of(value)) list.emplace_back(name, *number);
  }
  return list;
}

// Options that make another machine or trace of it.
std::string changes_of(const Json& run) {
  Json changes = Json::object();
  for (const char* option : {"gpu_memory", "cpu_memory", "limits", "assume_gpu", "scale_bytes", "scale_time"}) {
    const Json& value = member(run, option);
    if (!value.is_null() && value != "1" && !(value.is_array() && value.empty())) changes[option] = value;
  }
  return changes.empty() ? "" : changes.dump();
}

ComparisonRow row_of(const Json& result, const std::string& file) {
  ComparisonRow row;
  read_answer(result, static_cast<ResultAnswer&>(row));
  row.result = &result;
  row.file = file;
  row.bound = row.policy == bound_row;
  row.seconds = row.iteration_seconds.value_or(0);
  row.parts.compute_seconds = row.compute_seconds.value_or(0);
  row.parts.gap_seconds = row.gap_seconds.value_or(0);
  row.parts.stall_seconds = row.stall_seconds.value_or(StallSeconds());
  row.interval = row.interval_seconds;
  if (row.interval && !std::isfinite(row.interval->first + row.interval->second)) row.interval.reset();
  row.hits = row.gpu_hit_rate.value_or(HitRates());
  row.moved = figures(row.traffic_bytes, [](const Json& bytes) {
    return bytes.is_number() ? std::optional(bytes.get<double>()) : std::nullopt;
  });
  row.peaks = figures(row.peak_bytes, [](Bytes bytes) { return std::optional(static_cast<double>(bytes)); });
  row.utilization = figures(row.mean_utilization, [](const std::optional<double>& share) { return share; });
  row.altered = changes_of(to_json_of(row.manifest.run));
  return row;
}

double key(const ComparisonRow& row, ComparisonColumn column) {
  constexpr double unknown = 1e300;  // last
  switch (column) {
    case ComparisonColumn::slowdown:
      return row.slowdown();
    case ComparisonColumn::stalls:
      return row.parts.stalled_seconds();
    case ComparisonColumn::hits:
      return row.hits.bytes.value_or(2);
    case ComparisonColumn::moved:
      return row.moved_bytes();
    case ComparisonColumn::tokens:
      return row.tokens_per_second ? 1 / *row.tokens_per_second : unknown;
    case ComparisonColumn::first_token:
      return row.generation ? row.generation->time_to_first_token_seconds.value_or(unknown) : unknown;
    case ComparisonColumn::next_token:
      return row.generation ? row.generation->time_per_output_token_seconds.value_or(unknown) : unknown;
    case ComparisonColumn::price:
      return row.usd_per_million_tokens.value_or(unknown);
    default:
      return row.seconds;
  }
}

}  // namespace

double ComparisonRow::moved_bytes() const {
  return std::accumulate(moved.begin(), moved.end(), 0.0,
                         [](double sum, const auto& link) { return sum + link.second; });
}

bool is_reference(const ComparisonRow& row) { return row.bound || row.policy == "ideal"; }

const ComparisonRow* best_of(const std::vector<ComparisonRow>& rows) {
  const ComparisonRow* best = nullptr;
  for (const ComparisonRow& row : rows) {
    if (!row.fits || is_reference(row) || !(row.seconds > 0)) continue;
    if (best == nullptr || row.seconds < best->seconds) best = &row;
  }
  return best;
}

double longest_bar_seconds(const std::vector<ComparisonRow>& rows) {
  constexpr double most_times_the_best = 4, most_times_the_longest = 1.5;
  const ComparisonRow* const best = best_of(rows);
  double longest = 0, high = 0;
  for (const ComparisonRow& row : rows) {
    if (!row.fits || (best != nullptr && row.seconds > most_times_the_best * best->seconds)) continue;
    longest = std::max(longest, row.seconds);
    if (row.interval) high = std::max(high, row.interval->second);
  }
  return std::max(longest, std::min(high, most_times_the_longest * longest));
}

std::string ComparisonRow::belief() const {
  if (bound) return "no policy can be faster";
  if (is_measured()) {
    return "measured" + (prediction_error() ? fmt::format("; predicted {:+.1f} %", 100 * *prediction_error()) : "");
  }
  if (!fits) return "";
  const auto shown = [](double seconds) { return duration_text(static_cast<Nanoseconds>(seconds * 1e9)); };
  if (interval) {
    return fmt::format("{}{} to {}, {}", ties_with_best.value_or(false) ? "ties: " : "", shown(interval->first),
                       shown(interval->second), validity.substr(0, validity.find(" (")));
  }
  if (const std::uint64_t misfits = misfit_samples.value_or(0); misfits > 0) {
    return fmt::format("fits in {} of {} samples", samples.value_or(0) - misfits, samples.value_or(0));
  }
  return validity.substr(0, validity.find(" (")) + ", no interval";
}

namespace {

using PolicyOptions = std::map<std::string, std::string>;

// Of a policy of a library that is not loaded, all that is known.
PolicyRun policy_run(const std::string& policy, const PolicyOptions& options) {
  try {
    return {policy, make_policy(policy, options).options, make_policy(policy).options};
  } catch (const Error&) {
    return {policy, options, {}};
  }
}

PolicyOptions options_of(const ComparisonRow& row) {
  return {row.manifest.options.begin(), row.manifest.options.end()};
}

// Of a machine and kind of trace, changed in that way.
std::string validity_among(const std::vector<ComparisonRow>& rows, const std::string& machine,
                           const std::string& recorded_by, const std::string& policy, const PolicyOptions& options,
                           const std::string& changes) {
  if (kind_of_trace(recorded_by).empty()) return "extrapolated";
  std::optional<double> worst;
  std::size_t runs = 0;
  for (const ComparisonRow& row : rows) {
    if (!row.is_measured() || !row.prediction_error() || row.machine != machine || row.altered != changes) continue;
    if (kind_of_trace(row.manifest.run.recorded_by) != kind_of_trace(recorded_by)) continue;
    worst = std::max(worst.value_or(0), std::abs(*row.prediction_error()));
    ++runs;
  }
  if (worst) return fmt::format("validated within {} ({} measured)", percent(*worst), runs);
  if (!changes.empty()) return "extrapolated";
  static const std::vector<Validated> published = [] {
    try {
      return read_validated();
    } catch (const Error&) {  // an incomplete installation validates nothing
      return std::vector<Validated>();
    }
  }();
  return validity_text(validated_for(published, machine, recorded_by), policy_run(policy, options), recorded_by);
}

std::vector<ComparisonRow> rows_of(const std::vector<DocumentPointer>& documents) {
  std::vector<ComparisonRow> rows;
  for (const DocumentPointer& document : documents) {
    for (const Json& result : document->results) rows.push_back(row_of(result, document->path));
  }
  return rows;
}

}  // namespace

std::string validity_of(const Session& session, const std::string& machine, const std::string& recorded_by,
                        const std::string& policy, const std::map<std::string, std::string>& options) {
  return validity_among(rows_of(session.documents().all()), machine, recorded_by, policy, options, "");
}

std::vector<ComparisonRow> comparison_rows(const Session& session) {
  return comparison_rows(session.documents().all());
}

std::vector<ComparisonRow> comparison_rows(const std::vector<DocumentPointer>& documents) {
  std::vector<ComparisonRow> rows = rows_of(documents);
  std::map<std::pair<std::array<std::string, 4>, PolicyOptions>, std::string> known;  // the same for most rows
  for (ComparisonRow& row : rows) {
    const PolicyOptions options = options_of(row);
    const auto [entry, is_new] =
        known.try_emplace({{row.machine, row.manifest.run.recorded_by, row.policy, row.altered}, options});
    if (is_new)
      entry->second = validity_among(rows, row.machine, row.manifest.run.recorded_by, row.policy, options, row.altered);
    row.validity = row.rescaled.is_object() ? "extrapolated" : entry->second;
  }
  return rows;
}

std::vector<std::string> resources_of(const std::vector<ComparisonRow>& rows) {
  std::vector<std::string> names;
  for (const ComparisonRow& row : rows) {
    for (const auto& [name, value] : row.utilization) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::optional<double> figure(const NamedFigures& figures, const std::string& name) {
  const auto found = std::ranges::find(figures, name, &NamedFigures::value_type::first);
  return found == figures.end() ? std::nullopt : std::optional(found->second);
}

void sort_rows(std::vector<ComparisonRow>& rows, ComparisonColumn column, bool ascending) {
  std::ranges::stable_sort(rows, [&](const ComparisonRow& a, const ComparisonRow& b) {
    if (a.fits != b.fits) return a.fits;
    const ComparisonRow& first = ascending ? a : b;
    const ComparisonRow& second = ascending ? b : a;
    if (column == ComparisonColumn::policy) return first.policy < second.policy;
    if (column == ComparisonColumn::machine) return first.machine < second.machine;
    return key(first, column) < key(second, column);
  });
}

std::string comparison_csv(const std::vector<ComparisonRow>& rows) {
  std::string csv = "policy,machine,trace,fits,measured,iteration_seconds,ideal_seconds,compute_seconds,gap_seconds";
  for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
    csv += fmt::format(",stall_{}_seconds", to_string(static_cast<StallCause>(cause)));
  }
  const std::vector<std::string> resources = resources_of(rows);
  for (const std::string& name : resources) csv += fmt::format(",utilization_{}", csv_field(name));
  csv +=
      ",moved_bytes,hit_share_of_bytes,tokens_per_second,time_to_first_token_seconds,time_per_output_token_seconds,low_"
      "seconds,high_seconds,ties_with_best,prediction_error,validity,reason\n";
  // What is not known, or does not fit, has no figure: 0 would be the fastest.
  const auto add = [&csv](bool known, double value) { csv += known ? fmt::format(",{}", value) : std::string(","); };
  for (const ComparisonRow& row : rows) {
    csv += fmt::format("{},{},{},{},{}", csv_field(row.policy), csv_field(row.machine), csv_field(row.trace),
                       row.fits ? 1 : 0, row.is_measured() ? 1 : 0);
    add(row.fits, row.seconds);
    add(row.ideal_seconds > 0, row.ideal_seconds);
    add(row.fits, row.parts.compute_seconds);
    add(row.fits, row.parts.gap_seconds);
    for (const StallCause cause : all_causes) add(row.fits, row.parts.stall_seconds[cause]);
    for (const std::string& name : resources) {
      const std::optional<double> used = figure(row.utilization, name);
      add(used.has_value(), used.value_or(0));
    }
    add(row.fits, row.moved_bytes());
    add(row.hits.bytes.has_value(), row.hits.bytes.value_or(0));
    const GenerationAnswer generation = row.generation.value_or(GenerationAnswer());
    for (const std::optional<double>& figure :
         {row.tokens_per_second, generation.time_to_first_token_seconds, generation.time_per_output_token_seconds}) {
      add(figure.has_value(), figure.value_or(0));
    }
    const auto [low, high] = row.interval.value_or(std::pair(0.0, 0.0));
    add(row.interval.has_value(), low);
    add(row.interval.has_value(), high);
    csv += row.ties_with_best.value_or(false) ? ",1" : ",0";
    add(row.prediction_error().has_value(), row.prediction_error().value_or(0));
    csv += fmt::format(",{},{}\n", csv_field(row.fits ? row.validity : ""), csv_field(row.reason));
  }
  return csv;
}

}  // namespace tencache::gui
