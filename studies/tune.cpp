#include "studies/tune.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "core/check.h"
#include "studies/knob_space.h"
#include "studies/parallel.h"

namespace tencache {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::size_t unset = KnobSpace::unset;
using Point = KnobSpace::Point;

double median(std::vector<double> values) {
  if (values.empty()) return infinite;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Search {
 public:
  Search(const TuneProblem& problem, const TuneOptions& options)
      : problem_(problem), options_(options), space_(problem), random_(options.seed) {
    result_.combinations = space_.combinations();
  }

  TuneResult run() {
    try_defaults();
    try_starts();
    const auto affordable = options_.budget / runs_of_candidate();
    result_.exhaustive = result_.combinations <= static_cast<double>(affordable);
    if (result_.exhaustive) {
      try_all();
    } else {
      searching_ = true;
      reserve();
      search();
      searching_ = false;
    }
    // Looking at the best may come upon something faster: then that is looked at, until nothing faster is known. Enough
    // is kept for trying each of its changes without.
    for (std::size_t fastest = unset; fastest != best_;) {
      fastest = best_;
      limit_ = options_.budget;
      simplify();
      limit_ -= std::min(limit_, space_.changed(points_[result_.best]) * runs_of_candidate());
      look_around();
    }
    collect_untested();
    collect_ties();
    result_.simulations = simulations_;
    return std::move(result_);
  }

 private:
  std::uint64_t runs_of_candidate() const { return problem_.workloads * problem_.copies; }

  // ---- Simulations.

  void try_defaults() {
    limit_ = std::max<std::uint64_t>(options_.budget, runs_of_candidate() * (1 + problem_.starts.size()));
    points_.push_back(space_.defaults());
    result_.candidates.push_back(blank(space_.defaults()));
    known_[result_.candidates[0].settings] = 0;
    simulate({0}, 0, 1);
    simulate({0}, 1, problem_.copies);
    result_.reference_seconds = problem_.reference_seconds;
    result_.reference_seconds.resize(problem_.workloads, 1);
    for (std::size_t w = 0; w < problem_.workloads && result_.candidates[0].fits; ++w) {
      result_.reference_seconds[w] = result_.candidates[0].median_seconds(w);
    }
    judge(0);
  }

  Candidate blank(const Point& point) const {
    Candidate candidate;
    candidate.settings = space_.settings_of(point);
    candidate.changed = space_.changed(point);
    candidate.seconds.resize(problem_.workloads);
    return candidate;
  }

  // The rest is for the flatness and for the simplification, which tries each change of the best alone and all that
  // gain nothing at once. While nothing fits there is nothing to simplify.
  void reserve() {
    limit_ = options_.budget;
    if (!std::isfinite(score(best_))) return;
    const std::uint64_t simpler = 2 * (space_.changed(points_[best_]) + 1);
    const std::uint64_t rest = std::max<std::uint64_t>(
        std::min(options_.budget / 4, 3 * problem_.knobs.size() * runs_of_candidate()), simpler * runs_of_candidate());
    limit_ = options_.budget - std::min(options_.budget, rest);
  }

  // The candidates' indices, `unset` for those that the budget does not allow any more. Those not known yet are
  // simulated, on all threads.
  std::vector<std::size_t> try_points(const std::vector<Point>& points) {
    std::vector<std::size_t> indices, fresh;
    if (searching_) reserve();
    for (const Point& wanted : points) {
      const Point point = space_.without_effectless(wanted);
      const Settings settings = space_.settings_of(point);
      const auto [at, is_new] = known_.emplace(settings, result_.candidates.size());
      if (is_new) {
        if (simulations_ + (fresh.size() + 1) * runs_of_candidate() > limit_) {
          known_.erase(at);
          indices.push_back(unset);
          spent_ = true;
          continue;
        }
        fresh.push_back(at->second);
        points_.push_back(point);
        result_.candidates.push_back(blank(point));
      }
      indices.push_back(at->second);
    }
    simulate(fresh, 0, 1);
    const double first_best = first_copy_score(best_);
    std::vector<std::size_t> hopeful;
    for (const std::size_t index : fresh) {
      Candidate& candidate = result_.candidates[index];
      constexpr double hopeless = 1.1;
      candidate.capped = problem_.copies > 1 && candidate.fits &&
                         first_copy_score(index) > first_best * (hopeless + 2 * options_.spread);
      if (candidate.fits && !candidate.capped) hopeful.push_back(index);
    }
    simulate(hopeful, 1, problem_.copies);
    for (const std::size_t index : fresh) {
      judge(index);
      if (better(index, best_)) best_ = index;
    }
    return indices;
  }

  // Copies from `begin` to `end` of all workloads.
  void simulate(const std::vector<std::size_t>& indices, std::size_t begin, std::size_t end) {
    const std::size_t copies = end - begin, each = problem_.workloads * copies;
    std::vector<Measured> measured(indices.size() * each);
    on_all_cores(
        measured.size(),
        [&](std::size_t i) {
          const std::size_t run = i % each;
          measured[i] =
              problem_.measure(result_.candidates[indices[i / each]].settings, run / copies, begin + run % copies);
        },
        options_.threads);
    for (std::size_t i = 0; i < measured.size(); ++i) {
      Candidate& candidate = result_.candidates[indices[i / each]];
      if (begin == 0 && i % each == 0) candidate.fits = true;
      candidate.seconds[i % each / copies].push_back(measured[i].seconds);
      if (begin == 0 && i % each == 0) {
        candidate.work = measured[i].work;
        candidate.tokens = measured[i].tokens;
      }
      if (std::isfinite(measured[i].seconds)) continue;
      candidate.fits = false;
      if (candidate.misfit.empty()) candidate.misfit = measured[i].misfit;
    }
    simulations_ += measured.size();
    if (options_.progress) options_.progress(simulations_, options_.budget);
  }

  // As the score, of the first copies alone.
  double first_copy_score(std::size_t index) const {
    const Candidate& candidate = result_.candidates[index];
    if (!candidate.fits) return infinite;
    double sum = 0;
    for (std::size_t w = 0; w < problem_.workloads; ++w) {
      sum += std::log(candidate.seconds[w].front() / candidate.work / result_.reference_seconds[w]);
    }
    return std::exp(sum / static_cast<double>(problem_.workloads));
  }

  void judge(std::size_t index) {
    Candidate& candidate = result_.candidates[index];
    if (!candidate.fits || candidate.capped) return;
    double sum = 0;
    for (std::size_t w = 0; w < problem_.workloads; ++w) {
      sum += std::log(candidate.median_seconds(w) / candidate.work / result_.reference_seconds[w]);
    }
    candidate.score = std::exp(sum / static_cast<double>(problem_.workloads));
  }

  // Infinite for the defaults where the user's values leave them out.
  double score(std::size_t index) const {
    if (index == unset) return infinite;
    for (std::size_t i = 0; i < problem_.knobs.size(); ++i) {
      if (points_[index][i] == unset && space_.has_effect(problem_.knobs[i], points_[index])) return infinite;
    }
    return result_.candidates[index].score;
  }

  // Faster by more than rounding; of equals the one that changes less.
  bool better(std::size_t a, std::size_t b) const {
    constexpr double rounding = 1e-9;
    if (score(a) < score(b) * (1 - rounding)) return true;
    if (!(score(a) <= score(b) * (1 + rounding)) || !std::isfinite(score(a))) return false;
    const auto key = [&](std::size_t i) { return std::pair{space_.changed(points_[i]), space_.distance(points_[i])}; };
    return key(a) < key(b);
  }

  // ---- Search.

  std::size_t draw(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  Point random_point() {
    Point point = space_.origin();
    for (std::size_t i = 0; i < point.size(); ++i) point[i] = draw(problem_.knobs[i].values.size());
    return point;
  }

  Point exchanged(Point point, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t knob = draw(point.size());
      point[knob] = draw(problem_.knobs[knob].values.size());
    }
    return point;
  }

  void try_all() {
    const std::vector<Point> all = space_.all();
    constexpr std::size_t batch = 64;  // so that progress shows
    for (std::size_t begin = 0; begin < all.size(); begin += batch) {
      const std::size_t end = std::min(all.size(), begin + batch);
      try_points({all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)});
    }
  }

  void search() {
    constexpr std::size_t random_starts = 10, most = 100;
    std::vector<Point> points;
    const std::size_t affordable = static_cast<std::size_t>(limit_ / runs_of_candidate() / 5);
    for (std::size_t i = 0; i < std::min(random_starts, affordable); ++i) {
      points.push_back(i % 2 == 0 ? random_point() : exchanged(space_.origin(), 3));
    }
    try_points(points);
    // Nothing can be climbed while nothing fits.
    for (std::size_t i = 0; i < most && !std::isfinite(score(best_)) && !spent_; ++i) {
      try_points({random_point(), random_point(), random_point(), random_point()});
    }
    std::size_t current = climb(best_);
    std::uint64_t before = simulations_;
    for (std::size_t round = 1, dry = 0; !spent_ && dry < most; ++round) {
      const Point from = round % 5 == 0 ? random_point() : exchanged(points_[current], 3);
      const std::size_t start = try_points({from}).front();
      if (start != unset && std::isfinite(score(start))) {
        const std::size_t reached = climb(start);
        if (!better(current, reached)) current = reached;
      }
      dry = simulations_ == before ? dry + 1 : 0;
      before = simulations_;
    }
  }

  void try_starts() {
    std::vector<Point> points;
    for (const Settings& start : problem_.starts) {
      Point point = space_.origin();
      for (std::size_t i = 0; i < point.size(); ++i) {
        const auto at = start.find(problem_.knobs[i].name);
        if (at == start.end()) continue;
        if (const auto value = index_of(problem_.knobs[i], at->second)) point[i] = *value;
      }
      points.push_back(point);
    }
    for (const std::size_t index : try_points(points)) {
      result_.starts.push_back(index == unset ? std::nullopt : std::optional(index));
    }
  }

  // To a local optimum, by the best of each knob's neighbours.
  std::size_t climb(std::size_t from) {
    std::size_t current = from;
    std::vector<std::size_t> order(problem_.knobs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (bool improved = true; improved && !spent_;) {
      improved = false;
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw(i)]);
      for (const std::size_t knob : order) {
        if (!space_.has_effect(problem_.knobs[knob], points_[current])) continue;
        const double before = score(current);
        for (const std::size_t neighbour : try_points(space_.neighbours(points_[current], knob))) {
          if (neighbour != unset && better(neighbour, current)) current = neighbour;
        }
        improved = improved || score(current) < before * (1 - options_.tie / 10);
      }
    }
    return current;
  }

  // ---- What the optimum looks like.

  bool ties_with(std::size_t a, std::size_t b) const {
    return b != unset && std::isfinite(score(b)) &&
           tencache::ties(result_.candidates[a], result_.candidates[b], options_.tie);
  }

  // Ties are counted from the fastest there is, so that they do not add up.
  void simplify() {
    const Point& defaults = space_.defaults();
    const std::size_t fastest = best_;
    result_.best = fastest;
    if (!std::isfinite(score(fastest))) return;
    for (bool simpler = true; simpler;) {
      simpler = false;
      std::vector<Point> points;
      for (std::size_t i = 0; i < problem_.knobs.size(); ++i) {
        if (points_[result_.best][i] == defaults[i] || defaults[i] == unset) continue;
        points.push_back(points_[result_.best]);
        points.back()[i] = defaults[i];
      }
      std::size_t next = unset, gaining_nothing = 0;
      Point all = points_[result_.best];  // with all changes undone that gain nothing each for itself
      const std::vector<std::size_t> indices = try_points(points);
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const std::size_t index = indices[i];
        const bool candidate = index != unset && space_.changed(points_[index]) < space_.changed(points_[result_.best]);
        if (!candidate || !ties_with(fastest, index)) continue;
        if (next == unset || better(index, next)) next = index;
        ++gaining_nothing;
        for (std::size_t knob = 0; knob < all.size(); ++knob) {
          if (points[i][knob] == defaults[knob]) all[knob] = defaults[knob];
        }
      }
      if (gaining_nothing > 1) {
        const std::size_t index = try_points({all}).front();
        if (index != unset && ties_with(fastest, index)) next = index;
      }
      simpler = next != unset;
      if (simpler) result_.best = next;
    }
    const auto key = [&](std::size_t i) { return std::pair{space_.changed(points_[i]), space_.distance(points_[i])}; };
    for (std::size_t i = 0; i < result_.candidates.size(); ++i) {
      if (ties_with(fastest, i) && key(i) < key(result_.best)) result_.best = i;
    }
  }

  void look_around() {
    result_.flatness.clear();
    if (!std::isfinite(score(result_.best))) return;
    const Point best = points_[result_.best];  // trying points moves the list
    for (std::size_t i = 0; i < problem_.knobs.size(); ++i) {
      const Knob& knob = problem_.knobs[i];
      Flatness flatness{.knob = knob.name,
                        .value = best[i] == unset ? space_.default_of(knob) : knob.values[best[i]],
                        .has_effect = space_.has_effect(knob, best),
                        .steps = {}};
      std::vector<std::size_t> values;
      for (std::size_t value = 0; value < knob.values.size() && flatness.has_effect; ++value) {
        const bool step = best[i] != unset && (value + 1 == best[i] || value == best[i] + 1);
        if (value != best[i] && (step || !knob.ordered || value == space_.defaults()[i])) values.push_back(value);
      }
      std::vector<Point> points;
      for (const std::size_t value : values) {
        points.push_back(best);
        points.back()[i] = value;
      }
      const std::vector<std::size_t> indices = try_points(points);
      for (std::size_t j = 0; j < values.size(); ++j) {
        FlatnessStep step{.value = knob.values[values[j]], .simulated = indices[j] != unset, .fits = {}};
        if (step.simulated) {
          step.relative_time = ratio_to_best(indices[j]);
          step.fits = std::isfinite(step.relative_time);
          step.ties = ties_with(result_.best, indices[j]);
        }
        flatness.steps.push_back(std::move(step));
      }
      result_.flatness.push_back(std::move(flatness));
    }
  }

  // Where the budget ended before a change of the best was tried without.
  void collect_untested() {
    const Point& defaults = space_.defaults();
    const Point& best = points_[result_.best];
    for (std::size_t i = 0; i < best.size() && std::isfinite(score(result_.best)); ++i) {
      if (best[i] == defaults[i] || defaults[i] == unset) continue;
      Point without = best;
      without[i] = defaults[i];
      if (!known_.contains(space_.settings_of(space_.without_effectless(without)))) {
        result_.untested.push_back(problem_.knobs[i].name);
      }
    }
  }

  // A capped candidate is known by its first copies only.
  double ratio_to_best(std::size_t index) const {
    const Candidate& candidate = result_.candidates[index];
    if (!candidate.capped) return score(index) / score(result_.best);
    return first_copy_score(index) / first_copy_score(result_.best);
  }

  void collect_ties() {
    for (std::size_t i = 0; i < result_.candidates.size(); ++i) {
      if (i != result_.best && ties_with(result_.best, i)) result_.ties.push_back(i);
    }
    std::ranges::stable_sort(result_.ties, {}, [&](std::size_t i) {
      return std::pair{space_.changed(points_[i]), space_.distance(points_[i])};
    });
  }

  const TuneProblem& problem_;
  const TuneOptions& options_;
  const KnobSpace space_;
  std::mt19937_64 random_;
  std::vector<Point> points_;  // of each candidate
  std::map<Settings, std::size_t> known_;
  std::size_t best_ = 0;
  std::uint64_t simulations_ = 0, limit_ = 0;
  bool searching_ = false, spent_ = false;
  TuneResult result_;
};

}  // namespace

double Candidate::median_seconds(std::size_t workload) const { return fits ? median(seconds[workload]) : infinite; }

bool ties(const Candidate& a, const Candidate& b, double tie) {
  if (!a.fits || !b.fits || a.capped || b.capped) return false;
  // Workloads count alike: of each copy the geometric mean over them.
  const std::size_t copies = a.seconds.front().size();
  std::vector<double> ratios;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    double sum = 0;
    for (std::size_t w = 0; w < a.seconds.size(); ++w) {
      sum += std::log(b.seconds[w][copy] / b.work / (a.seconds[w][copy] / a.work));
    }
    ratios.push_back(std::exp(sum / static_cast<double>(a.seconds.size())));
  }
  if (std::fabs(median(ratios) - 1) <= tie) return true;
  if (copies == 1) return false;
  std::ranges::sort(ratios);
  const std::size_t cut = copies / 20;  // a twentieth at either end
  return ratios[cut] <= 1 && ratios[copies - 1 - cut] >= 1;
}

TuneResult tune(const TuneProblem& problem, const TuneOptions& options) {
  TENCACHE_CHECK(problem.workloads > 0 && problem.copies > 0);
  return Search(problem, options).run();
}

}  // namespace tencache
