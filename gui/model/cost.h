// Cost against time: the rows of a sweep's results (SQLite, or --json), with filters and the Pareto front of what
// remains.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "answers/json.h"
#include "gui/model/describe.h"
#include "gui/model/table.h"
#include "studies/sweep/sweep_row.h"

namespace tencache::gui {

// Whether a JSON document is what `tencache sweep --json` printed, or a table what --csv wrote; its rows. Throw Error
// that names the file.
bool is_sweep(const Json& document);
bool is_sweep(const DataTable& table);
std::vector<SweepRow> read_sweep_rows(const Json& document, const std::string& file);
std::vector<SweepRow> read_sweep_rows(const DataTable& table, const std::string& file);

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
  CostUnit unit = CostUnit::million_tokens;
  std::vector<CostPoint> points;  // by time
  std::size_t misfits = 0, without_price = 0;
};
CostChart cost_chart(const std::vector<SweepRow>& rows, const CostFilter& filter);

// In order of appearance.
std::vector<std::string> workloads_of(const std::vector<SweepRow>& rows);
std::vector<std::string> machines_of(const std::vector<SweepRow>& rows, const std::string& workload);
std::vector<std::string> policies_of(const std::vector<SweepRow>& rows, const std::string& workload);

Facts describe_row(const SweepRow& row);
const char* label_of(CostUnit unit);

}  // namespace tencache::gui
