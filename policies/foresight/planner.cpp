#include "policies/foresight/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "core/units.h"
#include "policies/footprint.h"

namespace tencache {
namespace {

constexpr Nanoseconds worth = 1000;     // of its thousandths an iteration has to become shorter by one
constexpr Nanoseconds near = 50;        // nearer than that part of it to the compute, not all shares are looked through
constexpr double hardly_any = 10'000;   // of its parts, what persists may be written to storage in any case
constexpr Nanoseconds clear_gain = 20;  // a larger part than that is not by chance
constexpr ForesightTrials::Length of_first{4, 2}, of_change{2, 2}, of_last{6, 4}, of_doubt{6, 18};

}  // namespace

ForesightPlanner::ForesightPlanner(const RehearseTrace& rehearse, ForesightTrials::Make make,
                                   const std::vector<CoarseTrace>& traces, PlanningLimits limits,
                                   Nanoseconds compute_ns)
    : traces_(traces), trials_(rehearse, std::move(make), traces.front()), limits_(limits), compute_ns_(compute_ns) {}

bool ForesightPlanner::never_waits() const { return hardly_waits(least_ns_, compute_ns_); }

// Nothing that could be changed makes it faster, or nothing may be tried any more.
bool ForesightPlanner::settled() const { return least_ns_ == 0 || never_waits() || trials_.events() >= allowed_; }

bool ForesightPlanner::attempt(ForesightPlan plan, const std::string& change) {
  if (settled()) return false;
  Rehearsal told = trials_.run(plan, of_change, least_ns_);
  if (!told.fits || !told.complete || told.iteration_ns == 0) return false;
  if (told.iteration_ns >= least_ns_ - least_ns_ / worth || static_cast<double>(told.stored) > most_written_)
    return false;
  least_ns_ = told.iteration_ns;
  best_recurs_ = told.recurs;
  best_ = std::move(plan);
  best_.start = std::move(told.tiers);
  notes_.push_back(format_duration(least_ns_) + " with " + change);
  return true;
}

// Over all of them, as there may be several minima, in the better order. Another share begins where tensors start
// without a plan: there are none on their way to where the updates were before.
void ForesightPlanner::scan_shares() {
  if (!best_.cpu_share) return;
  search_shares(1.0 / 16);
  search_order();
  const ForesightPlan around = best_;
  for (const double share : {0.5, 0.75, 0.25, 0.0, 0.375, 0.125, 1.0}) {
    if (std::abs(share - *around.cpu_share) < 1.0 / 16) continue;
    ForesightPlan plan = around;
    plan.cpu_share = share;
    plan.start.clear();
    attempt(plan, to_string(plan));
  }
  search_order();
}

void ForesightPlanner::search_shares(double finest) {
  if (!best_.cpu_share) return;
  for (double step = 1.0 / 16; step >= finest; step /= 2) {
    for (const double sign : {1.0, -1.0}) {
      for (double stride = step;;) {  // the longer, the longer it gets better
        ForesightPlan plan = best_;
        plan.cpu_share = *best_.cpu_share + sign * stride;
        const bool better =
            *plan.cpu_share >= 0 && *plan.cpu_share <= 1 && attempt(plan, "cpu_share=" + short_number(*plan.cpu_share));
        if (!better && stride == step) break;
        stride = !better ? step : limits_.careful ? stride : 2 * stride;
      }
    }
  }
}

void ForesightPlanner::search_order() {
  const std::vector<Op>& ops = trials_.trace().trace().ops;
  if (std::ranges::none_of(ops, [](const Op& op) { return op.reorderable; })) return;
  ForesightPlan plan = best_;
  plan.latest_first = !plan.latest_first;
  attempt(plan, plan.latest_first ? "sub-groups that are needed last first" : "sub-groups that are needed first first");
}

void ForesightPlanner::search_knobs() {
  for (const Exclusive exclusive : {Exclusive::both, Exclusive::gpu, Exclusive::none}) {
    if (!trials_.trace().has_storage() || exclusive == best_.knobs.exclusive) continue;
    ForesightPlan plan = best_;
    plan.knobs.exclusive = exclusive;
    attempt(plan, to_string(plan));
  }
  for (const double share : {1.0, 0.9, 0.8, 0.6}) {
    if (share == best_.knobs.gpu_share) continue;
    ForesightPlan plan = best_;
    plan.knobs.gpu_share = share;
    attempt(plan, "gpu_share=" + short_number(share));
  }
  ForesightPlan plan = best_;
  plan.knobs.follow = !plan.knobs.follow;
  attempt(plan, "follow changed");
}

// With what is left of the budget, some decisions of the best changed at once, at random.
void ForesightPlanner::search_widely() {
  if (!limits_.wide) return;
  std::mt19937_64 draws(1);
  const auto below = [&draws](std::uint64_t count) { return draws() % count; };
  const std::array<double, 7> shares = {1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.4};
  while (!settled()) {
    ForesightPlan plan = best_;
    if (below(4) == 0) plan.start.clear();
    for (std::uint64_t change = 0, changes = 1 + below(3); change < changes; ++change) {
      switch (below(7)) {
        case 0:
          if (plan.cpu_share) plan.cpu_share = static_cast<double>(below(65)) / 64;
          break;
        case 1:
          if (plan.cpu_share)
            plan.cpu_share = std::clamp(*plan.cpu_share + (static_cast<double>(below(17)) - 8) / 128, 0.0, 1.0);
          break;
        case 2:
          plan.latest_first = !plan.latest_first;
          break;
        case 3:
          plan.knobs.gpu_share = shares[below(shares.size())];
          break;
        case 4:
          plan.knobs.follow = !plan.knobs.follow;
          break;
        case 5:
          plan.knobs.exclusive = std::array{Exclusive::none, Exclusive::gpu, Exclusive::both}[below(3)];
          break;
        default:
          plan.knobs.in_flight = std::array<std::uint64_t, 4>{2, 3, 4, 8}[below(4)];
          break;
      }
    }
    attempt(plan, to_string(plan));
  }
}

// Goes on with another trace: what is best there at first, of that plan and the best up to now. False: the plan does
// not run there, and nothing has changed.
bool ForesightPlanner::begin(const CoarseTrace& trace, const ForesightPlan& first, std::uint64_t allowed) {
  const CoarseTrace& trace_before = trials_.trace();
  trials_.on(trace);
  Rehearsal told = trials_.run(first, of_first, 0);
  if (!told.fits || !told.complete || told.iteration_ns == 0) {
    trials_.on(trace_before);
    return false;
  }
  allowed_ = std::max(allowed, trials_.events() + told.events);
  const Nanoseconds least_before = std::exchange(least_ns_, told.iteration_ns);
  ForesightPlan before = std::exchange(best_, first);
  most_written_ = limits_.storage_limit * static_cast<double>(told.stored) +
                  static_cast<double>(persistent_bytes(trace.trace())) / hardly_any;
  best_.start = std::move(told.tiers);
  first_ = first;
  first_ns_ = least_ns_;
  first_recurs_ = best_recurs_ = told.recurs;
  notes_.push_back(format_duration(least_ns_) + " before planning, as " + std::to_string(trace.trace().ops.size()) +
                   " ops");
  if (least_before == 0) return true;
  before.start = trace.coarsened(trace_before.refined(before.start));
  if (attempt(before, to_string(before))) return true;
  before.start.clear();
  attempt(before, to_string(before));
  return true;
}

// A few iterations may have been a lucky start, and a small gain of a schedule that does not settle be chance: the plan
// that all began with stands if the best does not stay faster.
void ForesightPlanner::confirm() {
  if (least_ns_ == 0 || least_ns_ >= first_ns_) {  // nothing was better: nothing is changed
    best_ = first_;
    return;
  }
  if (best_recurs_) return;
  Rehearsal of_best = trials_.run(best_, of_last, 0);
  Nanoseconds first_ns = first_ns_;
  const auto stays_faster = [&] { return of_best.fits && of_best.complete && of_best.iteration_ns <= first_ns; };
  if (stays_faster() && !of_best.recurs && of_best.iteration_ns > first_ns - first_ns / clear_gain) {
    of_best = trials_.run(best_, of_doubt, 0);
    if (!first_recurs_) first_ns = trials_.run(first_, of_doubt, 0).iteration_ns;
  }
  if (stays_faster()) return;
  best_ = first_;
  least_ns_ = first_ns_;
  notes_.push_back("which did not last");
}

void ForesightPlanner::search(bool roughly) {
  if (roughly && least_ns_ > compute_ns_ + compute_ns_ / near) scan_shares();
  for (Nanoseconds before = 0; !settled() && least_ns_ != before;) {
    before = least_ns_;
    search_shares(roughly ? 1.0 / 16 : 1.0 / 64);
    search_order();
    search_knobs();
    if (roughly) break;
  }
}

ForesightPlan ForesightPlanner::plan(const ForesightPlan& first) {
  first_ = best_ = first;
  for (std::size_t i = 0; i < traces_.size(); ++i) {
    if (!begin(traces_[i], first, i + 1 < traces_.size() ? limits_.events * 2 / 5 : limits_.events)) break;
    search(i + 1 < traces_.size() || traces_.size() == 1);
    if (i + 1 == traces_.size()) search(false);
  }
  search_widely();
  confirm();
  notes_.push_back("planning stopped after " + std::to_string(trials_.count()) + " rehearsals, " +
                   std::to_string(trials_.events()) + " of " + std::to_string(limits_.events) + " events: " +
                   (least_ns_ == 0                       ? "no rehearsal came to its end, so nothing was changed"
                    : never_waits()                      ? "the GPU never waits"
                    : trials_.events() >= limits_.events ? "the budget is used"
                                                         : "no change makes the iteration shorter"));
  notes_.push_back("it runs with " + to_string(best_));
  best_.start = trials_.trace().refined(best_.start);
  return best_;
}

}  // namespace tencache
