#include "executor/training_result.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace tencache {
namespace {

// The steps that count for figures: not the one that warms up and not the one that is recorded.
std::span<const Nanoseconds> counted(const TrainingResult& result) {
  return std::span(result.step_ns).last(result.counted_steps());
}

}  // namespace

Nanoseconds TrainingResult::median_step_ns() const {
  const std::span<const Nanoseconds> steps = counted(*this);
  if (steps.empty()) return 0;
  std::vector<Nanoseconds> sorted(steps.begin(), steps.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Nanoseconds TrainingResult::mean_step_ns() const {
  const std::span<const Nanoseconds> steps = counted(*this);
  if (steps.empty()) return 0;
  return std::accumulate(steps.begin(), steps.end(), Nanoseconds{0}) / static_cast<Nanoseconds>(steps.size());
}

}  // namespace tencache
