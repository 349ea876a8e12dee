// Results of all files that are open, as rows to compare.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answers/result.h"
#include "gui/model/session.h"

namespace tencache::gui {

// By tier or link, in the machine's order.
using NamedFigures = std::vector<std::pair<std::string, double>>;

struct ComparisonRow : ResultAnswer {
  std::string file;
  const Json* result = nullptr;  // of a document of the session
  bool bound = false;
  double seconds = 0;
  TimeParts parts;                                    // 0 where the result does not say (the bound)
  std::optional<std::pair<double, double>> interval;  // of two finite ends
  std::string altered;   // what options changed of machine and trace, as JSON; empty: nothing
  std::string validity;  // of a simulated row: "validated within 25.0 % (…)", or "extrapolated"
  HitRates hits;
  NamedFigures moved;        // of each link, bytes of an iteration
  NamedFigures peaks;        // of each tier, bytes
  NamedFigures utilization;  // of each tier (mean share held) and link (share of the time busy)

  bool is_measured() const { return measured.value_or(false); }
  // Of a measured row, of the iteration.
  std::optional<double> prediction_error() const { return prediction ? prediction->error : std::nullopt; }
  double moved_bytes() const;  // over all links
  double slowdown() const { return ideal_seconds > 0 ? seconds / ideal_seconds : 0; }
  // What a reader may believe of it: an interval, a measurement, or neither.
  std::string belief() const;
};
// The lower bound or the ideal, which no policy competes with.
bool is_reference(const ComparisonRow& row);
// The fastest that fits, references apart; null: none does.
const ComparisonRow* best_of(const std::vector<ComparisonRow>& rows);
// What bars are drawn up to: the slowest row, but for those so slow that they would flatten the others, as `compare`
// has it; and ends of intervals, as far as they would not either.
double longest_bar_seconds(const std::vector<ComparisonRow>& rows);

enum class ComparisonColumn {
  policy,
  machine,
  seconds,
  slowdown,
  stalls,
  hits,
  moved,
  price,
  tokens,       // a second; the most first
  first_token,  // of text generations: time to it
  next_token    // time per token after it
};

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
