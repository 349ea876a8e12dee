// The GPU part of a validation report: where throughput is off, by GPU, model and sequence.
#pragma once

#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "studies/validation/gpu.h"

namespace tencache {

// What a row of a throughput table is for.
enum class RatioUse : std::uint8_t { fit, judge, list };
BOOST_DESCRIBE_ENUM(RatioUse, fit, judge, list)
TENCACHE_ANSWER(RatioFigures, rows, median_ratio, median_error, p90_error, worst_error)

struct UseOfGpu {
  RatioUse use = RatioUse::judge;
  std::string gpu;
};
TENCACHE_ANSWER(UseOfGpu, use, gpu)

struct GpuAccuracy : UseOfGpu, RatioFigures {};
BOOST_DESCRIBE_STRUCT(GpuAccuracy, (UseOfGpu, RatioFigures), ())

std::vector<GpuAccuracy> accuracies_of(const std::vector<TrainingRatio>& ratios);

// The same as a table; of several GPUs also all together.
DocumentTable accuracy_table(const std::vector<TrainingRatio>& ratios);
// Median ratios, simulated ÷ published, with the number of rows: a column for each GPU, a line for each model,
// sequence, recomputation and number of GPUs.
DocumentTable pattern_table(const std::vector<TrainingRatio>& ratios);
// Whether a table of throughput is too long to be read row by row.
bool by_pattern(const std::vector<TrainingRatio>& ratios);

}  // namespace tencache
