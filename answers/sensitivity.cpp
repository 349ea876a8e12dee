#include "answers/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

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
  DocumentTable table{"lines", "", {axis.name}, Shown::on_terminal};
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

bool is_bound(const SensitivityLine& line) { return line.policy == bound_line; }

// "gpu_speed × 2".
std::string second_text(const SensitivityAnswer& answer, double value) {
  return answer.second()->name + " " + answer.second()->text(value);
}

std::string state_words(const SensitivityAnswer& answer, const SensitivityLine& line) {
  switch (line.knee_state) {
    case KneeState::found:
      return "beyond " + answer.axis().text(line.knee ? line.knee->value : 0) + " nothing is gained";
    case KneeState::below_range:
      return "the least value shown is enough";
    case KneeState::above_range:
      return "more than the largest value shown would still help";
    case KneeState::never_fits:
      return "fits nowhere";
  }
  return "";
}

DocumentTable knees_table(const SensitivityAnswer& answer) {
  DocumentTable table{"knees", "", {"policy", "knee", "time there", "without limit", "so"}, Shown::on_page};
  for (const SensitivityLine& line : answer.lines) {
    table.add({label_of(answer, line), line.knee ? answer.axis().text(line.knee->value) : "–",
               line.knee ? seconds_cell(line.knee->iteration_seconds) : Cell("–"),
               line.unlimited.fits ? seconds_cell(line.unlimited.iteration_seconds) : Cell("does not fit"),
               knee_text(answer, line)});
  }
  return table;
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
  if (!workload.trace->choices.empty() && std::ranges::any_of(answer.lines, is_bound)) {
    answer.notes.push_back("bound: no policy is faster, whatever it recomputes");
  }
  answer.rescaled = rescaling_answer(workload);
  answer.gpu_time = gpu_time_answer(workload);
  answer.manifest = manifest_json(workload, "", {});
  answer.timing = {workload.load_seconds, run_seconds};
  answer.title = fmt::format("{} on {}", trace_title(workload), machine_title(workload));
  return answer;
}

std::string title_of(const SensitivityAnswer& answer) {
  return answer.axis().name + (answer.machine.empty() ? "" : " of " + answer.machine) + ", " +
         std::filesystem::path(answer.trace).filename().string();
}

std::string label_of(const SensitivityAnswer& answer, const SensitivityLine& line) {
  std::string text = is_bound(line) ? "lower bound" : line.policy;
  if (answer.second() != nullptr && line.second_value) text += ", " + second_text(answer, *line.second_value);
  return text;
}

std::string knee_text(const SensitivityAnswer& answer, const SensitivityLine& line) {
  const bool from_csv = answer.machine.empty();  // no state of the knee is known
  if (from_csv) return line.knee ? state_words(answer, line) : "no knee among these values";
  const bool slower = line.knee && slower_without_limit(*line.knee, line.unlimited, answer.tolerance);
  return state_words(answer, line) + (slower ? "; without limit it is slower" : "");
}

Document document_of(const SensitivityAnswer& answer) {
  Document document{.kind = "sensitivity", .title = "Time against " + answer.axis().name, .blocks = {}};
  if (!answer.title.empty()) {  // of a file nobody knows whether all lines have all values
    document.add_text(answer.title + ": time of an iteration\n");
    for (std::size_t first = 0; first < answer.lines.size(); first += lines_of_a_table(answer)) {
      if (answer.second() != nullptr) {
        document.add_text(fmt::format("\n{}, by {}:\n", answer.lines[first].policy, answer.second()->name));
      }
      document.add_text("\n");
      document.blocks.emplace_back(times_table(answer, first));
    }
    document.add_text(knees_text(answer));
  }
  document.add_paragraph(title_of(answer));
  document.blocks.emplace_back(chart_of(answer));
  document.add_table(knees_table(answer));
  return document;
}

DocumentTable points_table(const SensitivityAnswer& answer) {
  DocumentTable table{"points", "", {"kind", "policy"}};
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

LineChart chart_of(const SensitivityAnswer& answer) {
  const SensitivityParameter& axis = answer.axis();
  LineChart chart;
  chart.title = answer.title.empty() ? title_of(answer) : answer.title;
  chart.subtitle = fmt::format("Seconds of an iteration against {}{}", axis.name,
                               !answer.rescaled ? "" : "; durations rescaled from another GPU (modelled)");
  chart.x_label = axis.name;
  chart.x_unit = unit_named(name_of(axis.unit));
  chart.y_label = "time of an iteration";
  chart.y_unit = FigureUnit::seconds;
  std::vector<double> values = axis.values;
  for (const SensitivityLine& line : answer.lines) {  // a CSV file says them only there
    for (const SensitivityPoint& point : line.points) values.push_back(point.value);
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  const std::size_t every = (values.size() + 6) / 7;  // no more than fit beside each other
  for (std::size_t i = 0; i < values.size(); i += every) {
    chart.ticks.emplace_back(values[i], short_text(axis.text(values[i])));
  }
  if (axis.machine_value > 0) chart.here = {axis.machine_value, "the machine's " + axis.text(axis.machine_value)};
  chart.note = "Ring: the knee, beyond which " +
               (answer.tolerance > 0 ? "more gains less than " + tolerance_text(answer) : "nothing is gained") +
               ". Gap: no result.";
  for (const SensitivityLine& line : answer.lines) {
    const std::string title =
        answer.second() != nullptr && line.second_value ? second_text(answer, *line.second_value) : "";
    auto panel = std::ranges::find(chart.panels, title, &ChartPanel::title);
    if (panel == chart.panels.end()) panel = chart.panels.insert(panel, {title, {}});
    ChartLine& drawn = panel->lines.emplace_back();
    drawn.reference = is_bound(line);
    drawn.name = drawn.reference ? "lower bound" : line.policy;
    for (const SensitivityPoint& point : line.points) {
      drawn.points.push_back({point.value, point.fits ? point.iteration_seconds : std::nan("")});
    }
    if (line.unlimited.fits) drawn.facts.emplace_back("unlimited", seconds_text(line.unlimited.iteration_seconds));
    drawn.facts.emplace_back("knee", knee_text(answer, line));
    if (!line.knee || !line.knee->fits || drawn.reference) continue;
    drawn.mark = {line.knee->value, line.knee->iteration_seconds};
    drawn.mark_label = axis.text(line.knee->value);
  }
  return chart;
}

}  // namespace tencache
