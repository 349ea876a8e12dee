#include "studies/validation/gpu.h"

#include <algorithm>
#include <cmath>

namespace tencache {

std::optional<double> p90_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  return values[(values.size() * 9 + 9) / 10 - 1];
}

RatioFigures ratio_figures(std::vector<double> ratios) {
  RatioFigures figures;
  figures.rows = ratios.size();
  if (ratios.empty()) return figures;
  std::vector<double> errors;
  for (const double ratio : ratios) errors.push_back(std::abs(ratio - 1));
  figures.median_ratio = *median_of(std::move(ratios));
  figures.median_error = *median_of(errors);
  figures.p90_error = *p90_of(errors);
  figures.worst_error = *std::ranges::max_element(errors);
  return figures;
}

std::vector<TrainingRatio> training_ratios(const ValidationResult& result) {
  std::vector<TrainingRatio> ratios;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const std::vector<ValidationRow>& rows = result.file->experiments[i].rows;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const ValidationRow& row = rows[r];
      const std::optional<double>& error = result.rows[i][r].error;
      if (!row.training || !error) continue;
      ratios.push_back({&*row.training, row.fitted, !row.fitted && row.not_judged.empty(), 1 + *error});
    }
  }
  return ratios;
}

std::vector<std::string> gpus_of(const std::vector<TrainingRatio>& ratios) {
  std::vector<std::string> names;
  for (const TrainingRatio& ratio : ratios) {
    if (std::ranges::find(names, ratio.run->gpu) == names.end()) names.push_back(ratio.run->gpu);
  }
  return names;
}

RatioFigures figures_where(const std::vector<TrainingRatio>& ratios,
                           const std::function<bool(const TrainingRatio&)>& wanted) {
  std::vector<double> chosen;
  for (const TrainingRatio& ratio : ratios) {
    if (wanted(ratio)) chosen.push_back(ratio.ratio);
  }
  return ratio_figures(std::move(chosen));
}

}  // namespace tencache
