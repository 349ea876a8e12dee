#include "studies/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "core/check.h"
#include "core/error.h"
#include "studies/bound.h"
#include "studies/parallel.h"
#include "studies/policy_run.h"

namespace tencache {
namespace {

constexpr double knee_precision = 1.01;      // neighbours of the bisection are this close
constexpr std::size_t usual_bisections = 6;  // for the count that is expected
constexpr const char* out_of_memory = "out of memory";
constexpr const char* over_a_century = "too slow: over 100 years";

class Analysis {
 public:
  explicit Analysis(const SensitivityRequest& request) : request_(request) {
    const std::size_t points = request.axes[0].values.size();
    for (const std::string& policy : request.policies) {
      const std::size_t count = request.axes.size() < 2 ? 1 : request.axes[1].values.size();
      for (std::size_t i = 0; i < count; ++i) {
        SensitivityLine line;
        line.policy = policy;
        if (request.axes.size() > 1) line.second_value = request.axes[1].values[i];
        line.points.resize(points);
        result_.lines.push_back(std::move(line));
      }
    }
    expected_ = result_.lines.size() * (points + 1 + usual_bisections);
  }

  SensitivityResult run() {
    const std::vector<double>& values = request_.axes[0].values;
    const std::size_t each = values.size() + 1;
    on_all_cores(result_.lines.size() * each, [&](std::size_t i) {
      SensitivityLine& line = result_.lines[i / each];
      const std::size_t point = i % each;
      if (point == values.size()) {
        line.unlimited = simulate_at(line, unlimited_value(request_.axes[0].parameter));
        line.unlimited.value = std::numeric_limits<double>::infinity();
      } else {
        line.points[point] = simulate_at(line, values[point]);
      }
    });
    on_all_cores(result_.lines.size(), [&](std::size_t i) {
      SensitivityLine& line = result_.lines[i];
      find_knee(line, request_.tolerance, [&](double value) { return simulate_at(line, value); });
    });
    result_.simulations = done_;
    return std::move(result_);
  }

 private:
  SensitivityPoint simulate_at(const SensitivityLine& line, double value) {
    SensitivityPoint point{.value = value};
    try {
      MachineSpec machine = with_parameter(request_.axes[0].parameter, *request_.machine, value);
      double speed = request_.axes[0].parameter.kind == MachineParameter::Kind::gpu_speed ? value : 1;
      if (line.second_value) {
        machine = with_parameter(request_.axes[1].parameter, machine, *line.second_value);
        if (request_.axes[1].parameter.kind == MachineParameter::Kind::gpu_speed) speed = *line.second_value;
      }
      if (speed == 1) {
        simulate_on(*request_.trace, machine, line.policy, point);
      } else {
        simulate_on(with_gpu_speed(*request_.trace, speed), machine, line.policy, point);
      }
    } catch (const TooSlow& error) {
      point.reason = error.what();
      point.verdict = over_a_century;
    } catch (const Error& error) {
      point.reason = error.what();
      point.verdict = "refused";
    }
    const std::lock_guard lock(mutex_);
    ++done_;
    if (request_.progress) request_.progress(done_, std::max(expected_, done_));
    return point;
  }

  void simulate_on(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   SensitivityPoint& point) const {
    if (policy == bound_line) {
      const Bound bound = lower_bound_of(trace, machine);
      if (bound.seconds > to_seconds(longest_clock_ns)) {
        throw TooSlow("no policy needs less than a hundred years; what binds: " + bound.term);
      }
      set(point, bound.misfit, bound.seconds);
      return;
    }
    const auto settings = request_.settings.find(policy);
    const Outcome outcome = run_policy(
        trace, machine, policy,
        settings == request_.settings.end() ? std::map<std::string, std::string>{} : settings->second, request_.limits);
    set(point, outcome.result.misfit, outcome.result.fits ? outcome.result.iteration_seconds() : 0);
  }

  static void set(SensitivityPoint& point, const std::string& misfit, double seconds) {
    point.fits = misfit.empty();
    if (point.fits) {
      point.iteration_seconds = seconds;
    } else {
      point.reason = misfit;
      point.verdict = out_of_memory;
    }
  }

  const SensitivityRequest& request_;
  SensitivityResult result_;
  std::mutex mutex_;
  std::size_t done_ = 0, expected_ = 0;
};

}  // namespace

void find_knee(SensitivityLine& line, double tolerance, const std::function<SensitivityPoint(double)>& simulate) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const auto seconds = [](const SensitivityPoint& point) { return point.fits ? point.iteration_seconds : never; };
  double best = seconds(line.unlimited);  // at and beyond the point that is looked at
  const auto is_enough = [&](const SensitivityPoint& point) {
    best = std::min(best, seconds(point));
    return point.fits && point.iteration_seconds <= best * (1 + tolerance);
  };
  std::size_t first = line.points.size();
  for (std::size_t i = line.points.size(); i-- > 0;) {
    if (is_enough(line.points[i])) first = i;
  }
  if (best == never) {
    line.knee_state = KneeState::never_fits;
  } else if (first == line.points.size()) {
    line.knee_state = KneeState::above_range;
  } else if (first == 0) {
    line.knee_state = KneeState::below_range;
  } else {
    // Nothing before `first` is as fast as what lies beyond, or it would be enough itself: `best` holds from here on.
    line.knee_state = KneeState::found;
    line.knee = line.points[first];
    double too_little = line.points[first - 1].value;
    while (line.knee->value / too_little > knee_precision) {
      const SensitivityPoint middle = simulate(std::sqrt(too_little * line.knee->value));
      if (is_enough(middle)) {
        line.knee = middle;
      } else {
        too_little = middle.value;
      }
    }
  }
}

bool slower_without_limit(const SensitivityPoint& knee, const SensitivityPoint& unlimited, double tolerance) {
  return knee.fits && (!unlimited.fits || unlimited.iteration_seconds > knee.iteration_seconds * (1 + tolerance));
}

SensitivityResult analyse_sensitivity(const SensitivityRequest& request) {
  TENCACHE_CHECK(request.trace != nullptr && request.machine != nullptr);
  TENCACHE_CHECK(!request.axes.empty() && request.axes.size() <= 2);
  for (const SensitivityAxis& axis : request.axes) {
    TENCACHE_CHECK(!axis.values.empty() && std::ranges::is_sorted(axis.values));
  }
  return Analysis(request).run();
}

std::vector<double> logarithmic_values(double from, double to, std::size_t count) {
  TENCACHE_CHECK(from > 0 && to >= from && count > 0);
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) {
    const double share = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    values.push_back(i + 1 == count && count > 1 ? to : from * std::pow(to / from, share));
  }
  return values;
}

}  // namespace tencache
