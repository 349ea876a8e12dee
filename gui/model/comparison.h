// Results of all files that are open, as rows to compare.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "answers/result.h"
#include "core/metrics.h"
#include "core/timeline.h"
#include "gui/model/session.h"

namespace tencache::gui {

// Of an iteration; their sum is its time.
struct TimeParts {
  double compute_seconds = 0, gap_seconds = 0;
  std::array<double, stall_cause_count> stall_seconds{};
  double stalled_seconds() const;
};
TimeParts parts_of(const RunResult& result);

// By tier or link, in the machine's order.
using NamedFigures = std::vector<std::pair<std::string, double>>;

struct ComparisonRow : ResultHead {
  std::string file;
  const Json* result = nullptr;  // of a document of the session
  bool measured = false, bound = false;
  double seconds = 0, ideal_seconds = 0;
  TimeParts parts;                                    // 0 where the result does not say (the bound)
  std::optional<std::pair<double, double>> interval;  // of two finite ends
  ResultSamples sampled;
  std::optional<double> prediction_error;  // of a measured row, of the iteration
  Manifest manifest;
  std::string changes;    // of machine and trace by options, as JSON; empty: none
  bool rescaled = false;  // durations, from another GPU
  std::string validity;   // of a simulated row: "validated within 25.0 % (…)", or "extrapolated"
  HitRates hits;
  NamedFigures moved;        // of each link, bytes of an iteration
  NamedFigures peaks;        // of each tier, bytes
  NamedFigures utilization;  // of each tier (mean share held) and link (share of the time busy)
  std::optional<double> tokens_per_second, usd_per_million_tokens;

  bool ties_with_best() const { return sampled.ties_with_best.value_or(false); }
  double moved_bytes() const;  // over all links
  double slowdown() const { return ideal_seconds > 0 ? seconds / ideal_seconds : 0; }
  // What a reader may believe of it: an interval, a measurement, or neither.
  std::string belief() const;
};

enum class ComparisonColumn { policy, machine, seconds, slowdown, stalls, hits, moved, price };

// How far simulations of a policy on this machine and kind of trace may be believed: "validated within 43.7 % (…)"
// where a measurement among the open results (with the same changes) or published experiments (configs/validated.h) say
// so, else "extrapolated", with what was checked there. `options`: the policy's that are not at their default, at
// least.
std::string validity_of(const Session& session, const std::string& machine, const std::string& recorded_by,
                        const std::string& policy, const std::map<std::string, std::string>& options);

// Misfits last, whatever the order.
std::vector<ComparisonRow> comparison_rows(const Session& session);
std::vector<ComparisonRow> comparison_rows(const std::vector<DocumentPointer>& documents);
void sort_rows(std::vector<ComparisonRow>& rows, ComparisonColumn column, bool ascending);
// Tiers and links that any row has, and what a row says of one.
std::vector<std::string> resources_of(const std::vector<ComparisonRow>& rows);
std::optional<double> figure(const NamedFigures& figures, const std::string& name);
std::string comparison_csv(const std::vector<ComparisonRow>& rows);

}  // namespace tencache::gui
