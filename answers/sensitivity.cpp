#include "answers/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "answers/result.h"
#include "core/text.h"

namespace tencache {
namespace {

std::string time_text(const SensitivityPoint& point) {
  return point.fits ? format_seconds(point.iteration_seconds) : point.verdict;
}

Cell time_cell(const SensitivityPoint& point) { return {time_text(point), point.iteration_seconds}; }

std::string tolerance_text(const SensitivityAnswer& answer) { return fmt::format("{:.3g} %", 100 * answer.tolerance); }

std::string state_text(const SensitivityParameter& axis, const SensitivityLine& line) {
  const SensitivityPoint& last = line.points.back();
  switch (line.knee_state) {
    case KneeState::found:
      return fmt::format("beyond {} of {} nothing is gained: {} there, {} without limit", axis.text(line.knee->value),
                         axis.name, time_text(*line.knee), time_text(line.unlimited));
    case KneeState::below_range:
      return fmt::format("{} of {} is enough: more gains nothing", axis.text(line.points.front().value), axis.name);
    case KneeState::above_range:
      if (!last.fits) {
        return fmt::format("{} with {} of {}, not with more", time_text(last), axis.text(last.value), axis.name);
      }
      return fmt::format("more than {} of {} would still help: {} there, {} without limit", axis.text(last.value),
                         axis.name, time_text(last), time_text(line.unlimited));
    case KneeState::never_fits:
      break;
  }
  return fmt::format("{}, however large: {}", time_text(line.unlimited), printable(line.unlimited.reason.value_or("")));
}

std::string summary_of(const SensitivityAnswer& answer, const SensitivityLine& line) {
  const bool slower = line.knee && slower_without_limit(*line.knee, line.unlimited, answer.tolerance);
  return state_text(answer.axis(), line) + (slower ? ": its plan is not the better the faster the machine" : "");
}

// Lines that stand side by side: those of all policies, or of one policy at all values of the second parameter.
std::size_t lines_of_a_table(const SensitivityAnswer& answer) {
  return answer.second() != nullptr ? answer.second()->values.size() : answer.lines.size();
}

// Rows: values of the first parameter, and without limit; the machine's own value is beside the nearest.
DocumentTable times_table(const SensitivityAnswer& answer, std::size_t first) {
  const SensitivityParameter& axis = answer.axis();
  DocumentTable table{.name = "lines", .title = "", .columns = {axis.name}, .rows = {}};
  const std::size_t end = std::min(answer.lines.size(), first + lines_of_a_table(answer));
  for (std::size_t i = first; i < end; ++i) {
    const SensitivityLine& line = answer.lines[i];
    table.columns.push_back(line.second_value ? answer.second()->text(*line.second_value) : line.policy);
  }
  table.columns.emplace_back("");
  const double own = axis.machine_value;
  const bool inside = own >= axis.values.front() && own <= axis.values.back();
  const auto nearest = std::ranges::min_element(
      axis.values, {}, [own](double value) { return own > 0 ? std::fabs(std::log(value / own)) : 0; });
  const auto add = [&](std::string name, double value, auto point_of, const std::string& mark) {
    std::vector<Cell> cells = {{std::move(name), value}};
    for (std::size_t i = first; i < end; ++i) cells.push_back(time_cell(point_of(answer.lines[i])));
    cells.emplace_back(mark);
    table.add(std::move(cells));
  };
  for (std::size_t i = 0; i < axis.values.size(); ++i) {
    const bool marked = inside && std::next(axis.values.begin(), static_cast<std::ptrdiff_t>(i)) == nearest;
    add(
        axis.text(axis.values[i]), axis.values[i], [i](const SensitivityLine& line) { return line.points[i]; },
        marked ? "← the machine's " + axis.text(own) : "");
  }
  add(
      "unlimited", std::numeric_limits<double>::quiet_NaN(), [](const SensitivityLine& line) { return line.unlimited; },
      "");
  return table;
}

std::string knees_text(const SensitivityAnswer& answer) {
  const SensitivityParameter& axis = answer.axis();
  std::string text = "\n";
  for (const SensitivityLine& line : answer.lines) {
    std::string who = line.policy;
    if (line.second_value) {
      who += fmt::format(" with {} of {}", answer.second()->text(*line.second_value), answer.second()->name);
    }
    text += fmt::format("{}: {}\n", who, line.summary);
    // The reason of the value that comes nearest; where none fits, the line above has it.
    const auto misfit = std::find_if(line.points.rbegin(), line.points.rend(), [](const auto& p) { return !p.fits; });
    if (misfit == line.points.rend() || line.knee_state == KneeState::never_fits) continue;
    text += fmt::format("{} with {} of {}: {}\n", who, axis.text(misfit->value), axis.name,
                        printable(misfit->reason.value_or("")));
  }
  text += fmt::format("Nothing gained: no larger value, nor no limit at all, is more than {} faster.\n",
                      tolerance_text(answer));
  for (const std::string& note : answer.notes) text += note + "\n";
  return text;
}

// "4 GB/s" of "4.00 GB/s".
std::string short_text(std::string text) {
  if (const std::size_t zeros = text.find(".00 "); zeros != std::string::npos) text.erase(zeros, 3);
  return text;
}

}  // namespace

SensitivityAnswer sensitivity_answer(const SensitivityRequest& request, SensitivityResult result) {
  SensitivityAnswer answer;
  answer.machine = request.machine->name;
  for (const SensitivityAxis& axis : request.axes) {
    answer.parameters.push_back(
        {axis.parameter.name, axis.parameter.unit(), value_of(axis.parameter, *request.machine), axis.values});
  }
  answer.tolerance = request.tolerance;
  answer.lines = std::move(result.lines);
  for (SensitivityLine& line : answer.lines) line.summary = summary_of(answer, line);
  answer.simulations = result.simulations;
  return answer;
}

SensitivityAnswer sensitivity_answer(const Workload& workload, const SensitivityRequest& request,
                                     SensitivityResult result, double run_seconds) {
  SensitivityAnswer answer = sensitivity_answer(request, std::move(result));
  answer.trace = workload.scenario.trace.file;
  answer.notes = notes_of(workload);
  answer.rescaled = rescaling_json(workload);
  answer.gpu_time = gpu_time_json(workload);
  answer.manifest = manifest_json(workload, "", {});
  answer.timing = {{"load_seconds", workload.load_seconds}, {"run_seconds", run_seconds}};
  answer.title = fmt::format("{} on {}", trace_title(workload), machine_title(workload));
  return answer;
}

Document document_of(const SensitivityAnswer& answer) {
  Document document{.kind = "sensitivity", .title = answer.title, .blocks = {}};
  document.add_text(answer.title + ": time of an iteration\n");
  for (std::size_t first = 0; first < answer.lines.size(); first += lines_of_a_table(answer)) {
    if (answer.second() != nullptr) {
      document.add_text(fmt::format("\n{}, by {}:\n", answer.lines[first].policy, answer.second()->name));
    }
    document.add_text("\n");
    document.blocks.emplace_back(times_table(answer, first));
  }
  document.add_text(knees_text(answer));
  return document;
}

DocumentTable points_table(const SensitivityAnswer& answer) {
  DocumentTable table{.name = "points", .title = "", .columns = {"kind", "policy"}, .rows = {}};
  for (const SensitivityParameter& parameter : answer.parameters) {
    table.columns.push_back(fmt::format("{}_{}", parameter.name, name_of(parameter.unit)));
  }
  table.columns.insert(table.columns.end(), {"fits", "iteration_seconds", "reason"});
  for (const SensitivityLine& line : answer.lines) {
    const auto add = [&](const char* kind, const SensitivityPoint& point) {
      const auto cell = [](double number) { return Cell("", std::isfinite(number) ? number : std::nan("")); };
      std::vector<Cell> cells = {kind, line.policy, cell(point.value)};
      if (answer.second() != nullptr) cells.push_back(cell(line.second_value.value_or(std::nan(""))));
      cells.insert(cells.end(),
                   {point.fits ? "true" : "false", cell(point.iteration_seconds), point.reason.value_or("")});
      table.add(std::move(cells));
    };
    for (const SensitivityPoint& point : line.points) add("point", point);
    add("unlimited", line.unlimited);
    if (line.knee) add("knee", *line.knee);
  }
  return table;
}

std::vector<std::optional<std::pair<double, double>>> plotted(const std::vector<SensitivityPoint>& points) {
  std::vector<std::optional<std::pair<double, double>>> drawn(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].fits) drawn[i] = {points[i].value, points[i].iteration_seconds};
  }
  return drawn;
}

Chart chart_of(const SensitivityAnswer& answer) {
  const SensitivityParameter& axis = answer.axis();
  Chart chart;
  chart.title = answer.title;
  chart.subtitle = fmt::format("Seconds of an iteration against {}{}", axis.name,
                               answer.rescaled.is_null() ? "" : "; durations rescaled from another GPU (modelled)");
  std::string unit = name_of(axis.unit);
  std::ranges::replace(unit, '_', ' ');
  chart.x_label = fmt::format("{} ({}, logarithmic)", axis.name, unit);
  chart.y_label = "iteration (seconds)";
  const std::size_t every = (axis.values.size() + 6) / 7;  // no more than fit beside each other
  for (std::size_t i = 0; i < axis.values.size(); i += every) {
    chart.ticks.emplace_back(axis.values[i], short_text(axis.text(axis.values[i])));
  }
  chart.here = {axis.machine_value, "the machine's"};
  chart.note =
      fmt::format("Ring: the knee, beyond which more gains less than {}. Gap: no result.", tolerance_text(answer));
  chart.panels.resize(answer.second() != nullptr ? answer.second()->values.size() : 1);
  for (std::size_t i = 0; i < answer.lines.size(); ++i) {
    const SensitivityLine& line = answer.lines[i];
    ChartPanel& panel = chart.panels[i % chart.panels.size()];
    if (line.second_value) panel.title = answer.second()->name + " " + answer.second()->text(*line.second_value);
    ChartLine& drawn = panel.lines.emplace_back();
    drawn.name = line.policy;
    drawn.points = plotted(line.points);
    drawn.reference = line.policy == bound_line;
    if (line.knee && !drawn.reference) {
      drawn.mark = {line.knee->value, line.knee->iteration_seconds};
      drawn.mark_label = axis.text(line.knee->value);
    }
  }
  return chart;
}

}  // namespace tencache
