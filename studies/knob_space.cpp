#include "studies/knob_space.h"

#include <algorithm>

namespace tencache {

KnobSpace::KnobSpace(const TuneProblem& problem) : problem_(problem) {
  for (const Knob& knob : problem_.knobs) {
    defaults_.push_back(index_of(knob, default_of(knob)).value_or(unset));
    origin_.push_back(defaults_.back() == unset ? 0 : defaults_.back());
  }
}

double KnobSpace::combinations() const {
  double combinations = 1;
  for (const Knob& knob : problem_.knobs) combinations *= static_cast<double>(knob.values.size());
  return combinations;
}

bool KnobSpace::has_effect(const Knob& knob, const Point& point) const {
  return std::ranges::all_of(knob.only_with, [&](const auto& condition) {
    for (std::size_t i = 0; i < problem_.knobs.size(); ++i) {
      if (problem_.knobs[i].name == condition.first && point[i] != unset) {
        return problem_.knobs[i].values[point[i]] == condition.second;
      }
    }
    const auto fixed = problem_.fixed.find(condition.first);
    return (fixed == problem_.fixed.end() ? problem_.defaults.at(condition.first) : fixed->second) == condition.second;
  });
}

KnobSpace::Point KnobSpace::without_effectless(Point point) const {
  const Point original = point;
  for (std::size_t i = 0; i < point.size(); ++i) {
    if (!has_effect(problem_.knobs[i], original)) point[i] = defaults_[i];
  }
  return point;
}

Settings KnobSpace::settings_of(const Point& point) const {
  Settings settings = problem_.fixed;
  for (std::size_t i = 0; i < point.size(); ++i) {
    if (point[i] != unset && point[i] != defaults_[i]) {
      settings[problem_.knobs[i].name] = problem_.knobs[i].values[point[i]];
    }
  }
  if (problem_.complete) problem_.complete(settings);
  return settings;
}

std::size_t KnobSpace::changed(const Point& point) const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < point.size(); ++i) count += point[i] != defaults_[i] ? 1 : 0;
  return count;
}

std::size_t KnobSpace::distance(const Point& point) const {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < point.size(); ++i) {
    if (point[i] == defaults_[i]) continue;
    const bool far = !problem_.knobs[i].ordered || defaults_[i] == unset || point[i] == unset;
    sum += far ? 1 : std::max(point[i], defaults_[i]) - std::min(point[i], defaults_[i]);
  }
  return sum;
}

std::vector<KnobSpace::Point> KnobSpace::neighbours(const Point& point, std::size_t knob) const {
  std::vector<Point> list;
  const std::size_t count = problem_.knobs[knob].values.size(), at = point[knob];
  for (std::size_t value = 0; value < count; ++value) {
    const std::size_t steps = value > at ? value - at : at - value;
    const bool near = !problem_.knobs[knob].ordered || at == unset || steps == 1 || steps == 2 || steps == 4;
    if (value == at || !near) continue;
    list.push_back(point);
    list.back()[knob] = value;
  }
  return list;
}

std::vector<KnobSpace::Point> KnobSpace::all() const {
  std::vector<Point> all{Point(problem_.knobs.size(), 0)};
  for (std::size_t i = 0; i < problem_.knobs.size(); ++i) {
    const std::size_t before = all.size();
    for (std::size_t value = 1; value < problem_.knobs[i].values.size(); ++value) {
      for (std::size_t j = 0; j < before; ++j) {
        all.push_back(all[j]);
        all.back()[i] = value;
      }
    }
  }
  return all;
}

}  // namespace tencache
