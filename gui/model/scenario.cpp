#include "gui/model/scenario.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "cli/intervals.h"
#include "core/error.h"
#include "policies/registry.h"
#include "sim/bound.h"
#include "sim/simulate.h"
#include "traces/lower.h"

namespace tencache::gui {
namespace {

struct Stopped {};

// Longer than a person sees as one with the movement of the hand.
constexpr double long_planning_seconds = 0.03;
constexpr std::size_t interval_samples = 20;
// Beyond that the wait for an interval is not worth it.
constexpr double most_interval_seconds = 5;

double seconds_since_start(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

RunResult simulate_policy(const Scenario& scenario, Policy& policy, const Stop& stop, Timeline* timeline,
                          Program& program) {
  program = lower(*scenario.trace, policy, scenario.machine);
  EngineOptions engine;
  engine.timeline = timeline;
  engine.on_iteration = [&stop](std::uint64_t) {
    if (stop && stop()) throw Stopped();
  };
  RunLimits limits;
  if (scenario.iterations != 0) limits = {.max_iterations = scenario.iterations, .until_steady = false};
  return simulate(program, scenario.machine, policy, limits, std::move(engine));
}

// What a rank of several does alone says little; all of them are more than this shows.
void refuse_several_ranks(const Trace& trace) {
  for (const Op& op : trace.ops) {
    if (op.rank != 0)
      throw Error("the dashboard simulates traces of one rank; this one has several (see `tencache replay`)");
  }
}

SimulatedPointer simulate_with(const Scenario& scenario, const std::string& title, Policy& policy, const Stop& stop) {
  const auto start = std::chrono::steady_clock::now();
  auto simulated = std::make_shared<Simulated>();
  simulated->scenario = scenario;
  try {
    refuse_several_ranks(*scenario.trace);
    Recording recording;
    Program program;
    simulated->result = simulate_policy(scenario, policy, stop, &recording.timeline, program);
    simulated->fits = simulated->result.fits;
    simulated->reason = simulated->result.misfit;
    simulated->took_seconds = seconds_since_start(start);
    if (!recording.timeline.spans.empty()) {
      recording.title = title;
      recording.source = scenario.trace_name + " on " + scenario.machine.name;
      recording.machine = scenario.machine;
      recording.trace = std::move(program.trace);
      simulated->run = std::make_shared<const Run>(std::move(recording));
    }
  } catch (const Stopped&) {
    return nullptr;
  } catch (const Error& error) {
    simulated->fits = false;
    simulated->reason = error.what();
  }
  return simulated;
}

SimulatedPointer refusal(const Scenario& scenario, const Error& error) {
  auto refused = std::make_shared<Simulated>();
  refused->scenario = scenario;
  refused->reason = error.what();
  return refused;
}

}  // namespace

SimulatedPointer simulate_scenario(const Scenario& scenario, const Stop& stop, std::unique_ptr<RecordedPlan>* plan) {
  try {
    MadePolicy made = make_policy(scenario.policy, scenario.options);
    const std::string title = "predicted: " + scenario.policy;
    if (plan == nullptr) return simulate_with(scenario, title, *made.policy, stop);
    auto recorded = std::make_unique<RecordedPlan>(std::move(made.policy));
    SimulatedPointer simulated = simulate_with(scenario, title, recorded->recorder(), stop);
    if (simulated != nullptr && simulated->fits) *plan = std::move(recorded);
    return simulated;
  } catch (const Error& error) {
    return refusal(scenario, error);
  }
}

SimulatedPointer simulate_old_plan(const Scenario& scenario, const RecordedPlan& plan, const Stop& stop) {
  const std::unique_ptr<Policy> replay = plan.replay();
  const SimulatedPointer simulated =
      simulate_with(scenario, "predicted: old plan of " + scenario.policy, *replay, stop);
  if (simulated == nullptr) return nullptr;
  auto marked = std::make_shared<Simulated>(*simulated);
  marked->old_plan = true;
  return marked;
}

SimulatedPointer with_references(const SimulatedPointer& simulated, const Stop& stop) {
  if (!simulated->fits) return simulated;
  auto more = std::make_shared<Simulated>(*simulated);
  try {
    const Scenario& scenario = simulated->scenario;
    Program program;
    more->ideal_seconds =
        simulate_policy(scenario, *make_policy("ideal").policy, stop, nullptr, program).iteration_seconds();
    const Bound bound = lower_bound_of(*scenario.trace, scenario.machine);
    more->bound_seconds = bound.seconds;
    more->bound_term = bound.term;
  } catch (const Stopped&) {
    return nullptr;
  } catch (const Error&) {  // a machine that has no bound has none here
  }
  return more;
}

SimulatedPointer with_interval(const SimulatedPointer& simulated, std::size_t samples, const Stop& stop) {
  const MachineSampler sampler(simulated->scenario.machine);
  if (!simulated->fits || sampler.figures().empty() || samples == 0) return simulated;
  std::vector<double> seconds;
  Scenario scenario = simulated->scenario;
  for (const std::vector<double>& factors : sampler.factors(1, samples)) {
    if (stop && stop()) return nullptr;
    scenario.machine = sampler.machine(factors);
    try {
      const MadePolicy made = make_policy(scenario.policy, scenario.options);
      Program program;
      const RunResult result = simulate_policy(scenario, *made.policy, stop, nullptr, program);
      seconds.push_back(result.fits ? result.iteration_seconds() : std::numeric_limits<double>::infinity());
    } catch (const Stopped&) {
      return nullptr;
    } catch (const Error&) {
      seconds.push_back(std::numeric_limits<double>::infinity());
    }
  }
  std::ranges::sort(seconds);
  // Nearest rank, as cli/intervals.h.
  const auto rank = [&](double share) {
    return seconds[static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples))) - 1];
  };
  auto more = std::make_shared<Simulated>(*simulated);
  more->low_seconds = rank(0.05);
  more->high_seconds = rank(0.95);
  more->samples = samples;
  return more;
}

Simulator::Simulator() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

Simulator::~Simulator() {
  thread_.request_stop();
  ++requests_;
}

void Simulator::request(Scenario scenario) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::move(scenario);
    ++requests_;
  }
  changed_.notify_all();
}

SimulatedPointer Simulator::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, nullptr);
}

bool Simulator::busy() const {
  const std::lock_guard lock(mutex_);
  return working_ || wanted_.has_value();
}

void Simulator::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !working_ && !wanted_; });
}

void Simulator::give(SimulatedPointer result) {
  const std::lock_guard lock(mutex_);
  if (result != nullptr) done_ = std::move(result);
}

void Simulator::serve(const Scenario& scenario, const Stop& overtaken) {
  simulating_ = true;
  const bool same_policy = plan_ != nullptr && planned_.policy == scenario.policy &&
                           planned_.options == scenario.options &&
                           planned_.trace->ops.size() == scenario.trace->ops.size() &&
                           planned_.trace->tensors.size() == scenario.trace->tensors.size() &&
                           planned_.machine.tiers.size() == scenario.machine.tiers.size();
  if (same_policy && planning_seconds_ > long_planning_seconds) {
    const SimulatedPointer old = simulate_old_plan(scenario, *plan_, overtaken);
    if (old != nullptr && old->fits) give(old);
  }
  SimulatedPointer simulated = simulate_scenario(scenario, overtaken, &plan_);
  simulating_ = false;
  if (simulated == nullptr) return;
  planned_ = scenario;
  planning_seconds_ = simulated->took_seconds;
  give(simulated);
  if ((simulated = with_references(simulated, overtaken)) == nullptr) return;
  give(simulated);
  if (planning_seconds_ * interval_samples <= most_interval_seconds) {
    give(with_interval(simulated, interval_samples, overtaken));
  }
}

void Simulator::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return wanted_.has_value(); })) {
    const Scenario scenario = *std::exchange(wanted_, std::nullopt);
    const std::uint64_t request = requests_;
    working_ = true;
    lock.unlock();
    serve(scenario, [this, request] { return requests_ != request; });
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
}

}  // namespace tencache::gui
