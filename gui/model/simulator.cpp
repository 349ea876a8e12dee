#include "gui/model/simulator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "configs/rescale_to_machine.h"
#include "core/error.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "studies/intervals.h"
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
                               const RehearsalLimits& limits) {
    StoppablePolicy policy(candidate, stop);
    return rehearse(planned, machine, policy, limits);
  };
  return recorders;
}

RunPointer run_of(const Workload& workload, std::string title, const MachineSpec& machine, Trace trace,
                  Timeline timeline) {
  if (timeline.spans.empty()) return nullptr;
  Recording recording;
  recording.title = std::move(title);
  recording.source = trace_name(workload) + " on " + workload.machine.name;
  recording.machine = machine;
  recording.trace = std::move(trace);
  recording.timeline = std::move(timeline);
  return std::make_shared<const Run>(std::move(recording));
}

void take_runs(Outcome outcome, std::vector<Timeline> timelines, const std::string& title, Simulated& simulated) {
  const Workload& workload = simulated.workload;
  if (outcome.ranks.empty()) {
    simulated.run =
        run_of(workload, title, workload.machine, std::move(outcome.program.trace), std::move(timelines.front()));
  }
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    RunPointer run = run_of(workload, title + ", rank " + std::to_string(rank), workload.machine.of_rank(rank),
                            std::move(outcome.ranks[rank].program.trace), std::move(timelines[rank]));
    if (run == nullptr) continue;
    if (rank == outcome.rank) simulated.run = run;
    simulated.ranks.push_back(std::move(run));
  }
}

// `policy`: of a trace of one rank.
SimulatedPointer simulate_with(const Workload& workload, const std::string& title, Policy& policy, const Stop& stop) {
  auto simulated = std::make_shared<Simulated>();
  simulated->workload = workload;
  Timeline first;
  std::vector<Timeline> timelines;
  Recorders recorders = stoppable(stop);
  recorders.timeline = &first;
  recorders.other_timelines = &timelines;
  recorders.policy = &policy;
  try {
    const auto& [name, settings] = workload.scenario.policy;
    Outcome outcome = simulate_policy(workload, name, settings, recorders);
    simulated->result = outcome.result;
    simulated->took_seconds = outcome.seconds;
    timelines.insert(timelines.begin(), std::move(first));
    take_runs(std::move(outcome), std::move(timelines), title, *simulated);
    simulated->fits = simulated->result.fits;
    simulated->reason = simulated->result.misfit;
  } catch (const Stopped&) {
    return nullptr;
  } catch (const Error& error) {
    simulated->fits = false;
    simulated->reason = error.what();
  }
  return simulated;
}

SimulatedPointer refusal(const Workload& workload, const Error& error) {
  auto refused = std::make_shared<Simulated>();
  refused->workload = workload;
  refused->reason = error.what();
  return refused;
}

}  // namespace

std::size_t RecordedPlan::moment(const Event& event, OpIndex present) {
  const bool done = event.kind == EventKind::op_done;
  return 2 * std::size_t{done || event.kind == EventKind::op_issued ? event.op : present} + (done ? 1 : 0);
}

void RecordedPlan::on(const Event& event, const View& view, Actions& actions) {
  const auto before = static_cast<std::ptrdiff_t>(actions.list().size());
  ForwardingPolicy::on(event, view, actions);
  if (view.program == nullptr) return;
  present_.resize(2 * view.program->trace.ops.size());
  if (const std::size_t at = moment(event, view.op); at < present_.size()) {
    present_[at].insert(present_[at].end(), actions.list().begin() + before, actions.list().end());
  }
  if (event.kind == EventKind::iteration_end) {
    whole_ = std::move(present_);
    present_.clear();
  }
}

void RecordedPlan::recompute(const Trace& trace, const MachineSpec& machine,
                             std::vector<RecomputeLevel>& levels) const {
  planner_->recompute(trace, machine, levels);
  levels_ = levels;
}

void RecordedPlan::place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const {
  planner_->place(trace, machine, devices);
  devices_ = devices;
}

void RecordedPlan::order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const {
  std::vector<std::int32_t>& ordered = orders_[groups];
  planner_->order(trace, machine, groups);
  ordered = groups;
}

// What the planner answers without planning it is asked again, for the machine at hand: where tensors start, and where
// the experts' ops run that gates decide, which follow from that.
class RecordedPlan::Replay : public ForwardingPolicy {
 public:
  explicit Replay(const RecordedPlan& recorded) : ForwardingPolicy(*recorded.planner_), recorded_(recorded) {}

  void prepare(const Trace&, const MachineSpec&, const RehearseTrace&) override {}
  void recompute(const Trace&, const MachineSpec&, std::vector<RecomputeLevel>& levels) const override {
    if (levels.size() == recorded_.levels_.size()) levels = recorded_.levels_;
  }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = ForwardingPolicy::layout(machine, program);
    layout.fallback_eviction = true;  // nobody plans for what did not happen before
    return layout;
  }
  bool hears(EventKind kind) const override { return kind == EventKind::op_issued || kind == EventKind::op_done; }
  void on(const Event& event, const View& view, Actions& actions) override {
    const std::size_t at = moment(event, view.op);
    if (at >= recorded_.whole_.size()) return;
    for (const Action& action : recorded_.whole_[at]) actions.push(action);
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    coldest_victims(request, view, victims);
  }
  void place(const Trace&, const MachineSpec&, std::vector<Device>& devices) const override {
    if (devices.size() == recorded_.devices_.size()) devices = recorded_.devices_;
  }
  void order(const Trace&, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    const auto found = recorded_.orders_.find(groups);
    if (found != recorded_.orders_.end()) groups = found->second;
  }

 private:
  const RecordedPlan& recorded_;
};

std::unique_ptr<Policy> RecordedPlan::replay() const { return std::make_unique<Replay>(*this); }

std::string trace_name(const Workload& workload) {
  const TraceChoice& choice = workload.scenario.trace;
  return choice.generate.empty() ? std::filesystem::path(choice.file).filename().string()
                                 : workload.trace->header.model;
}

std::string durations_text(const Workload& workload) {
  if (const auto& rescaling = workload.rescaling) {
    return "durations rescaled from " + rescaling->from + " to " + rescaling->to;
  }
  if (taken_as_they_are(*workload.trace, workload.machine, workload.scenario.trace.rescale).empty()) return "";
  const std::string& hardware = workload.trace->header.hardware;
  return "durations as recorded" + (hardware.empty() ? "" : " on " + hardware) + ", not on " + workload.machine.gpu;
}

SimulatedPointer simulate_workload(const Workload& wanted, const Stop& stop, std::unique_ptr<RecordedPlan>* plan) {
  try {
    const Workload workload = with_changed_trace(wanted);
    MadePolicy made = make_policy(workload.scenario.policy.name, workload.scenario.policy.settings);
    const std::string title = "predicted: " + workload.scenario.policy.name;
    if (plan == nullptr) return simulate_with(workload, title, *made.policy, stop);
    auto recorded = std::make_unique<RecordedPlan>(std::move(made.policy));
    SimulatedPointer simulated = simulate_with(workload, title, *recorded, stop);
    if (simulated != nullptr && simulated->fits) *plan = std::move(recorded);
    return simulated;
  } catch (const Error& error) {
    return refusal(wanted, error);
  }
}

SimulatedPointer simulate_old_plan(const Workload& workload, const RecordedPlan& plan, const Stop& stop) {
  const std::unique_ptr<Policy> replay = plan.replay();
  Workload brief = workload;
  if (brief.scenario.iterations == 0) brief.scenario.iterations = old_plan_iterations;
  const SimulatedPointer simulated =
      simulate_with(brief, "predicted: old plan of " + workload.scenario.policy.name, *replay, stop);
  if (simulated == nullptr) return nullptr;
  auto marked = std::make_shared<Simulated>(*simulated);
  marked->workload = workload;
  marked->old_plan = true;
  return marked;
}

SimulatedPointer with_references(const SimulatedPointer& simulated, const Stop& stop) {
  if (!simulated->fits) return simulated;
  auto more = std::make_shared<Simulated>(*simulated);
  try {
    const References references = references_of(simulated->workload, stoppable(stop));
    more->ideal_seconds = references.ideal_seconds;
    references.name_bounds(*more, references.bound_of(simulated->result));
    more->bound_term = references.bound_term;
  } catch (const Stopped&) {
    return nullptr;
  } catch (const Error&) {  // a machine that has no bound has none here
  }
  return more;
}

SimulatedPointer with_interval(const SimulatedPointer& simulated, std::size_t samples, const Stop& stop) {
  if (!simulated->fits) return simulated;
  const auto& [policy, settings] = simulated->workload.scenario.policy;
  Intervals intervals;
  try {
    intervals = sample_intervals(simulated->workload, {{policy, settings, simulated->iteration_seconds()}},
                                 {.samples = samples, .seed = 1}, stoppable(stop), 1);
  } catch (const Stopped&) {
    return nullptr;
  }
  auto more = std::make_shared<Simulated>(*simulated);
  more->low_seconds = intervals.policies.front().low;
  more->high_seconds = intervals.policies.front().high;
  more->samples = intervals.samples;
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

void Simulator::request(Workload workload) {
  {
    const MutexLock lock(mutex_);
    at_once_.wanted = workload;
    behind_.wanted = std::move(workload);
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

SimulatedPointer Simulator::simulate_whole(const Workload& wanted, std::uint64_t request) {
  const double before = processor_seconds();
  std::unique_ptr<RecordedPlan> plan;
  SimulatedPointer simulated = simulate_workload(
      wanted, [this, request] { return requests_ != request; }, &plan);
  if (simulated == nullptr) return nullptr;
  {
    const MutexLock lock(mutex_);
    if (plan != nullptr) planned_ = {std::move(plan), simulated->workload, processor_seconds() - before};
    if (requests_ != request) return nullptr;
    whole_request_ = request;
  }
  give(simulated, request);
  return simulated;
}

void Simulator::simulate_at_once(const Workload& wanted, std::uint64_t request) {
  Planned planned;
  {
    const MutexLock lock(mutex_);
    planned = planned_;
  }
  const Workload& before = planned.workload;
  if (planned.plan == nullptr || before.scenario.policy.name != wanted.scenario.policy.name ||
      before.scenario.policy.settings != wanted.scenario.policy.settings)
    return;
  if (planned.seconds <= long_planning_seconds) {
    SimulatedPointer whole = simulate_whole(wanted, request);
    const MutexLock lock(mutex_);
    whole_ = std::move(whole);
    return;
  }
  try {
    const Workload workload = with_changed_trace(wanted);
    const bool same_places = rank_count(*workload.trace) == 1 && same_program(*before.trace, *workload.trace) &&
                             before.machine.tiers.size() == workload.machine.tiers.size();
    if (!same_places) return;
    const SimulatedPointer old =
        simulate_old_plan(workload, *planned.plan, [this, request] { return requests_ != request; });
    if (old != nullptr && old->fits) give(old, request);
  } catch (const Error&) {  // the other thread says so
  }
}

void Simulator::simulate_behind(const Workload& wanted, std::uint64_t request) {
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
    const Workload workload = *std::exchange(task.wanted, std::nullopt);
    const std::uint64_t request = requests_;
    task.working = true;
    lock.unlock();
    (this->*serve)(workload, request);
    lock.lock();
    task.working = false;
    changed_.notify_all();
  }
}

}  // namespace tencache::gui
