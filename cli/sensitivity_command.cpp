// `tencache sensitivity`: time against one or two figures of the machine, and beyond which value nothing is gained.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "answers/line_chart.h"
#include "answers/result.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/output_files.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/tool_clock.h"
#include "studies/sensitivity.h"
#include "traces/file/file_io.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

constexpr std::size_t usual_points = 9;

struct SensitivityArguments {
  Scenario workload;
  std::string policies = "foresight,10cache,zero-infinity,on-demand";
  std::vector<std::string> over;
  std::map<std::string, std::string> settings;
  double tolerance_percent = 1;
  std::string csv, svg;
  bool json = false;
  Json command;  // for the manifest
};

// "nvme_read=1GB/s..20GB/s:9" or "gpu_memory=8GiB,16GiB,24GiB".
SensitivityAxis parse_axis(const MachineSpec& machine, const std::string& text) {
  const auto fail = [&](const std::string& message) { throw Error("--over " + text + ": " + message); };
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) fail("write it as NAME=FROM..TO, such as nvme_read=1GB/s..20GB/s");
  SensitivityAxis axis;
  try {
    axis.parameter = parameter_named(machine, text.substr(0, equals));
    const std::string range = text.substr(equals + 1);
    const std::size_t dots = range.find("..");
    if (dots == std::string::npos) {
      std::size_t begin = 0;
      while (begin <= range.size()) {
        const std::size_t comma = std::min(range.find(',', begin), range.size());
        axis.values.push_back(parse_parameter(axis.parameter, range.substr(begin, comma - begin)));
        begin = comma + 1;
      }
    } else {
      std::string to = range.substr(dots + 2);
      std::size_t count = usual_points;
      if (const std::size_t colon = to.find(':'); colon != std::string::npos) {
        const std::string digits = to.substr(colon + 1);
        const bool number =
            !digits.empty() && digits.size() < 4 && digits.find_first_not_of("0123456789") == std::string::npos;
        count = number ? std::stoul(digits) : 0;
        if (count < 2) throw Error("'" + digits + "' is no number of values from 2 to 999");
        to.resize(colon);
      }
      const double first = parse_parameter(axis.parameter, range.substr(0, dots));
      const double last = parse_parameter(axis.parameter, to);
      if (last <= first) throw Error("the range ends before it begins");
      axis.values = logarithmic_values(first, last, count);
    }
  } catch (const Error& error) {
    fail(error.what());
  }
  std::sort(axis.values.begin(), axis.values.end());
  axis.values.erase(std::unique(axis.values.begin(), axis.values.end()), axis.values.end());
  if (axis.values.back() > unlimited_value(axis.parameter)) fail("so large a value is out of range");
  return axis;
}

struct Analysed {
  const Workload& workload;
  const SensitivityRequest& request;
  const SensitivityResult& result;

  const MachineParameter& parameter() const { return request.axes[0].parameter; }
  bool two() const { return request.axes.size() > 1; }
  std::string tolerance() const { return fmt::format("{:.3g} %", 100 * request.tolerance); }
};

std::string cell(const SensitivityPoint& point) { return point.fits ? format_seconds(point.seconds) : point.verdict; }

std::string state_text(const Analysed& analysed, const SensitivityLine& line) {
  const auto shown = [&](double value) { return format_parameter(analysed.parameter(), value); };
  const std::string& name = analysed.parameter().name;
  const SensitivityPoint& last = line.points.back();
  switch (line.knee_state) {
    case KneeState::found:
      return fmt::format("beyond {} of {} nothing is gained: {} there, {} without limit", shown(line.knee.value), name,
                         format_seconds(line.knee.seconds), cell(line.unlimited));
    case KneeState::below_range:
      return fmt::format("{} of {} is enough: more gains nothing", shown(line.points.front().value), name);
    case KneeState::above_range:
      if (!last.fits) return fmt::format("{} with {} of {}, not with more", cell(last), shown(last.value), name);
      return fmt::format("more than {} of {} would still help: {} there, {} without limit", shown(last.value), name,
                         format_seconds(last.seconds), format_seconds(line.unlimited.seconds));
    case KneeState::never_fits:
      break;
  }
  return fmt::format("{}, however large: {}", cell(line.unlimited), printable(line.unlimited.reason));
}

std::string knee_text(const Analysed& analysed, const SensitivityLine& line) {
  std::string text = state_text(analysed, line);
  if (line.knee_state != KneeState::found ||
      !slower_without_limit(line.knee, line.unlimited, analysed.request.tolerance)) {
    return text;
  }
  return text + ": its plan is not the better the faster the machine";
}

Json point_json(const SensitivityPoint& point) {
  return {{"value", point.value},
          {"fits", point.fits},
          {"reason", point.fits ? Json(nullptr) : Json(point.reason)},
          {"iteration_seconds", point.fits ? Json(point.seconds) : Json(nullptr)}};
}

Json analysis_json(const Analysed& analysed) {
  Json parameters = Json::array(), lines = Json::array();
  for (const SensitivityAxis& axis : analysed.request.axes) {
    parameters.push_back({{"name", axis.parameter.name},
                          {"unit", to_string(axis.parameter.unit())},
                          {"machine_value", value_of(axis.parameter, analysed.workload.machine)},
                          {"values", axis.values}});
  }
  for (const SensitivityLine& line : analysed.result.lines) {
    Json points = Json::array();
    for (const SensitivityPoint& point : line.points) points.push_back(point_json(point));
    const bool found = line.knee_state == KneeState::found;
    Json unlimited = point_json(line.unlimited);
    unlimited["value"] = nullptr;
    lines.push_back({{"policy", line.policy},
                     {"second_value", line.second_value ? Json(*line.second_value) : Json(nullptr)},
                     {"points", std::move(points)},
                     {"unlimited", std::move(unlimited)},
                     {"knee_state", to_string(line.knee_state)},
                     {"knee", found ? point_json(line.knee) : Json(nullptr)},
                     {"summary", knee_text(analysed, line)}});
  }
  return {{"trace", analysed.workload.scenario.trace.file},
          {"machine", analysed.workload.machine.name},
          {"parameters", std::move(parameters)},
          {"tolerance", analysed.request.tolerance},
          {"lines", std::move(lines)},
          {"notes", notes_of(analysed.workload)},
          {"rescaled", rescaling_json(analysed.workload)},
          {"gpu_time", gpu_time_json(analysed.workload)},
          {"simulations", analysed.result.simulations},
          {"manifest", manifest_json(analysed.workload, "", {})}};
}

// Rows: values of the first figure, and without limit. `mark`: the machine's own value lies next.
std::string table_text(const Analysed& analysed, const std::vector<const SensitivityLine*>& lines,
                       const std::vector<std::string>& names) {
  std::vector<std::string> header = {analysed.parameter().name};
  header.insert(header.end(), names.begin(), names.end());
  header.push_back("");
  Table table(header);
  const std::vector<double>& values = analysed.request.axes[0].values;
  const double own = value_of(analysed.parameter(), analysed.workload.machine);
  std::size_t nearest = values.size();
  for (std::size_t i = 0; i < values.size() && own >= values.front() && own <= values.back(); ++i) {
    const auto distance = [&](std::size_t at) { return std::fabs(std::log(values[at] / own)); };
    if (nearest == values.size() || distance(i) < distance(nearest)) nearest = i;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<std::string> row = {format_parameter(analysed.parameter(), values[i])};
    for (const SensitivityLine* line : lines) row.push_back(cell(line->points[i]));
    row.push_back(i == nearest ? "← the machine's " + format_parameter(analysed.parameter(), own) : std::string());
    table.add(std::move(row));
  }
  std::vector<std::string> row = {"unlimited"};
  for (const SensitivityLine* line : lines) row.push_back(cell(line->unlimited));
  row.push_back("");
  table.add(std::move(row));
  return table.text();
}

std::string analysis_text(const Analysed& analysed) {
  std::string text =
      fmt::format("{} on {}: time of an iteration\n", trace_title(analysed.workload), machine_title(analysed.workload));
  std::vector<const SensitivityLine*> lines;
  std::vector<std::string> names;
  const auto flush = [&] {
    text += "\n" + table_text(analysed, lines, names);
    lines.clear();
    names.clear();
  };
  for (const SensitivityLine& line : analysed.result.lines) {
    if (analysed.two() && names.empty()) {
      text += fmt::format("\n{}, by {}:\n", line.policy, analysed.request.axes[1].parameter.name);
    }
    lines.push_back(&line);
    names.push_back(analysed.two() ? format_parameter(analysed.request.axes[1].parameter, *line.second_value)
                                   : line.policy);
    if (analysed.two() && lines.size() == analysed.request.axes[1].values.size()) flush();
  }
  if (!lines.empty()) flush();
  text += "\n";
  for (const SensitivityLine& line : analysed.result.lines) {
    std::string where;
    if (line.second_value) {
      where = fmt::format(" with {} of {}", format_parameter(analysed.request.axes[1].parameter, *line.second_value),
                          analysed.request.axes[1].parameter.name);
    }
    text += fmt::format("{}{}: {}\n", line.policy, where, knee_text(analysed, line));
    // The reason of the value that comes nearest; where none fits, the line above has it.
    const auto misfit = std::find_if(line.points.rbegin(), line.points.rend(), [](const auto& p) { return !p.fits; });
    if (misfit == line.points.rend() || line.knee_state == KneeState::never_fits) continue;
    text += fmt::format("{}{} with {} of {}: {}\n", line.policy, where,
                        format_parameter(analysed.parameter(), misfit->value), analysed.parameter().name,
                        printable(misfit->reason));
  }
  text += fmt::format("Nothing gained: no larger value, nor no limit at all, is more than {} faster.\n",
                      analysed.tolerance());
  for (const std::string& note : notes_of(analysed.workload)) text += note + "\n";
  return text;
}

std::string analysis_csv(const Analysed& analysed) {
  const auto unit = [](const SensitivityAxis& axis) {
    return fmt::format("{}_{}", axis.parameter.name, to_string(axis.parameter.unit()));
  };
  std::string csv = "kind,policy," + unit(analysed.request.axes[0]);
  if (analysed.two()) csv += "," + unit(analysed.request.axes[1]);
  csv += ",fits,iteration_seconds,reason\n";
  for (const SensitivityLine& line : analysed.result.lines) {
    const auto row = [&](const char* kind, const SensitivityPoint& point, bool with_value) {
      csv += fmt::format("{},{},{}", kind, line.policy, with_value ? fmt::format("{}", point.value) : std::string());
      if (line.second_value) csv += fmt::format(",{}", *line.second_value);
      csv += fmt::format(",{},{},{}\n", point.fits, point.fits ? fmt::format("{}", point.seconds) : std::string(),
                         csv_field(point.fits ? std::string() : point.reason));
    };
    for (const SensitivityPoint& point : line.points) row("point", point, true);
    row("unlimited", line.unlimited, false);
    if (line.knee_state == KneeState::found) row("knee", line.knee, true);
  }
  return csv;
}

// "4 GB/s" of "4.00 GB/s".
std::string short_text(std::string text) {
  if (const std::size_t zeros = text.find(".00 "); zeros != std::string::npos) text.erase(zeros, 3);
  return text;
}

Chart chart_of(const Analysed& analysed) {
  const SensitivityAxis& axis = analysed.request.axes[0];
  Chart chart;
  chart.title = fmt::format("{} on {}", trace_title(analysed.workload), machine_title(analysed.workload));
  chart.subtitle = fmt::format("Seconds of an iteration against {}{}", axis.parameter.name,
                               analysed.workload.rescaling ? "; durations rescaled from another GPU (modelled)" : "");
  switch (axis.parameter.unit()) {
    case ParameterUnit::bytes_per_second:
      chart.x_label = axis.parameter.name + " (bytes per second, logarithmic)";
      break;
    case ParameterUnit::bytes:
      chart.x_label = axis.parameter.name + " (bytes, logarithmic)";
      break;
    case ParameterUnit::parameters_per_second:
      chart.x_label = axis.parameter.name + " (parameters per second, logarithmic)";
      break;
    case ParameterUnit::factor:
      chart.x_label = axis.parameter.name + " (factor, logarithmic)";
      break;
  }
  chart.y_label = "iteration (seconds)";
  // No more than fit beside each other.
  const std::size_t every = (axis.values.size() + 6) / 7;
  for (std::size_t i = 0; i < axis.values.size(); ++i) {
    if (i % every == 0 || axis.values.size() <= 7) {
      chart.ticks.emplace_back(axis.values[i], short_text(format_parameter(axis.parameter, axis.values[i])));
    }
  }
  chart.here = {value_of(axis.parameter, analysed.workload.machine), "the machine's"};
  chart.note =
      fmt::format("Ring: the knee, beyond which more gains less than {}. Gap: no result.", analysed.tolerance());
  chart.panels.resize(analysed.two() ? analysed.request.axes[1].values.size() : 1);
  std::size_t at = 0;
  for (const SensitivityLine& line : analysed.result.lines) {
    ChartPanel& panel = chart.panels[at++ % chart.panels.size()];
    if (line.second_value) {
      const MachineParameter& second = analysed.request.axes[1].parameter;
      panel.title = second.name + " " + format_parameter(second, *line.second_value);
    }
    ChartLine drawn{
        .name = line.policy, .points = {}, .mark = {}, .mark_label = {}, .reference = line.policy == bound_line};
    for (const SensitivityPoint& point : line.points) {
      drawn.points.push_back(point.fits ? std::optional(std::pair(point.value, point.seconds)) : std::nullopt);
    }
    if (line.knee_state == KneeState::found && !drawn.reference) {
      drawn.mark = {line.knee.value, line.knee.seconds};
      drawn.mark_label = format_parameter(axis.parameter, line.knee.value);
    }
    panel.lines.push_back(std::move(drawn));
  }
  return chart;
}

ExitCode sensitivity(const SensitivityArguments& arguments) {
  std::vector<std::string> others = input_files(arguments.workload);
  check_output("--csv", arguments.csv, others);
  others.push_back(arguments.csv);
  check_output("--svg", arguments.svg, others);
  if (arguments.over.size() > 2) throw Error("--over: at most two figures at once");
  SensitivityRequest request;
  request.policies = policies_named(arguments.policies);
  const auto& settings = arguments.settings;
  if (!settings.empty() && request.policies.size() > 1)
    throw Error("--set goes with one policy; name it with --policies");
  if (!settings.empty()) request.settings[request.policies.front()] = settings;

  const Workload workload = load_workload(arguments.workload);
  for (const std::string& over : arguments.over) request.axes.push_back(parse_axis(workload.machine, over));
  if (request.axes.size() > 1) {
    const MachineParameter &first = request.axes[0].parameter, &second = request.axes[1].parameter;
    if (overlap(first, second, workload.machine)) {
      throw Error(fmt::format("--over: {} and {} overlap: both set the same figures of '{}'; give one of them",
                              first.name, second.name, workload.machine.name));
    }
  }
  if (!settings.empty()) simulate_policy(workload, request.policies.front(), settings);  // a wrong option is bad usage
  request.trace = workload.trace.get();
  request.machine = &workload.machine;
  request.limits = limits_of(workload.scenario.iterations);
  request.policies.emplace_back(bound_line);
  request.tolerance = arguments.tolerance_percent / 100;
  const std::int64_t start = tool_clock_ns();
  SensitivityResult result;
  {
    ProgressLine progress;
    request.progress = [&](std::size_t done, std::size_t expected) {
      const double seconds = seconds_since(start);
      progress.show(
          fmt::format("{} of about {} simulations, {} left", done, expected,
                      format_seconds(seconds / static_cast<double>(done) * static_cast<double>(expected - done))));
    };
    result = analyse_sensitivity(request);
  }
  const Analysed analysed{workload, request, result};
  if (!arguments.csv.empty()) write_file(arguments.csv, analysis_csv(analysed));
  if (!arguments.svg.empty()) write_file(arguments.svg, draw_svg(chart_of(analysed)));
  if (arguments.json) {
    Json json = analysis_json(analysed);
    json["timing"] = {{"load_seconds", workload.load_seconds}, {"run_seconds", seconds_since(start)}};
    print_repeatable(std::move(json), arguments.command);
  } else {
    print(analysis_text(analysed));
  }
  const bool any = std::any_of(result.lines.begin(), result.lines.end(), [](const SensitivityLine& line) {
    return line.policy != bound_line &&
           std::any_of(line.points.begin(), line.points.end(), [](const auto& point) { return point.fits; });
  });
  return any ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_sensitivity_command(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("sensitivity", "Time against one or two figures of the machine, and where more gains nothing");
  auto arguments = std::make_shared<SensitivityArguments>();
  add_workload_options(*command, arguments->workload);
  command
      ->add_option(
          "--over", arguments->over,
          "NAME=FROM..TO[:COUNT] (evenly in the logarithm, 9 values unless told) or NAME=VALUE,VALUE,…; once or "
          "twice. An unknown NAME lists the valid ones")
      ->required()
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--policies,--policy,-p", arguments->policies, "Names separated by commas, or all")
      ->capture_default_str();
  add_settings_option(*command, arguments->settings);
  command
      ->add_option("--tolerance", arguments->tolerance_percent, "Percent of the best time that count as nothing gained")
      ->check(finite_range(0, 50))
      ->capture_default_str();
  refuse_empty(command->add_option("--csv", arguments->csv, "Every point and knee as CSV"));
  refuse_empty(command->add_option("--svg", arguments->svg, "A picture"));
  command->add_flag("--json", arguments->json, "The same as JSON (docs/schemas/sensitivity.schema.json)");
  command->footer(
      "A knee is the least value from which on more gains less than the tolerance; found by bisection. The bound is "
      "always a line.\nExit code 1: nothing fits anywhere.\n\n"
      "Examples:\n"
      "  tencache sensitivity step.trace.jsonl.zst -m 10cache-l40s --over nvme_read=1GB/s..20GB/s -p "
      "10cache,foresight\n"
      "  tencache sensitivity step.trace.jsonl.zst -m g5.xlarge --over pcie=4GB/s..64GB/s:5 --over "
      "gpu_memory=8GiB,16GiB,22GiB "
      "\\\n      --svg pcie.svg --csv pcie.csv");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] { return sensitivity(*arguments); };
  });
}

}  // namespace tencache
