// Time against a figure of the machine for several policies: what `tencache sensitivity --json` wrote, or what a slider
// asked for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "answers/json.h"
#include "gui/model/simulator.h"
#include "gui/model/table.h"
#include "studies/sensitivity.h"

namespace tencache::gui {

struct SensitivityCurve {
  std::string policy;
  std::optional<double> second_value;
  bool bound = false;  // the lower bound, of all policies
  std::vector<SensitivityPoint> points;
  std::optional<double> unlimited_seconds;
  std::optional<SensitivityPoint> knee;
  std::string knee_text;  // the knee, or why there is none
};

struct SensitivityPlot {
  struct Axis {
    std::string name;
    ParameterUnit unit = ParameterUnit::factor;
    double machine_value = 0;  // 0: not known
    std::string text(double value) const;
  };
  std::string trace, machine;  // of a CSV file: the file, and empty
  Axis axis;
  std::optional<Axis> second;
  double tolerance = 0;  // of the knees; 0: not known
  std::vector<SensitivityCurve> curves;

  std::string title() const;  // "pcie of demo-small-gpu, gpt2-small.trace.jsonl.zst"
  std::string knee_meaning() const;
  std::string label(const SensitivityCurve& curve) const;
};

// Whether a JSON document or a table (`--csv`) is one. Throw Error, which names the file, where it is one and damaged.
bool is_sensitivity(const Json& document);
bool is_sensitivity(const DataTable& table);
SensitivityPlot read_sensitivity(const Json& document, const std::string& file);
SensitivityPlot read_sensitivity(const DataTable& table, const std::string& file);
// Of the document's tables: what is varied is a "value" in its unit.
void set_units(DataTables& tables, const SensitivityPlot& plot);

// The name of the figure behind a what-if knob (studies/machine_parameter.h); empty: there is none.
std::string parameter_of_knob(const Workload& workload, const std::string& knob);
// The scenario with this figure between two values, its own policy and others on the scenario's machine. Takes as many
// simulations as `tencache sensitivity`, on all cores. Throws Error.
SensitivityPlot plot_sensitivity(const Workload& workload, const std::string& parameter, double from, double to,
                                 const std::vector<std::string>& policies);

// As `tencache sensitivity --csv` writes it.
std::string sensitivity_csv(const SensitivityPlot& plot);

}  // namespace tencache::gui
