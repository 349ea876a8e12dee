#include "answers/intervals.h"

#include <fmt/format.h>

#include <cmath>

namespace tencache {

void add_interval(Json& result, const Intervals& intervals, const Interval& interval) {
  if (intervals.samples == 0) return;
  const auto bound = [](double seconds) { return std::isfinite(seconds) ? Json(seconds) : Json(nullptr); };
  result["interval_seconds"] = {bound(interval.low), bound(interval.high)};
  result["samples"] = intervals.samples;
  result["misfit_samples"] = interval.misfits();
  result["fastest_samples"] = interval.fastest;
  result["ties_with_best"] = interval.ties_with_best;
  Json causes = Json::array();
  for (const Influence& influence : interval.influences) {
    const UncertainFigure& figure = intervals.figures[influence.figure];
    causes.push_back({{"figures", figure.paths}, {"confidence", figure.confidence}, {"share", influence.share}});
  }
  result["depends_on"] = std::move(causes);
}

std::string interval_text(const Intervals& intervals) {
  if (intervals.samples == 0) return "";
  const Interval& interval = intervals.policies.front();
  std::string text = fmt::format("  interval       {} in 90 % of {} samples of {}\n", format_interval(interval),
                                 intervals.samples, intervals.drawn());
  std::string causes;
  for (const Influence& influence : interval.influences) {
    causes +=
        fmt::format("{}{} {:.0f} %", causes.empty() ? "" : ", ", intervals.name_of(influence), 100 * influence.share);
  }
  if (!causes.empty()) text += fmt::format("  depends on     {}\n", causes);
  return text;
}

std::string format_interval(const Interval& interval) {
  if (!std::isfinite(interval.low)) return "does not fit";
  const double size = std::isfinite(interval.high) ? interval.high : interval.low;
  const double unit = size >= 1 ? 1 : size >= 1e-3 ? 1e-3 : 1e-6;
  const char* const name = size >= 1 ? "s" : size >= 1e-3 ? "ms" : "us";
  const int digits = size / unit >= 100 ? 0 : size / unit >= 10 ? 1 : 2;
  const std::string high =
      std::isfinite(interval.high) ? fmt::format("{:.{}f}", interval.high / unit, digits) : std::string("∞");
  return fmt::format("{:.{}f}–{} {}", interval.low / unit, digits, high, name);
}

}  // namespace tencache
