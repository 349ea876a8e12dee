#include "answers/timeline/training_timeline.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "answers/timeline/chrome_trace.h"
#include "core/error.h"
#include "traces/file_io.h"
#ifdef TENCACHE_WITH_EXECUTOR
#include "executor/live_socket.h"
#endif

namespace tencache {
namespace {

// The recorded step with an op and a tensor for what is not in it.
struct NamedStep {
  Trace trace;
  OpIndex unrecorded_op = none;
  TensorId unrecorded_tensor = none;

  explicit NamedStep(Trace recorded) : trace(std::move(recorded)) {
    Op unrecorded;
    unrecorded.name = trace.names.intern("not in the recorded step");
    unrecorded_op = trace.add_op(unrecorded, {}, {});
    unrecorded_tensor = trace.add_tensor("a tensor since freed or not in the recorded step", 1, Role::activation, true);
  }
  void name(Span& span) const {
    if (span.kind != SpanKind::gap && span.op >= unrecorded_op) span.op = unrecorded_op;
    if (span.kind == SpanKind::transfer && span.tensor >= unrecorded_tensor) span.tensor = unrecorded_tensor;
  }
  void name(Timeline& timeline) const {
    for (Span& span : timeline.spans) name(span);
    for (OccupancySample& sample : timeline.occupancy) {
      if (sample.tensor >= unrecorded_tensor) sample.tensor = none;  // what it holds is told by role
    }
  }
};

}  // namespace

void write_measured_timeline(const std::string& file, const std::string& name, Timeline timeline,
                             const MachineSpec& machine, Trace trace) {
  const NamedStep step(std::move(trace));
  step.name(timeline);
  write_chrome_trace(file, {{.name = name, .timeline = &timeline, .machine = &machine, .trace = &step.trace}});
}

#ifdef TENCACHE_WITH_EXECUTOR

struct WatchedTraining::State {
  State(const std::string& socket, std::string run, const MachineSpec& on, const std::string& predicted_file)
      : server(socket), name(std::move(run)), machine(on) {
    if (!predicted_file.empty()) predicted = read_file(predicted_file);
  }

  LiveServer server;
  std::string name;
  const MachineSpec& machine;
  std::string predicted;
  std::mutex mutex;  // of the next three
  Timeline pending;
  std::size_t spans = 0, changes = 0;  // collected
  // Of the first publication on.
  std::optional<NamedStep> step;
  Timeline sending;
  std::optional<TimelineStream> stream;
};

WatchedTraining::WatchedTraining(const std::string& socket, std::string name, const MachineSpec& machine,
                                 const std::string& predicted_file)
    : state_(std::make_unique<State>(socket, std::move(name), machine, predicted_file)) {}
WatchedTraining::~WatchedTraining() = default;

void WatchedTraining::collect(Timeline& growing, bool forget) {
  const std::lock_guard lock(state_->mutex);
  const auto add = [](const auto& from, std::size_t& taken, auto& to) {
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(taken), from.end());
    taken = from.size();
  };
  add(growing.spans, state_->spans, state_->pending.spans);
  add(growing.occupancy, state_->changes, state_->pending.occupancy);
  if (!forget) return;
  growing.spans.clear();
  growing.occupancy.clear();
  state_->spans = state_->changes = 0;
}

void WatchedTraining::publish(const Trace& program) {
  State& state = *state_;
  Timeline part;
  {
    const std::lock_guard lock(state.mutex);
    const bool named =
        std::ranges::any_of(state.pending.spans, [](const Span& span) { return span.iteration >= first_named_step; });
    if (!state.stream && (program.ops.empty() || !named)) return;
    part = std::exchange(state.pending, {});
  }
  if (!state.stream) {
    part = from_iteration(part, first_named_step);
    state.step.emplace(program);
    state.stream.emplace(TimelineProcess{state.name, &state.sending, &state.machine, &state.step->trace},
                         state.predicted);
    state.predicted.clear();
  }
  state.step->name(part);
  state.sending = std::move(part);
  state.server.publish(state.stream->next());
  state.sending = {};
  state.stream->emptied();
}

void WatchedTraining::end() {
  if (state_->stream) state_->server.publish(TimelineStream::end);
}

#else

struct WatchedTraining::State {};
WatchedTraining::WatchedTraining(const std::string& socket, std::string, const MachineSpec&, const std::string&) {
  throw Error(socket, 0, "watching a run needs the executor, which this build leaves out (TENCACHE_EXECUTOR)");
}
WatchedTraining::~WatchedTraining() = default;
void WatchedTraining::collect(Timeline&, bool) {}
void WatchedTraining::publish(const Trace&) {}
void WatchedTraining::end() {}

#endif

}  // namespace tencache
