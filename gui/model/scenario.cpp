#include "gui/model/scenario.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <utility>

#include "configs/generate_settings.h"
#include "core/error.h"
#include "core/forwarding_policy.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "studies/bound.h"
#include "studies/intervals.h"
#include "studies/policy_run.h"
#include "studies/workload.h"
#include "traces/transform/lower.h"
#include "traces/transform/scale.h"
#include "traces/transform/split_ranks.h"

namespace tencache::gui {
namespace {

struct Stopped {};

// Throws Stopped at its next event.
class StoppablePolicy : public ForwardingPolicy {
 public:
  StoppablePolicy(Policy& asked, const Stop& stop) : ForwardingPolicy(asked), stop_(stop) {}
  void on(const Event& event, const View& view, Actions& actions) override {
    if (stop_ && stop_()) throw Stopped();
    ForwardingPolicy::on(event, view, actions);
  }

 private:
  const Stop& stop_;
};

// Longer than a person sees as one with the movement of the hand.
constexpr double long_planning_seconds = 0.03;
constexpr int simulating_niceness = 6;
constexpr std::uint64_t old_plan_iterations = 2;  // it stands in for less than a second

// Of the calling thread: what a computer's other work does not change.
double processor_seconds() {
  std::timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_since_start(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A plan names ops and tensors by their numbers.
bool same_program(const Trace& a, const Trace& b) {
  if (&a == &b) return true;
  const auto same_names = [&](const auto& first, const auto& second) {
    return std::ranges::equal(first, second,
                              [&](const auto& x, const auto& y) { return a.names[x.name] == b.names[y.name]; });
  };
  return same_names(a.ops, b.ops) && same_names(a.tensors, b.tensors);
}

// What asks now and then whether to stop. A planner that simulates takes longer than all else: its simulations are
// where it can be stopped. `stop` outlives it.
Recorders stoppable(const Stop& stop) {
  Recorders recorders;
  recorders.on_iteration = [&stop](std::uint64_t) {
    if (stop && stop()) throw Stopped();
  };
  recorders.rehearse = [&stop](const Program& planned, const MachineSpec& machine, Policy& candidate,
                               std::uint64_t max_events) {
    StoppablePolicy policy(candidate, stop);
    return rehearse(planned, machine, policy, max_events);
  };
  return recorders;
}

RunResult simulate_policy(const Scenario& scenario, Policy& policy, const Stop& stop, Timeline* timeline,
                          Program& program) {
  program = lower(*scenario.trace, policy, scenario.machine);
  EngineOptions engine;
  engine.timeline = timeline;
  Recorders recorders = stoppable(stop);
  engine.on_iteration = std::move(recorders.on_iteration);
  engine.rehearse = std::move(recorders.rehearse);
  return simulate(program, scenario.machine, policy, limits_of(scenario.iterations), std::move(engine));
}

// The figures alone, of any number of ranks.
RunResult simulate_figures(const Scenario& scenario, const Stop& stop) {
  if (rank_count(*scenario.trace) > 1) {
    return tencache::simulate_policy(*scenario.trace, scenario.machine, scenario.policy, scenario.options,
                                     limits_of(scenario.iterations), stoppable(stop))
        .result;
  }
  Program program;
  return simulate_policy(scenario, *make_policy(scenario.policy, scenario.options).policy, stop, nullptr, program);
}

RunPointer run_of(const Scenario& scenario, std::string title, const MachineSpec& machine, Trace trace,
                  Timeline timeline) {
  if (timeline.spans.empty()) return nullptr;
  Recording recording;
  recording.title = std::move(title);
  recording.source = scenario.trace_name + " on " + scenario.machine.name;
  recording.machine = machine;
  recording.trace = std::move(trace);
  recording.timeline = std::move(timeline);
  return std::make_shared<const Run>(std::move(recording));
}

void simulate_several_ranks(const Scenario& scenario, const std::string& title, const Stop& stop,
                            Simulated& simulated) {
  Timeline first;
  std::vector<Timeline> others;
  Recorders recorders = stoppable(stop);
  recorders.timeline = &first;
  recorders.other_timelines = &others;
  Outcome outcome = tencache::simulate_policy(*scenario.trace, scenario.machine, scenario.policy, scenario.options,
                                              limits_of(scenario.iterations), recorders);
  simulated.result = outcome.result;
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    RunPointer run =
        run_of(scenario, title + ", rank " + std::to_string(rank), scenario.machine.of_rank(rank),
               std::move(outcome.ranks[rank].program.trace), std::move(rank == 0 ? first : others[rank - 1]));
    if (run == nullptr) continue;
    if (rank == outcome.rank) simulated.run = run;
    simulated.ranks.push_back(std::move(run));
  }
}

SimulatedPointer simulate_with(const Scenario& scenario, const std::string& title, Policy& policy, const Stop& stop) {
  const auto start = std::chrono::steady_clock::now();
  auto simulated = std::make_shared<Simulated>();
  simulated->scenario = scenario;
  try {
    if (rank_count(*scenario.trace) > 1) {
      simulate_several_ranks(scenario, title, stop, *simulated);
    } else {
      Timeline timeline;
      Program program;
      simulated->result = simulate_policy(scenario, policy, stop, &timeline, program);
      simulated->run = run_of(scenario, title, scenario.machine, std::move(program.trace), std::move(timeline));
    }
    simulated->fits = simulated->result.fits;
    simulated->reason = simulated->result.misfit;
    simulated->took_seconds = seconds_since_start(start);
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

void set_trace(Scenario& scenario, Trace trace) {
  scenario.durations.clear();
  const std::string hardware = trace.header.hardware;
  std::optional<Rescaling> rescaling;
  try {
    rescaling = rescale_to_machine(trace, scenario.machine, scenario.rescale);
    if (rescaling) scenario.durations = "durations rescaled from " + rescaling->from + " to " + rescaling->to;
  } catch (const Error&) {
    if (!scenario.rescale.assume_gpu.empty()) throw;
    scenario.rescale.no_rescale = true;
    scenario.durations =
        "durations as recorded" + (hardware.empty() ? "" : " on " + hardware) + ", not on " + scenario.machine.gpu;
  }
  scenario.gpu_time = modelled_gpu_time(trace, rescaling);
  if (scenario.scale_bytes != 1 || scenario.scale_time != 1) {
    scale_trace(trace, scenario.scale_bytes, scenario.scale_time);
  }
  scenario.trace = std::make_shared<const Trace>(std::move(trace));
}

Scenario with_changed_trace(Scenario scenario) {
  if (scenario.batch != 0 && scenario.batch != scenario.trace->header.batch) {
    std::optional<GenerateSettings> settings = generate_settings_of(scenario.trace->header.recorded_by);
    if (!settings) throw Error("the batch of a trace that was not generated cannot be changed");
    for (auto& [name, value] : *settings) {
      if (name == "batch") value = std::to_string(scenario.batch);
    }
    set_trace(scenario, generate_trace(*settings));
  }
  if (scenario.gpu_speed != 1) {
    auto faster = std::make_shared<Trace>(*scenario.trace);
    for (Op& op : faster->ops) {
      if (op.device != Device::gpu) continue;
      op.duration_ns = static_cast<Nanoseconds>(std::llround(static_cast<double>(op.duration_ns) / scenario.gpu_speed));
    }
    scenario.trace = std::move(faster);
  }
  scenario.batch = 0;
  scenario.gpu_speed = 1;
  return scenario;
}

SimulatedPointer simulate_scenario(const Scenario& wanted, const Stop& stop, std::unique_ptr<RecordedPlan>* plan) {
  try {
    const Scenario scenario = with_changed_trace(wanted);
    MadePolicy made = make_policy(scenario.policy, scenario.options);
    const std::string title = "predicted: " + scenario.policy;
    if (plan == nullptr) return simulate_with(scenario, title, *made.policy, stop);
    auto recorded = std::make_unique<RecordedPlan>(std::move(made.policy));
    SimulatedPointer simulated = simulate_with(scenario, title, recorded->recorder(), stop);
    if (simulated != nullptr && simulated->fits) *plan = std::move(recorded);
    return simulated;
  } catch (const Error& error) {
    return refusal(wanted, error);
  }
}

SimulatedPointer simulate_old_plan(const Scenario& scenario, const RecordedPlan& plan, const Stop& stop) {
  const std::unique_ptr<Policy> replay = plan.replay();
  Scenario brief = scenario;
  if (brief.iterations == 0) brief.iterations = old_plan_iterations;
  const SimulatedPointer simulated = simulate_with(brief, "predicted: old plan of " + scenario.policy, *replay, stop);
  if (simulated == nullptr) return nullptr;
  auto marked = std::make_shared<Simulated>(*simulated);
  marked->scenario = scenario;
  marked->old_plan = true;
  return marked;
}

SimulatedPointer with_references(const SimulatedPointer& simulated, const Stop& stop) {
  if (!simulated->fits) return simulated;
  auto more = std::make_shared<Simulated>(*simulated);
  try {
    Scenario scenario = simulated->scenario;
    scenario.policy = "ideal";
    scenario.options.clear();
    more->ideal_seconds = simulate_figures(scenario, stop).iteration_seconds();
    const Bound bound = lower_bound_of(*scenario.trace, scenario.machine);
    const References references{.ideal_seconds = more->ideal_seconds,
                                .bound_seconds = bound.seconds,
                                .bound_term = bound.term,
                                .any_run_bound_seconds = bound.any_run_seconds};
    more->bound_seconds = references.bound_of(simulated->result);
    more->bound_term = bound.term;
  } catch (const Stopped&) {
    return nullptr;
  } catch (const Error&) {  // a machine that has no bound has none here
  }
  return more;
}

SimulatedPointer with_interval(const SimulatedPointer& simulated, std::size_t samples, const Stop& stop) {
  const MachineSampler sampler(simulated->scenario.machine);
  const std::optional<GpuTime>& gpu_time = simulated->scenario.gpu_time;
  if (!simulated->fits || (sampler.figures().empty() && !gpu_time) || samples == 0) return simulated;
  std::vector<double> seconds;
  Scenario scenario = simulated->scenario;
  const std::vector<std::vector<double>> factors = sampler.factors(1, samples);
  std::vector<KernelFactors> of_kernels;
  if (gpu_time) of_kernels = draw_kernel_factors(*gpu_time, 1, samples);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    if (stop && stop()) return nullptr;
    scenario.machine = sampler.machine(factors[sample]);
    if (gpu_time) {
      scenario.trace =
          std::make_shared<const Trace>(with_kernel_factors(*simulated->scenario.trace, of_kernels[sample]));
    }
    try {
      const RunResult result = simulate_figures(scenario, stop);
      seconds.push_back(result.fits ? result.iteration_seconds() : std::numeric_limits<double>::infinity());
    } catch (const Stopped&) {
      return nullptr;
    } catch (const Error&) {
      seconds.push_back(std::numeric_limits<double>::infinity());
    }
  }
  auto more = std::make_shared<Simulated>(*simulated);
  more->low_seconds = percentile(seconds, 5);
  more->high_seconds = percentile(seconds, 95);
  more->samples = samples;
  return more;
}

void simulate_behind_drawing() {
  // Refused: it is as it was.
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), simulating_niceness));
}

Simulator::Simulator()
    : at_once_thread_(
          [this](const std::stop_token& stop) { work(stop, &Simulator::at_once_, &Simulator::simulate_at_once); }),
      behind_thread_([this](const std::stop_token& stop) {
        simulate_behind_drawing();
        work(stop, &Simulator::behind_, &Simulator::simulate_behind);
      }) {}

Simulator::~Simulator() {
  at_once_thread_.request_stop();
  behind_thread_.request_stop();
  {
    const MutexLock lock(mutex_);
    ++requests_;
  }
  changed_.notify_all();
}

void Simulator::request(Scenario scenario) {
  {
    const MutexLock lock(mutex_);
    at_once_.wanted = scenario;
    behind_.wanted = std::move(scenario);
    ++requests_;
  }
  changed_.notify_all();
}

SimulatedPointer Simulator::take() {
  const MutexLock lock(mutex_);
  return std::exchange(done_, nullptr);
}

bool Simulator::busy() const {
  const MutexLock lock(mutex_);
  return !behind_.idle() || !at_once_.idle();
}

void Simulator::wait() const {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() TENCACHE_REQUIRES(mutex_) { return behind_.idle() && at_once_.idle(); });
}

void Simulator::forget() {
  {
    const MutexLock lock(mutex_);
    behind_.wanted.reset();
    at_once_.wanted.reset();
    done_ = nullptr;
    ++requests_;
  }
  changed_.notify_all();
}

// An old plan is of no use any more once the new one is there.
void Simulator::give(SimulatedPointer result, std::uint64_t request) {
  const MutexLock lock(mutex_);
  if (result == nullptr || requests_ != request) return;
  if (result->old_plan && whole_request_ == request) return;
  done_ = std::move(result);
}

SimulatedPointer Simulator::simulate_whole(const Scenario& wanted, std::uint64_t request) {
  const double before = processor_seconds();
  std::unique_ptr<RecordedPlan> plan;
  SimulatedPointer simulated;
  try {
    const Scenario scenario = with_changed_trace(wanted);
    simulated = simulate_scenario(
        scenario, [this, request] { return requests_ != request; }, &plan);
  } catch (const Error& error) {
    simulated = refusal(wanted, error);
  }
  if (simulated == nullptr) return nullptr;
  {
    const MutexLock lock(mutex_);
    if (plan != nullptr) planned_ = {std::move(plan), simulated->scenario, processor_seconds() - before};
    if (requests_ != request) return nullptr;
    whole_request_ = request;
  }
  give(simulated, request);
  return simulated;
}

void Simulator::simulate_at_once(const Scenario& wanted, std::uint64_t request) {
  Planned planned;
  {
    const MutexLock lock(mutex_);
    planned = planned_;
  }
  const Scenario& before = planned.scenario;
  if (planned.plan == nullptr || before.policy != wanted.policy || before.options != wanted.options) return;
  if (planned.seconds <= long_planning_seconds) {
    SimulatedPointer whole = simulate_whole(wanted, request);
    const MutexLock lock(mutex_);
    whole_ = std::move(whole);
    return;
  }
  try {
    const Scenario scenario = with_changed_trace(wanted);
    const bool same_places = rank_count(*scenario.trace) == 1 && same_program(*before.trace, *scenario.trace) &&
                             before.machine.tiers.size() == scenario.machine.tiers.size();
    if (!same_places) return;
    const SimulatedPointer old =
        simulate_old_plan(scenario, *planned.plan, [this, request] { return requests_ != request; });
    if (old != nullptr && old->fits) give(old, request);
  } catch (const Error&) {  // the other thread says so
  }
}

void Simulator::simulate_behind(const Scenario& wanted, std::uint64_t request) {
  const Stop overtaken = [this, request] { return requests_ != request; };
  SimulatedPointer simulated;
  simulating_ = true;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() TENCACHE_REQUIRES(mutex_) { return at_once_.idle() || overtaken(); });
    if (whole_request_ == request) simulated = std::exchange(whole_, nullptr);
  }
  if (simulated == nullptr && !overtaken()) simulated = simulate_whole(wanted, request);
  simulating_ = false;
  if (simulated == nullptr) return;
  if ((simulated = with_references(simulated, overtaken)) == nullptr) return;
  give(simulated, request);
  if (simulated->took_seconds * interval_samples <= most_interval_seconds) {
    give(with_interval(simulated, interval_samples, overtaken), request);
  }
}

void Simulator::work(const std::stop_token& stop, Task Simulator::*which, Serve serve) {
  Task& task = this->*which;
  MutexLock lock(mutex_);
  while (changed_.wait(lock, stop, [&task] { return task.wanted.has_value(); })) {
    const Scenario scenario = *std::exchange(task.wanted, std::nullopt);
    const std::uint64_t request = requests_;
    task.working = true;
    lock.unlock();
    (this->*serve)(scenario, request);
    lock.lock();
    task.working = false;
    changed_.notify_all();
  }
}

}  // namespace tencache::gui
