// A sweep's combinations, cost against time: the front of those that nothing beats in both.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "answers/document.h"
#include "studies/sweep/sweep_row.h"

namespace tencache {

struct CostFilter {
  std::string workload;  // one at a time: others take other times
  bool spot = false;     // its prices instead of those on demand
  std::set<std::string> hidden_machines, hidden_policies;
  bool shows(const SweepRow& row) const;  // whether it fits and has a price apart
};

// What is paid: for a million tokens, or for an iteration where the tokens are not known.
enum class CostUnit : std::uint8_t { million_tokens, iteration };

struct CostPoint {
  const SweepRow* row = nullptr;
  double seconds = 0, usd = 0;
  bool on_front = false;   // of what the filter shows
  bool reference = false;  // `ideal`: no machine has it, so that it is on no front
};

struct CostChart {
  CostFilter filter;
  std::vector<std::string> machines;  // of the workload, hidden ones too: the order of their colours
  CostUnit unit = CostUnit::million_tokens;
  std::vector<CostPoint> points;  // by time
  std::size_t misfits = 0, without_price = 0;
  std::string rest() const;  // "4 combinations; 1 do not fit"
};
// Refers to the rows, which outlive it.
CostChart cost_chart(const std::vector<SweepRow>& rows, const CostFilter& filter);
// A scatter of the points, and a table of the front, and of the row of the key `marked`.
Document document_of(const CostChart& chart, const std::string& marked = "");

// In order of appearance.
std::vector<std::string> workloads_of(const std::vector<SweepRow>& rows);
std::vector<std::string> machines_of(const std::vector<SweepRow>& rows, const std::string& workload);
std::vector<std::string> policies_of(const std::vector<SweepRow>& rows, const std::string& workload);

}  // namespace tencache
