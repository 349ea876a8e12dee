// Intervals of samples (studies/intervals.h) as JSON and text.
#pragma once

#include <string>
#include <utility>

#include "answers/result.h"
#include "studies/intervals.h"

namespace tencache {

// Sets `interval_seconds`, `samples`, `misfit_samples`, `fastest_samples`, `ties_with_best` and `depends_on` of a
// result.
void add_interval(ResultSamples& result, const Intervals& intervals, const Interval& interval);
// For the text of one policy's result: the interval and what it depends on. Empty without samples.
std::string interval_text(const Intervals& intervals);
// "7.1–8.0 s": in the unit of the larger bound.
std::string format_interval(const std::pair<double, double>& interval);

}  // namespace tencache
