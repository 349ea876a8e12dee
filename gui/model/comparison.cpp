#include "gui/model/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gui/model/describe.h"

namespace tencache::gui {
namespace {

const Json& member(const Json& object, const char* key) {
  static const Json absent;
  return object.is_object() && object.contains(key) ? object[key] : absent;
}
double number(const Json& value) { return value.is_number() ? value.get<double>() : 0; }
std::string text(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }
std::optional<double> optional_number(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

ComparisonRow row_of(const Json& result, const std::string& file) {
  ComparisonRow row;
  row.result = &result;
  row.file = file;
  row.policy = text(member(result, "policy"));
  row.machine = text(member(result, "machine"));
  row.trace = text(member(result, "trace"));
  row.bound = row.policy == "bound";
  row.fits = member(result, "fits") == true;
  row.measured = member(result, "measured") == true;
  row.reason = text(member(result, "reason"));
  row.seconds = number(member(result, "iteration_seconds"));
  row.ideal_seconds = number(member(result, "ideal_seconds"));
  row.compute_seconds = number(member(result, "compute_seconds"));
  row.gap_seconds = number(member(result, "gap_seconds"));
  for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
    const std::string name(to_string(static_cast<StallCause>(cause)));
    row.stall_seconds[cause] = number(member(member(result, "stall_seconds"), name.c_str()));
  }
  const Json& interval = member(result, "interval_seconds");
  if (interval.is_array() && interval.size() == 2 && interval[0].is_number() && interval[1].is_number()) {
    row.interval = {interval[0].get<double>(), interval[1].get<double>()};
  } else if (member(interval, "low").is_number() && member(interval, "high").is_number()) {
    row.interval = {number(member(interval, "low")), number(member(interval, "high"))};
  }
  row.samples = static_cast<std::uint64_t>(number(member(result, "samples")));
  row.misfit_samples = static_cast<std::uint64_t>(number(member(result, "misfit_samples")));
  row.ties_with_best = member(result, "ties_with_best") == true;
  row.prediction_error = optional_number(member(member(result, "prediction"), "error"));
  row.hit_share = optional_number(member(member(result, "gpu_hit_rate"), "bytes"));
  for (const auto& [link, bytes] : member(result, "traffic_bytes").items()) row.moved_bytes += number(bytes);
  row.tokens_per_second = optional_number(member(result, "tokens_per_second"));
  row.usd_per_million_tokens = optional_number(member(result, "usd_per_million_tokens"));
  return row;
}

double key(const ComparisonRow& row, ComparisonColumn column) {
  switch (column) {
    case ComparisonColumn::slowdown:
      return row.slowdown();
    case ComparisonColumn::stalls:
      return row.stalled_seconds();
    case ComparisonColumn::hits:
      return row.hit_share.value_or(2);
    case ComparisonColumn::moved:
      return row.moved_bytes;
    case ComparisonColumn::price:
      return row.usd_per_million_tokens.value_or(1e300);
    default:
      return row.seconds;
  }
}

}  // namespace

double ComparisonRow::stalled_seconds() const {
  return std::accumulate(stall_seconds.begin(), stall_seconds.end(), 0.0);
}

std::string ComparisonRow::belief() const {
  if (bound) return "no policy can be faster";
  if (measured && prediction_error) return fmt::format("measured; predicted {:+.1f} %", 100 * *prediction_error);
  if (measured) return "measured";
  if (!fits) return "";
  const auto shown = [](double seconds) { return duration_text(static_cast<Nanoseconds>(seconds * 1e9)); };
  if (interval) {
    return fmt::format("{}{} to {}, extrapolated", ties_with_best ? "ties: " : "", shown(interval->first),
                       shown(interval->second));
  }
  if (misfit_samples > 0) return fmt::format("fits in {} of {} samples", samples - misfit_samples, samples);
  return "extrapolated, no interval";
}

std::vector<ComparisonRow> comparison_rows(const Session& session) {
  std::vector<ComparisonRow> rows;
  for (const DocumentPointer& document : session.documents()) {
    for (const Json& result : document->results) rows.push_back(row_of(result, document->path));
  }
  return rows;
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
  csv += ",moved_bytes,reason\n";
  for (const ComparisonRow& row : rows) {
    csv += fmt::format("{},{},{},{},{},{},{},{},{}", csv_field(row.policy), csv_field(row.machine),
                       csv_field(row.trace), row.fits ? 1 : 0, row.measured ? 1 : 0, row.seconds, row.ideal_seconds,
                       row.compute_seconds, row.gap_seconds);
    for (const double seconds : row.stall_seconds) csv += fmt::format(",{}", seconds);
    csv += fmt::format(",{},{}\n", row.moved_bytes, csv_field(row.reason));
  }
  return csv;
}

}  // namespace tencache::gui
