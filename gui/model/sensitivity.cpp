#include "gui/model/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "core/error.h"
#include "gui/model/describe.h"
#include "traces/import/csv_table.h"

namespace tencache::gui {
namespace {

constexpr std::size_t values_of_a_plot = 13;

constexpr ParameterUnit all_units[] = {ParameterUnit::bytes_per_second, ParameterUnit::bytes,
                                       ParameterUnit::parameters_per_second, ParameterUnit::factor};

ParameterUnit parameter_unit_named(const std::string& name) {
  for (const ParameterUnit unit : all_units) {
    if (to_string(unit) == name) return unit;
  }
  throw Error("unknown unit '" + name + "'");
}

// "pcie_bytes_per_second" of a CSV file. Nothing where no unit is in the name.
std::optional<SensitivityPlot::Axis> axis_of_column(std::string_view name) {
  for (const ParameterUnit unit : all_units) {
    const std::string ending = "_" + std::string(to_string(unit));
    if (!name.ends_with(ending) || name.size() == ending.size()) continue;
    return SensitivityPlot::Axis{std::string(name.substr(0, name.size() - ending.size())), unit, 0};
  }
  return std::nullopt;
}

SensitivityPoint point_of(const Json& json) {
  SensitivityPoint point;
  point.value = json.at("value").is_number() ? json["value"].get<double>() : 0;
  point.fits = json.at("fits").get<bool>();
  if (point.fits) point.seconds = json.at("iteration_seconds").get<double>();
  if (json.at("reason").is_string()) point.reason = json["reason"].get<std::string>();
  return point;
}

SensitivityPlot::Axis axis_of(const Json& json) {
  SensitivityPlot::Axis axis;
  axis.name = json.at("name").get<std::string>();
  axis.unit = parameter_unit_named(json.at("unit").get<std::string>());
  if (json.at("machine_value").is_number()) axis.machine_value = json["machine_value"].get<double>();
  return axis;
}

std::string state_words(const SensitivityPlot& plot, KneeState state, const SensitivityPoint& knee) {
  switch (state) {
    case KneeState::found:
      return "beyond " + plot.axis.text(knee.value) + " nothing is gained";
    case KneeState::below_range:
      return "the least value shown is enough";
    case KneeState::above_range:
      return "more than the largest value shown would still help";
    case KneeState::never_fits:
      return "fits nowhere";
  }
  return "";
}

// The knee of a curve whose points are there.
std::string knee_words(const SensitivityPlot& plot, const SensitivityCurve& curve, KneeState state,
                       const SensitivityPoint& unlimited) {
  const std::string words = state_words(plot, state, curve.knee.value_or(SensitivityPoint{}));
  return curve.knee && slower_without_limit(*curve.knee, unlimited, plot.tolerance)
             ? words + "; without limit it is slower"
             : words;
}

}  // namespace

std::string SensitivityPlot::Axis::text(double value) const {
  switch (unit) {
    case ParameterUnit::bytes_per_second:
      return format_bandwidth(static_cast<BytesPerSecond>(value));
    case ParameterUnit::bytes:
      return format_bytes(static_cast<Bytes>(value));
    case ParameterUnit::parameters_per_second:
      return fmt::format("{:.3g} G/s", value * 1e-9);
    case ParameterUnit::factor:
      return fmt::format("× {:.3g}", value);
  }
  return "";
}

std::string SensitivityPlot::title() const {
  return axis.name + (machine.empty() ? "" : " of " + machine) + ", " +
         std::filesystem::path(trace).filename().string();
}

std::string SensitivityPlot::knee_meaning() const {
  return tolerance > 0 ? "the knee, beyond which more gains less than " + percent(tolerance)
                       : "the knee, beyond which nothing is gained";
}

std::string SensitivityPlot::label(const SensitivityCurve& curve) const {
  std::string text = curve.bound ? "lower bound" : curve.policy;
  if (second && curve.second_value) text += fmt::format(", {} {}", second->name, second->text(*curve.second_value));
  return text;
}

bool is_sensitivity(const Json& document) {
  return document.is_object() && document.contains("parameters") && document.contains("lines");
}

SensitivityPlot read_sensitivity(const Json& document, const std::string& file) {
  try {
    SensitivityPlot plot;
    plot.trace = document.at("trace").get<std::string>();
    plot.machine = document.at("machine").get<std::string>();
    plot.tolerance = document.at("tolerance").get<double>();
    plot.axis = axis_of(document["parameters"].at(0));
    if (document["parameters"].size() > 1) plot.second = axis_of(document["parameters"].at(1));
    for (const Json& line : document["lines"]) {
      SensitivityCurve& curve = plot.curves.emplace_back();
      curve.policy = line.at("policy").get<std::string>();
      curve.bound = curve.policy == bound_line;
      if (line.at("second_value").is_number()) curve.second_value = line["second_value"].get<double>();
      for (const Json& point : line.at("points")) curve.points.push_back(point_of(point));
      const SensitivityPoint unlimited = point_of(line.at("unlimited"));
      if (unlimited.fits) curve.unlimited_seconds = unlimited.seconds;
      if (line.at("knee").is_object()) curve.knee = point_of(line["knee"]);
      const auto state = line.at("knee_state").get<std::string>();
      for (const KneeState known :
           {KneeState::found, KneeState::below_range, KneeState::above_range, KneeState::never_fits}) {
        if (to_string(known) == state) curve.knee_text = knee_words(plot, curve, known, unlimited);
      }
    }
    return plot;
  } catch (const std::exception& error) {
    throw Error(file, 0, std::string("is no sensitivity analysis of tencache, or damaged: ") + error.what());
  }
}

// The columns `kind` and `policy`, one or two figures of the machine, and what came of them.
bool is_sensitivity(const DataTable& table) {
  return table.column_count() >= 6 && table.column_name(0) == "kind" && table.column_name(1) == "policy" &&
         axis_of_column(table.column_name(2)) && table.find_column("fits") != DataTable::unsorted &&
         table.find_column("iteration_seconds") != DataTable::unsorted;
}

SensitivityPlot read_sensitivity(const DataTable& table, const std::string& file) {
  SensitivityPlot plot;
  plot.trace = file;
  plot.axis = axis_of_column(table.column_name(2)).value();
  plot.second = axis_of_column(table.column_name(3));
  const std::size_t fits = table.find_column("fits"), seconds = table.find_column("iteration_seconds"),
                    reason = table.find_column("reason");
  for (std::size_t row = 0; row < table.row_count(); ++row) {
    const std::string kind = table.raw(row, 0), policy = table.raw(row, 1);
    std::optional<double> second;
    if (plot.second) second = table.number(row, 3);
    const auto same = [&](const SensitivityCurve& curve) {
      return curve.policy == policy && curve.second_value == second;
    };
    auto curve = std::ranges::find_if(plot.curves, same);
    if (curve == plot.curves.end()) {
      plot.curves.emplace_back().policy = policy;
      curve = std::prev(plot.curves.end());
      curve->second_value = second;
      curve->bound = policy == bound_line;
      curve->knee_text = "no knee among these values";
    }
    SensitivityPoint point;
    point.value = table.number(row, 2);
    point.fits = table.raw(row, fits) == "true";
    if (point.fits) point.seconds = table.number(row, seconds);
    if (reason != DataTable::unsorted) point.reason = table.raw(row, reason);
    const bool placed = kind == "unlimited" || std::isfinite(point.value);
    if (policy.empty() || !placed || !std::isfinite(point.seconds) || (second && !std::isfinite(*second))) {
      throw Error(file, row + 2, "is no row of a sensitivity analysis; was the file copied whole?");
    }
    if (kind == "point") {
      curve->points.push_back(point);
    } else if (kind == "unlimited") {
      if (point.fits) curve->unlimited_seconds = point.seconds;
    } else if (kind == "knee") {
      curve->knee = point;
      curve->knee_text = state_words(plot, KneeState::found, point);
    } else {
      throw Error(file, row + 2, "'" + kind + "' is neither point, unlimited nor knee");
    }
  }
  return plot;
}

void set_units(DataTables& tables, const SensitivityPlot& plot) {
  for (DataTable& table : tables) {
    const auto set = [&](const std::string& column, const SensitivityPlot::Axis& axis) {
      if (table.find_column(column) != DataTable::unsorted) table.set_unit(column, unit_named(to_string(axis.unit)));
    };
    if (!table.name().starts_with("lines")) continue;
    for (const char* column : {"value", "knee.value"}) set(column, plot.axis);
    if (plot.second) set("second_value", *plot.second);
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

SensitivityPlot plot_sensitivity(const Workload& wanted, const std::string& parameter, double from, double to,
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
  const SensitivityResult result = analyse_sensitivity(request);
  SensitivityPlot plot;
  plot.trace = trace_name(workload);
  plot.machine = workload.machine.name;
  plot.tolerance = request.tolerance;
  plot.axis = {parameter, request.axes[0].parameter.unit(), value_of(request.axes[0].parameter, workload.machine)};
  for (const SensitivityLine& line : result.lines) {
    SensitivityCurve& curve = plot.curves.emplace_back();
    curve.policy = line.policy;
    curve.bound = line.policy == bound_line;
    curve.points = line.points;
    if (line.unlimited.fits) curve.unlimited_seconds = line.unlimited.seconds;
    if (line.knee_state == KneeState::found) curve.knee = line.knee;
    curve.knee_text = knee_words(plot, curve, line.knee_state, line.unlimited);
  }
  return plot;
}

std::string sensitivity_csv(const SensitivityPlot& plot) {
  const auto named = [](const SensitivityPlot::Axis& axis) {
    return csv_field(axis.name + "_" + std::string(to_string(axis.unit)));
  };
  std::string csv = "kind,policy," + named(plot.axis);
  if (plot.second) csv += "," + named(*plot.second);
  csv += ",fits,iteration_seconds,reason\n";
  for (const SensitivityCurve& curve : plot.curves) {
    const auto add = [&](const char* kind, const std::string& value, const SensitivityPoint& point) {
      csv += fmt::format("{},{},{}", kind, csv_field(curve.policy), value);
      if (plot.second) csv += "," + (curve.second_value ? fmt::to_string(*curve.second_value) : std::string());
      csv += fmt::format(",{},{},{}\n", point.fits, point.fits ? fmt::to_string(point.seconds) : std::string(),
                         csv_field(point.fits ? std::string() : point.reason));
    };
    for (const SensitivityPoint& point : curve.points) add("point", fmt::to_string(point.value), point);
    SensitivityPoint unlimited;
    unlimited.fits = curve.unlimited_seconds.has_value();
    unlimited.seconds = curve.unlimited_seconds.value_or(0);
    add("unlimited", "", unlimited);
    if (curve.knee) add("knee", fmt::to_string(curve.knee->value), *curve.knee);
  }
  return csv;
}

}  // namespace tencache::gui
