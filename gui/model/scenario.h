// What is simulated for the dashboard: a trace on a machine under a policy, and a thread of its own that does it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "configs/rescale_to_machine.h"
#include "core/metrics.h"
#include "core/thread_annotations.h"
#include "gui/model/recorded_plan.h"
#include "gui/model/run.h"

namespace tencache::gui {

// An interval comes of so many simulations, unless they would take longer than it is worth.
inline constexpr std::size_t interval_samples = 20;
inline constexpr double most_interval_seconds = 5;

struct Scenario {
  std::shared_ptr<const Trace> trace;
  std::string trace_name;
  MachineSpec machine;
  std::string policy;
  std::map<std::string, std::string> options;
  std::uint64_t iterations = 0;  // 0: until the state recurs
  RescaleOptions rescale;        // how the trace's durations are those of the machine's GPU
  std::string durations;  // what a reader must know of them, such as "rescaled from a100-40g to h100"; empty: nothing
  std::optional<GpuTime> gpu_time;  // how far off modelled durations may be; none: they are not modelled
  bool altered = false;  // the machine or the trace, by options: what was measured on the machine says nothing of it
  double scale_bytes = 1, scale_time = 1;  // of the trace (traces/transform/scale.h)
  // What the trace is to be changed into; a simulation does it, off the frame path.
  double gpu_speed = 1;     // times as fast as the trace's
  std::uint64_t batch = 0;  // of a trace that `tencache generate` made, which is generated anew; 0: the trace's own
};
// Sets the trace, scaled, with the durations that the machine's GPU takes. Where it is not known whose they are (and
// `rescale` does not say): as they are. Throws Error.
void set_trace(Scenario& scenario, Trace trace);
// The scenario with its trace changed so. Throws Error where a trace of that batch cannot be generated.
Scenario with_changed_trace(Scenario scenario);

struct Simulated {
  Scenario scenario;
  RunPointer run;                 // null where nothing ran; of several ranks the slowest
  std::vector<RunPointer> ranks;  // of a trace of several ranks, each
  bool fits = false;
  bool old_plan = false;  // what the policy planned for the machine before, on this one
  std::string reason;     // why not
  RunResult result;
  double took_seconds = 0;  // of the tool, planning included
  // Known a little later than the rest; 0 until then.
  double ideal_seconds = 0, bound_seconds = 0;
  std::string bound_term;
  // The 5th and 95th percentile over samples of the machine's figures (docs/intervals.md); no samples: not known.
  double low_seconds = 0, high_seconds = 0;
  std::size_t samples = 0;
  double iteration_seconds() const { return fits ? result.iteration_seconds() : 0; }
};
using SimulatedPointer = std::shared_ptr<const Simulated>;

// Whether to give up, asked now and then.
using Stop = std::function<bool()>;

// Never throw: what a policy or machine refuses is a result that does not fit, with the reason. Null when stopped.
// `plan`: replaced by what the policy did, if given.
SimulatedPointer simulate_scenario(const Scenario& wanted, const Stop& stop = {},
                                   std::unique_ptr<RecordedPlan>* plan = nullptr);
// The plan of another simulation, on this machine.
SimulatedPointer simulate_old_plan(const Scenario& scenario, const RecordedPlan& plan, const Stop& stop = {});
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

  void request(Scenario scenario);
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
    std::optional<Scenario> wanted;
    bool working = false;
    bool idle() const { return !wanted && !working; }
  };
  // Of the last whole simulation.
  struct Planned {
    std::shared_ptr<const RecordedPlan> plan;  // null: none
    Scenario scenario;
    double seconds = 0;  // of the processor
  };
  using Serve = void (Simulator::*)(const Scenario& wanted, std::uint64_t request);
  void work(const std::stop_token& stop, Task Simulator::*task, Serve serve);
  void simulate_at_once(const Scenario& wanted, std::uint64_t request);
  void simulate_behind(const Scenario& wanted, std::uint64_t request);
  SimulatedPointer simulate_whole(const Scenario& wanted, std::uint64_t request);
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
