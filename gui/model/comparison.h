// Results of all files that are open, as rows to compare.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "gui/model/session.h"

namespace tencache::gui {

struct ComparisonRow {
  std::string policy, machine, trace;
  std::string file;
  const Json* result = nullptr;  // of a document of the session
  bool fits = false, measured = false, bound = false;
  std::string reason;  // why it does not fit
  double seconds = 0, ideal_seconds = 0;
  // Their sum is the iteration; 0 where the result does not say (the bound).
  double compute_seconds = 0, gap_seconds = 0;
  std::array<double, stall_cause_count> stall_seconds{};
  std::optional<std::pair<double, double>> interval;
  bool ties_with_best = false;
  std::uint64_t misfit_samples = 0, samples = 0;
  std::optional<double> prediction_error;  // of a measured row, of the iteration
  std::optional<double> hit_share;         // of bytes
  double moved_bytes = 0;                  // over all links, an iteration
  std::optional<double> tokens_per_second, usd_per_million_tokens;

  double stalled_seconds() const;
  double slowdown() const { return ideal_seconds > 0 ? seconds / ideal_seconds : 0; }
  // What a reader may believe of it: an interval, a measurement, or neither.
  std::string belief() const;
};

enum class ComparisonColumn { policy, machine, seconds, slowdown, stalls, hits, moved, price };

// Misfits last, whatever the order.
std::vector<ComparisonRow> comparison_rows(const Session& session);
void sort_rows(std::vector<ComparisonRow>& rows, ComparisonColumn column, bool ascending);
std::string comparison_csv(const std::vector<ComparisonRow>& rows);

}  // namespace tencache::gui
