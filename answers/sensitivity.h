// Time against one or two figures of a machine as an answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/durations.h"
#include "studies/sensitivity.h"
#include "studies/workload.h"

namespace tencache {

BOOST_DESCRIBE_ENUM(KneeState, found, below_range, above_range, never_fits)
TENCACHE_ANSWER(SensitivityPoint, value, fits, reason, iteration_seconds)
TENCACHE_ANSWER(SensitivityLine, policy, second_value, points, unlimited, knee_state, knee, summary)

struct SensitivityParameter {
  std::string name;
  ParameterUnit unit = ParameterUnit::factor;
  double machine_value = 0;    // 0: not known
  std::vector<double> values;  // ascending

  std::string text(double value) const { return format_in(unit, value); }
};
TENCACHE_ANSWER(SensitivityParameter, name, unit, machine_value, values)

struct SensitivityAnswer {
  std::string trace, machine;
  std::vector<SensitivityParameter> parameters;  // one or two; the first is the x axis
  double tolerance = 0;                          // of the knees
  std::vector<SensitivityLine> lines;            // by policy, then by value of the second parameter
  std::vector<std::string> notes;
  std::optional<RescalingAnswer> rescaled;
  std::optional<GpuTimeAnswer> gpu_time;
  std::uint64_t simulations = 0;
  Json manifest;
  Timing timing;

  std::string title;  // "gpt2, batch 8 on g10-a100"; known only while the command runs

  const SensitivityParameter& axis() const { return parameters.front(); }
  const SensitivityParameter* second() const { return parameters.size() > 1 ? &parameters[1] : nullptr; }
};
TENCACHE_ANSWER(SensitivityAnswer, trace, machine, parameters, tolerance, lines, notes, rescaled, gpu_time, simulations,
                manifest, timing)

// Of a trace that is no file: without what is known of a workload.
SensitivityAnswer sensitivity_answer(const SensitivityRequest& request, SensitivityResult result);
SensitivityAnswer sensitivity_answer(const Workload& workload, const SensitivityRequest& request,
                                     SensitivityResult result, double run_seconds);

// A terminal has a table of all times, pages a chart and the knees.
Document document_of(const SensitivityAnswer& answer);
// Every point and knee, a row each.
DocumentTable points_table(const SensitivityAnswer& answer);
// A panel for each value of the second parameter.
LineChart chart_of(const SensitivityAnswer& answer);

std::string title_of(const SensitivityAnswer& answer);  // "pcie of demo-small-gpu, gpt2-small.trace.jsonl.zst"
std::string label_of(const SensitivityAnswer& answer, const SensitivityLine& line);
// The knee, or why there is none.
std::string knee_text(const SensitivityAnswer& answer, const SensitivityLine& line);

}  // namespace tencache
