#include "gui/model/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "gui/model/describe.h"

namespace tencache::gui {
namespace {

constexpr std::size_t values_of_a_plot = 13;

ParameterUnit unit_named(const std::string& name) {
  for (const ParameterUnit unit : {ParameterUnit::bytes_per_second, ParameterUnit::bytes,
                                   ParameterUnit::parameters_per_second, ParameterUnit::factor}) {
    if (to_string(unit) == name) return unit;
  }
  throw Error("unknown unit '" + name + "'");
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
  axis.unit = unit_named(json.at("unit").get<std::string>());
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
  return axis.name + " of " + machine + ", " + std::filesystem::path(trace).filename().string();
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

std::string parameter_of_knob(const Scenario& scenario, const std::string& knob) {
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"gpu-memory", "gpu_memory"}, {"cpu-memory", "cpu_memory"}, {"pcie", "pcie"}, {"nvme", "nvme"}, {"dram", "dram"},
      {"gpu-speed", "gpu_speed"}};
  const auto found = std::ranges::find(names, knob, &std::pair<std::string, std::string>::first);
  if (found == names.end()) return "";
  const std::vector<MachineParameter> known = parameters_of(scenario.machine);
  return std::ranges::find(known, found->second, &MachineParameter::name) == known.end() ? "" : found->second;
}

SensitivityPlot plot_sensitivity(const Scenario& wanted, const std::string& parameter, double from, double to,
                                 const std::vector<std::string>& policies) {
  const Scenario scenario = with_changed_trace(wanted);
  SensitivityRequest request;
  request.trace = scenario.trace.get();
  request.machine = &scenario.machine;
  if (scenario.iterations != 0) request.limits = {.max_iterations = scenario.iterations, .until_steady = false};
  request.policies = policies;
  request.policies.emplace_back(bound_line);
  request.settings[scenario.policy] = scenario.options;
  request.axes = {{parameter_named(scenario.machine, parameter), logarithmic_values(from, to, values_of_a_plot)}};
  const SensitivityResult result = analyse_sensitivity(request);
  SensitivityPlot plot;
  plot.trace = scenario.trace_name;
  plot.machine = scenario.machine.name;
  plot.tolerance = request.tolerance;
  plot.axis = {parameter, request.axes[0].parameter.unit(), value_of(request.axes[0].parameter, scenario.machine)};
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
  std::string csv = "policy," + csv_field(plot.axis.name) + ",second_value,fits,iteration_seconds,kind\n";
  for (const SensitivityCurve& curve : plot.curves) {
    const auto add = [&](const SensitivityPoint& point, const char* kind) {
      csv += fmt::format("{},{},{},{},{},{}\n", csv_field(curve.policy), point.value,
                         curve.second_value ? fmt::to_string(*curve.second_value) : "", point.fits ? 1 : 0,
                         point.fits ? fmt::to_string(point.seconds) : "", kind);
    };
    for (const SensitivityPoint& point : curve.points) add(point, "point");
    if (curve.knee) add(*curve.knee, "knee");
  }
  return csv;
}

}  // namespace tencache::gui
