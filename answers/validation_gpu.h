// The GPU part of a validation report: where throughput is off, by GPU, model and sequence.
#pragma once

#include <string>
#include <vector>

#include "answers/json.h"
#include "studies/validation/gpu.h"

namespace tencache {

using Grid = std::vector<std::vector<std::string>>;  // its first row is the header
std::string text_of(const Grid& grid);
std::string markdown_of(const Grid& grid);

// Median ratios, simulated ÷ published, with the number of rows: a column for each GPU, a line for each model,
// sequence, recomputation and number of GPUs.
Grid pattern_grid(const std::vector<TrainingRatio>& ratios);
// Of fit, judged and other rows, by GPU: how many, median ratio, median error, p90 and worst error.
Grid accuracy_grid(const std::vector<TrainingRatio>& ratios);
// The same as JSON.
Json accuracy_json(const std::vector<TrainingRatio>& ratios);

// Whether a table of throughput is too long to be read row by row.
bool by_pattern(const std::vector<TrainingRatio>& ratios);
// Both grids for the terminal, the first of tables that are long.
std::string patterns_text(const ValidationResult& result);

}  // namespace tencache
