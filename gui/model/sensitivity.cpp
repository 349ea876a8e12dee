#include "gui/model/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"

namespace tencache::gui {
namespace {

constexpr std::size_t values_of_a_plot = 13;

// "pcie_bytes_per_second" of a CSV file. Nothing where no unit is in the name.
std::optional<SensitivityParameter> parameter_of_column(std::string_view name) {
  std::optional<SensitivityParameter> found;
  described::for_each_value<ParameterUnit>([&](ParameterUnit unit, const std::string& unit_name) {
    const std::string ending = "_" + unit_name;
    if (found || !name.ends_with(ending) || name.size() == ending.size()) return;
    found = {std::string(name.substr(0, name.size() - ending.size())), unit, 0, {}};
  });
  return found;
}

void check(const SensitivityAnswer& plot) {
  if (plot.parameters.empty()) throw Error("no parameter is varied");
  for (const SensitivityLine& line : plot.lines) {
    for (const SensitivityPoint& point : line.points) {
      if (!std::isfinite(point.value) || (point.fits && !std::isfinite(point.iteration_seconds))) {
        throw Error("a point of " + line.policy + " has no value or no time");
      }
    }
  }
}

}  // namespace

bool is_sensitivity(const Json& document) {
  return document.is_object() && document.contains("parameters") && document.contains("lines");
}

SensitivityAnswer read_sensitivity(const Json& document, const std::string& file) {
  try {
    SensitivityAnswer plot;
    read_answer(document, plot);
    check(plot);
    return plot;
  } catch (const std::exception& error) {
    throw Error(file, 0, std::string("is no sensitivity analysis of tencache, or damaged: ") + error.what());
  }
}

// The columns `kind` and `policy`, one or two figures of the machine, and what came of them.
bool is_sensitivity(const DataTable& table) {
  return table.column_count() >= 6 && table.column_name(0) == "kind" && table.column_name(1) == "policy" &&
         parameter_of_column(table.column_name(2)) && table.find_column("fits") != DataTable::unsorted &&
         table.find_column("iteration_seconds") != DataTable::unsorted;
}

SensitivityAnswer read_sensitivity(const DataTable& table, const std::string& file) {
  SensitivityAnswer plot;
  plot.trace = file;
  plot.parameters.push_back(parameter_of_column(table.column_name(2)).value());
  if (auto second = parameter_of_column(table.column_name(3))) plot.parameters.push_back(*std::move(second));
  const std::size_t fits = table.find_column("fits"), seconds = table.find_column("iteration_seconds"),
                    reason = table.find_column("reason");
  for (std::size_t row = 0; row < table.row_count(); ++row) {
    const std::string kind = table.raw(row, 0), policy = table.raw(row, 1);
    std::optional<double> second;
    if (plot.second() != nullptr) second = table.number(row, 3);
    SensitivityPoint point;
    point.value = table.number(row, 2);
    point.fits = table.raw(row, fits) == "true";
    if (point.fits) point.iteration_seconds = table.number(row, seconds);
    if (!point.fits && reason != DataTable::unsorted) point.reason = table.raw(row, reason);
    const bool placed = kind == "unlimited" || std::isfinite(point.value);
    const bool timed = !point.fits || std::isfinite(point.iteration_seconds);
    if (policy.empty() || !placed || !timed || (second && !std::isfinite(*second))) {
      throw Error(file, row + 2, "is no row of a sensitivity analysis; was the file copied whole?");
    }
    auto line = std::ranges::find_if(plot.lines, [&](const SensitivityLine& known) {
      return known.policy == policy && known.second_value == second;
    });
    if (line == plot.lines.end()) {
      line = plot.lines.emplace(line);
      line->policy = policy;
      line->second_value = second;
    }
    if (kind == "point") {
      line->points.push_back(point);
    } else if (kind == "unlimited") {
      line->unlimited = point;
    } else if (kind == "knee") {
      line->knee = point;
      line->knee_state = KneeState::found;
    } else {
      throw Error(file, row + 2, "'" + kind + "' is neither point, unlimited nor knee");
    }
  }
  return plot;
}

void set_units(DataTables& tables, const SensitivityAnswer& plot) {
  for (DataTable& table : tables) {
    const auto set = [&](const std::string& column, const SensitivityParameter& parameter) {
      if (table.find_column(column) != DataTable::unsorted) {
        table.set_unit(column, unit_named(name_of(parameter.unit)));
      }
    };
    if (!table.name().starts_with("lines")) continue;
    for (const char* column : {"value", "knee.value"}) set(column, plot.axis());
    if (plot.second() != nullptr) set("second_value", *plot.second());
  }
}

std::string parameter_of_knob(const Workload& workload, const std::string& knob) {
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"gpu-memory", "gpu_memory"}, {"cpu-memory", "cpu_memory"}, {"pcie", "pcie"}, {"nvme", "nvme"}, {"dram", "dram"},
      {"gpu-speed", "gpu_speed"}};
  const auto found = std::ranges::find(names, knob, &std::pair<std::string, std::string>::first);
  if (found == names.end()) return "";
  const std::vector<MachineParameter> known = parameters_of(workload.machine);
  return std::ranges::find(known, found->second, &MachineParameter::name) == known.end() ? "" : found->second;
}

SensitivityAnswer plot_sensitivity(const Workload& wanted, const std::string& parameter, double from, double to,
                                   const std::vector<std::string>& policies) {
  const Workload workload = with_changed_trace(wanted);
  SensitivityRequest request;
  request.trace = workload.trace.get();
  request.machine = &workload.machine;
  request.limits = limits_of(workload.scenario.iterations);
  request.policies = policies;
  request.policies.emplace_back(bound_line);
  request.settings[workload.scenario.policy.name] = workload.scenario.policy.settings;
  request.axes = {{parameter_named(workload.machine, parameter), logarithmic_values(from, to, values_of_a_plot)}};
  SensitivityAnswer plot = sensitivity_answer(request, analyse_sensitivity(request));
  plot.trace = trace_name(workload);
  return plot;
}

}  // namespace tencache::gui
