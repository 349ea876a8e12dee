// Ratios of simulated to published throughput, put together by GPU, model and sequence.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "studies/validation/run.h"

namespace tencache {

struct RatioFigures {
  std::size_t rows = 0;
  double median_ratio = 1, median_error = 0, p90_error = 0, worst_error = 0;  // errors: |ratio - 1|
};
RatioFigures ratio_figures(std::vector<double> ratios);

// The least of the values that nine tenths of them do not exceed. nullopt of none.
std::optional<double> p90_of(std::vector<double> values);

// A row of a throughput table that was simulated.
struct TrainingRatio {
  const TrainingRun* run = nullptr;
  bool fitted = false, judged = false;  // neither: listed only
  double ratio = 1;
};
std::vector<TrainingRatio> training_ratios(const ValidationResult& result);

// Each once, in the order in which they appear.
std::vector<std::string> gpus_of(const std::vector<TrainingRatio>& ratios);

RatioFigures figures_where(const std::vector<TrainingRatio>& ratios,
                           const std::function<bool(const TrainingRatio&)>& wanted);

}  // namespace tencache
