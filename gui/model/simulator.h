// Workloads simulated for the dashboard, each under its scenario's policy, and the threads that do it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/forwarding_policy.h"
#include "core/metrics.h"
#include "core/policy.h"
#include "core/thread_annotations.h"
#include "gui/model/run.h"
#include "studies/workload.h"

namespace tencache::gui {

// What a policy did in a steady iteration, to be done again on another machine without planning: a policy that takes
// long to plan shows its old plan there at once, until the new one is ready.
//
// The policy itself, its actions written down as it goes.
class RecordedPlan : public ForwardingPolicy {
 public:
  explicit RecordedPlan(std::unique_ptr<Policy> planner) : ForwardingPolicy(*planner), planner_(std::move(planner)) {}

  // A policy that recomputes what was recomputed, places updates as they were placed, and does, as the GPU comes to
  // each op, what was done in the last whole iteration while it was there. It refers to this plan. Victims beyond the
  // plan are the coldest.
  std::unique_ptr<Policy> replay() const;

  void on(const Event& event, const View& view, Actions& actions) override;
  void recompute(const Trace& trace, const MachineSpec& machine, std::vector<RecomputeLevel>& levels) const override;
  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override;
  void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const override;

 private:
  class Replay;

  // The start or the end of an op; what happens while the GPU is at an op counts for its start.
  static std::size_t moment(const Event& event, OpIndex present);

  std::unique_ptr<Policy> planner_;
  std::vector<std::vector<Action>> present_, whole_;                               // by moment
  mutable std::vector<RecomputeLevel> levels_;                                     // by choice of the trace
  mutable std::vector<Device> devices_;                                            // where each op was placed
  mutable std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> orders_;  // of sub-groups, by the recorded one
};

// An interval comes of so many simulations, unless they would take longer than it is worth.
inline constexpr std::size_t interval_samples = 20;
inline constexpr double most_interval_seconds = 5;

// "gpt2", "step.trace.jsonl".
std::string trace_name(const Workload& workload);
// What a reader must know of its durations, such as "durations rescaled from a100-40g to h100"; empty: nothing.
std::string durations_text(const Workload& workload);

struct Simulated {
  Workload workload;
  RunPointer run;                 // null where nothing ran; of several ranks the slowest
  std::vector<RunPointer> ranks;  // of a trace of several ranks, each
  bool fits = false;
  bool old_plan = false;  // what the policy planned for the machine before, on this one
  std::string reason;     // why not
  RunResult result;
  double took_seconds = 0;  // of the tool, planning included
  // Known a little later than the rest; 0 until then.
  double ideal_seconds = 0, bound_seconds = 0;
  std::optional<double> bound_choice_seconds;  // of a trace with choices of recomputation; what no policy beats
  std::string bound_term;
  // The 5th and 95th percentile over samples of the machine's figures (docs/intervals.md); no samples: not known.
  double low_seconds = 0, high_seconds = 0;
  std::size_t samples = 0;
  double iteration_seconds() const { return fits ? result.iteration_seconds() : 0; }
  double least_seconds() const { return bound_choice_seconds.value_or(bound_seconds); }
};
using SimulatedPointer = std::shared_ptr<const Simulated>;

// Whether to give up, asked now and then.
using Stop = std::function<bool()>;

// A batch and a GPU speed that the scenario asks for are made true first. Never throw: what a policy or machine refuses
// is a result that does not fit, with the reason. Null when stopped. `plan`: replaced by what the policy did, if given.
SimulatedPointer simulate_workload(const Workload& wanted, const Stop& stop = {},
                                   std::unique_ptr<RecordedPlan>* plan = nullptr);
// The plan of another simulation, on this machine.
SimulatedPointer simulate_old_plan(const Workload& workload, const RecordedPlan& plan, const Stop& stop = {});
// The same result with ideal and bound; and with an interval of so many samples.
SimulatedPointer with_references(const SimulatedPointer& simulated, const Stop& stop = {});
SimulatedPointer with_interval(const SimulatedPointer& simulated, std::size_t samples, const Stop& stop = {});

// For the calling thread and those that it starts: drawing goes first, since a frame late is seen at once, a result
// late by it is not.
void simulate_behind_drawing();

// Two threads. One does at once what is quick, beside drawing: the simulation of a policy that was quick the last time,
// or else the old plan's moves. The other, behind drawing, does what may take long: while the first one works it only
// stops what it was at; then it plans anew, and looks for ideal, bound and interval.
class Simulator {
 public:
  Simulator();
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  void request(Workload workload);
  // The newest result that was not taken yet.
  SimulatedPointer take();
  // What was requested so far is not wanted any more.
  void forget();
  bool busy() const;
  // The run itself is not simulated yet.
  bool simulating() const { return simulating_; }
  // Waits until nothing is under way: for tests and pictures without a window.
  void wait() const;

 private:
  struct Task {
    std::optional<Workload> wanted;
    bool working = false;
    bool idle() const { return !wanted && !working; }
  };
  // Of the last whole simulation.
  struct Planned {
    std::shared_ptr<const RecordedPlan> plan;  // null: none
    Workload workload;
    double seconds = 0;  // of the processor
  };
  using Serve = void (Simulator::*)(const Workload& wanted, std::uint64_t request);
  void work(const std::stop_token& stop, Task Simulator::*task, Serve serve);
  void simulate_at_once(const Workload& wanted, std::uint64_t request);
  void simulate_behind(const Workload& wanted, std::uint64_t request);
  SimulatedPointer simulate_whole(const Workload& wanted, std::uint64_t request);
  void give(SimulatedPointer result, std::uint64_t request);

  mutable Mutex mutex_;
  mutable std::condition_variable_any changed_;
  Task at_once_ TENCACHE_GUARDED_BY(mutex_), behind_ TENCACHE_GUARDED_BY(mutex_);
  SimulatedPointer done_ TENCACHE_GUARDED_BY(mutex_);
  Planned planned_ TENCACHE_GUARDED_BY(mutex_);
  std::uint64_t whole_request_ TENCACHE_GUARDED_BY(mutex_) = 0;  // whose own plan was simulated last
  SimulatedPointer whole_ TENCACHE_GUARDED_BY(mutex_);           // at once, for the other thread to go on with
  std::atomic<std::uint64_t> requests_ = 0;
  std::atomic<bool> simulating_ = false;
  std::jthread at_once_thread_, behind_thread_;
};

}  // namespace tencache::gui
