// Time against a figure of the machine for several policies: what `tencache sensitivity --json` wrote, or what a slider
// asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "answers/sensitivity.h"
#include "gui/model/simulator.h"
#include "gui/model/table.h"

namespace tencache::gui {

// Of a CSV file only what it holds is known: no machine, tolerance or state of a knee.
using SensitivityPointer = std::shared_ptr<const SensitivityAnswer>;

// Whether a JSON document or a table (`--csv`) is one. Throw Error, which names the file, where it is one and damaged.
bool is_sensitivity(const Json& document);
bool is_sensitivity(const DataTable& table);
SensitivityAnswer read_sensitivity(const Json& document, const std::string& file);
SensitivityAnswer read_sensitivity(const DataTable& table, const std::string& file);
// Of the document's tables: what is varied is a "value" in its unit.
void set_units(DataTables& tables, const SensitivityAnswer& plot);

// The name of the figure behind a what-if knob (studies/machine_parameter.h); empty: there is none.
std::string parameter_of_knob(const Workload& workload, const std::string& knob);
// The scenario with this figure between two values, its own policy and others on the scenario's machine. Takes as many
// simulations as `tencache sensitivity`, on all cores. Throws Error.
SensitivityAnswer plot_sensitivity(const Workload& workload, const std::string& parameter, double from, double to,
                                   const std::vector<std::string>& policies);

}  // namespace tencache::gui
