#include "answers/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>

#include "answers/line_chart.h"
#include "answers/questions.h"
#include "configs/tool_clock.h"
#include "core/remark.h"
#include "core/split.h"
#include "studies/scenario_options.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

constexpr std::size_t usual_points = 9;

struct SensitivityQuestion {
  Scenario scenario;
  std::string policies = "foresight,10cache,zero-infinity,on-demand";
  std::vector<std::string> over;
  std::map<std::string, std::string> settings;
  double tolerance_percent = 1;
  std::string csv, svg;
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
      for (const std::string& value : split(range)) axis.values.push_back(parse_parameter(axis.parameter, value));
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
  std::ranges::sort(axis.values);
  axis.values.erase(std::unique(axis.values.begin(), axis.values.end()), axis.values.end());
  if (axis.values.back() > unlimited_value(axis.parameter)) fail("so large a value is out of range");
  return axis;
}

Answered sensitivity(const SensitivityQuestion& asked, const Json& command) {
  std::vector<std::string> others = input_files(asked.scenario);
  check_output("--csv", asked.csv, others);
  others.push_back(asked.csv);
  check_output("--svg", asked.svg, others);
  if (asked.over.size() > 2) throw Error("--over: at most two figures at once");
  SensitivityRequest request;
  request.policies = policies_named(asked.policies);
  const auto& settings = asked.settings;
  if (!settings.empty() && request.policies.size() > 1)
    throw Error("--set goes with one policy; name it with --policies");
  if (!settings.empty()) request.settings[request.policies.front()] = settings;

  const Workload workload = load_workload(asked.scenario);
  for (const std::string& over : asked.over) request.axes.push_back(parse_axis(workload.machine, over));
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
  request.tolerance = asked.tolerance_percent / 100;
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
  SensitivityAnswer answer = sensitivity_answer(workload, request, std::move(result), seconds_since(start));
  if (!asked.csv.empty()) write_file(asked.csv, table_csv(points_table(answer)));
  if (!asked.svg.empty()) write_file(asked.svg, draw_svg(chart_of(answer)));
  const bool any = std::ranges::any_of(answer.lines, [](const SensitivityLine& line) {
    return line.policy != bound_line && std::ranges::any_of(line.points, &SensitivityPoint::fits);
  });
  return answered(std::move(answer), any, command);
}

}  // namespace

std::unique_ptr<Question> sensitivity_question() {
  auto question = std::make_unique<Question>("sensitivity");
  question->help = {
      .summary = "Time against one or two figures of the machine, and where more gains nothing",
      .json = "The same as JSON (schemas/sensitivity.schema.json)",
      .footer =
          "A knee is the least value from which on more gains less than the tolerance; found by bisection. The bound "
          "is always a line.\n"
          "Exit code 1: nothing fits anywhere.\n\n"
          "Examples:\n"
          "  tencache sensitivity step.trace.jsonl.zst -m 10cache-l40s --over nvme_read=1GB/s..20GB/s -p "
          "10cache,foresight\n"
          "  tencache sensitivity step.trace.jsonl.zst -m g5.xlarge --over pcie=4GB/s..64GB/s:5 --over "
          "gpu_memory=8GiB,16GiB,22GiB \\\n"
          "      --svg pcie.svg --csv pcie.csv"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<SensitivityAnswer>(
        "sensitivity", "Time against figures of a machine",
        "What `tencache sensitivity --json` prints. One or two parameters; a value of null is no limit. A "
        "line is a policy (or `bound`, the lower bound) at one value of the second parameter, in the order "
        "of policies, then of that parameter's values. docs/explain.md explains it.")};
  };
  auto request = std::make_shared<SensitivityQuestion>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  options
      .list("--over", request->over,
            "NAME=FROM..TO[:COUNT] (evenly in the logarithm, 9 values unless told) or NAME=VALUE,VALUE,…; once or "
            "twice. An unknown NAME lists the valid ones")
      .needed();
  options.text("--policies,--policy,-p", request->policies, "Names separated by commas, or all");
  add_settings_option(options, request->settings);
  options.real("--tolerance", request->tolerance_percent, 0, 50,
               "Percent of the best time that count as nothing gained");
  options.output("--csv", request->csv, "Every point and knee as CSV");
  options.output("--svg", request->svg, "A picture");
  question->ask = [request, question = question.get()] { return sensitivity(*request, command_json(*question)); };
  return question;
}

}  // namespace tencache
