// Time against one or two figures of the machine (studies/machine_parameter.h), under several policies, with the knee.
//
// The knee of a line is the least value beyond which nothing is gained: neither a larger value of the grid nor the
// figure without limit, everything else as it is, is more than the tolerance (1 % unless told) faster than it. So it
// does not depend on where the range ends, as definitions by curvature do (Satopää et al., "Finding a kneedle in a
// haystack", ICDCS workshops 2011), and it holds for policies that are not the faster the faster the machine is. It is
// found on the grid first and then by bisection in the logarithm between the last value that is not enough and the
// next, to 1 % of the value.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "studies/machine_parameter.h"

namespace tencache {

struct SensitivityAxis {
  MachineParameter parameter;
  std::vector<double> values;  // ascending
};

struct SensitivityPoint {
  double value = std::numeric_limits<double>::infinity();  // infinite: without limit
  bool fits = false;
  std::optional<std::string> reason = {};  // why it does not fit
  double iteration_seconds = std::numeric_limits<double>::quiet_NaN();
  // In a few words, for tables: "out of memory", "too slow: over 100 years", "refused".
  std::string verdict = {};
};

enum class KneeState : std::uint8_t {
  found,
  below_range,  // the least value of the range is already enough
  above_range,  // without limit it is still faster than at every value of the grid
  never_fits,   // not even unlimited
};

// One policy at one value of the second axis.
struct SensitivityLine {
  std::string policy;  // or bound_line
  std::optional<double> second_value;
  std::vector<SensitivityPoint> points;  // one a value of the first axis
  SensitivityPoint unlimited;            // the first axis' figure without limit
  KneeState knee_state = KneeState::never_fits;
  std::optional<SensitivityPoint> knee;  // if found
  std::string summary;                   // the knee in words, once it is an answer
};

// The lower bound (studies/bound.h) as a line.
inline constexpr const char* bound_line = "bound";

struct SensitivityRequest {
  const Trace* trace = nullptr;
  const MachineSpec* machine = nullptr;
  RunLimits limits;
  std::vector<std::string> policies;                                   // or bound_line
  std::map<std::string, std::map<std::string, std::string>> settings;  // of policies
  std::vector<SensitivityAxis> axes;                                   // one or two
  double tolerance = 0.01;
  // Called from several threads, one at a time: simulations over, and about how many there will be.
  std::function<void(std::size_t done, std::size_t expected)> progress;
};

struct SensitivityResult {
  std::vector<SensitivityLine> lines;  // by policy, then by value of the second axis
  std::uint64_t simulations = 0;
};

// On all cores; the result does not depend on how many there are. What a machine cannot serve, what a policy refuses
// and what takes more than a hundred years is a point that does not fit: it is no knee and no time to compare with.
SensitivityResult analyse_sensitivity(const SensitivityRequest& request);

// Sets the knee of a line whose points and `unlimited` are there. `simulate` gives the point at any value.
void find_knee(SensitivityLine& line, double tolerance, const std::function<SensitivityPoint(double)>& simulate);

// Whether the line is slower without limit than at its knee, by more than the tolerance: its policy is not the faster
// the faster the machine is.
bool slower_without_limit(const SensitivityPoint& knee, const SensitivityPoint& unlimited, double tolerance);

// `count` values from `from` to `to`, evenly in the logarithm, both ends exact.
std::vector<double> logarithmic_values(double from, double to, std::size_t count);

}  // namespace tencache
