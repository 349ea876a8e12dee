// The points that a tuning may try: a value of each knob, and the settings that these are.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "studies/tune.h"

namespace tencache {

class KnobSpace {
 public:
  static constexpr std::size_t unset = static_cast<std::size_t>(-1);
  // A value of each knob, by index; `unset`: the default, where it is none of the knob's values.
  using Point = std::vector<std::size_t>;

  // The problem outlives it.
  explicit KnobSpace(const TuneProblem& problem);

  const Point& defaults() const { return defaults_; }
  // The defaults, in their place the first value where the user's leave a default out.
  const Point& origin() const { return origin_; }
  const std::string& default_of(const Knob& knob) const { return problem_.defaults.at(knob.name); }
  double combinations() const;
  std::vector<Point> all() const;

  bool has_effect(const Knob& knob, const Point& point) const;
  // With the default of each knob that has no effect there.
  Point without_effectless(Point point) const;
  Settings settings_of(const Point& point) const;
  // How many knobs are not at their default, and how many steps that is.
  std::size_t changed(const Point& point) const;
  std::size_t distance(const Point& point) const;
  // The point with other values of one knob: of an ordered one those that are 1, 2 and 4 steps away, else all.
  std::vector<Point> neighbours(const Point& point, std::size_t knob) const;

 private:
  const TuneProblem& problem_;
  Point defaults_, origin_;
};

}  // namespace tencache
