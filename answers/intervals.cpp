#include "answers/intervals.h"

#include <fmt/format.h>

#include <cmath>

namespace tencache {

void add_interval(ResultSamples& result, const Intervals& intervals, const Interval& interval) {
  if (intervals.samples == 0) return;
  result = {.interval_seconds = std::pair(interval.low, interval.high),
            .samples = intervals.samples,
            .misfit_samples = interval.misfits(),
            .fastest_samples = interval.fastest,
            .ties_with_best = interval.ties_with_best,
            .depends_on = std::vector<DependsOn>()};
  for (const Influence& influence : interval.influences) {
    const UncertainFigure& figure = intervals.figures[influence.figure];
    result.depends_on->push_back({figure.paths, figure.confidence, influence.share});
  }
}

std::string interval_text(const Intervals& intervals) {
  if (intervals.samples == 0) return "";
  const Interval& interval = intervals.policies.front();
  std::string text = fmt::format("  interval       {} in 90 % of {} samples of {}\n",
                                 format_interval({interval.low, interval.high}), intervals.samples, intervals.drawn());
  std::string causes;
  for (const Influence& influence : interval.influences) {
    causes +=
        fmt::format("{}{} {:.0f} %", causes.empty() ? "" : ", ", intervals.name_of(influence), 100 * influence.share);
  }
  if (!causes.empty()) text += fmt::format("  depends on     {}\n", causes);
  return text;
}

std::string format_interval(const std::pair<double, double>& interval) {
  const auto [low, high_end] = interval;
  if (!std::isfinite(low)) return "does not fit";
  const double size = std::isfinite(high_end) ? high_end : low;
  const double unit = size >= 1 ? 1 : size >= 1e-3 ? 1e-3 : 1e-6;
  const char* const name = size >= 1 ? "s" : size >= 1e-3 ? "ms" : "us";
  const int digits = size / unit >= 100 ? 0 : size / unit >= 10 ? 1 : 2;
  const std::string high = std::isfinite(high_end) ? fmt::format("{:.{}f}", high_end / unit, digits) : std::string("∞");
  return fmt::format("{:.{}f}–{} {}", low / unit, digits, high, name);
}

}  // namespace tencache
