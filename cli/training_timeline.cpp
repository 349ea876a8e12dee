#include "cli/training_timeline.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "cli/chrome_trace.h"

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

struct TrainingTimeline::State {
  State(const std::string& path, std::string run, const MachineSpec& on)
      : file(path), name(std::move(run)), machine(on) {}

  GrowingTimeline file;
  std::string name;
  const MachineSpec& machine;
  std::mutex mutex;  // of `pending`
  Timeline pending;
  // From the first named step on.
  std::optional<NamedStep> step;
  Timeline written;

  void begin(Timeline part, const Trace& program) {
    step.emplace(program);
    file.follow({.name = name, .timeline = &written, .machine = &machine, .trace = &step->trace});
    add(std::move(part));
  }
  void add(Timeline part) {
    step->name(part);
    written.spans.insert(written.spans.end(), part.spans.begin(), part.spans.end());
    written.occupancy.insert(written.occupancy.end(), part.occupancy.begin(), part.occupancy.end());
    file.append();
  }
};

TrainingTimeline::TrainingTimeline(const std::string& file, std::string name, const MachineSpec& machine,
                                   const std::string& predicted_file)
    : state_(std::make_unique<State>(file, std::move(name), machine)) {
  if (!predicted_file.empty()) state_->file.put_file(predicted_file);
}
TrainingTimeline::~TrainingTimeline() = default;

void TrainingTimeline::collect(Timeline& growing) {
  const std::lock_guard lock(state_->mutex);
  Timeline& pending = state_->pending;
  pending.spans.insert(pending.spans.end(), growing.spans.begin(), growing.spans.end());
  pending.occupancy.insert(pending.occupancy.end(), growing.occupancy.begin(), growing.occupancy.end());
  growing.spans.clear();
  growing.occupancy.clear();
}

void TrainingTimeline::write(const Trace& program) {
  State& state = *state_;
  Timeline part;
  {
    const std::lock_guard lock(state.mutex);
    const bool named = std::ranges::any_of(state.pending.spans, [](const Span& span) {
      return span.kind == SpanKind::op && span.iteration >= first_named_step;
    });
    if (!state.step && (program.ops.empty() || !named)) return;
    part = std::exchange(state.pending, {});
  }
  state.step ? state.add(std::move(part)) : state.begin(from_iteration(part, first_named_step), program);
}

void TrainingTimeline::end(const Trace& program) {
  write(program);
  if (!state_->step) state_->begin(std::exchange(state_->pending, {}), program);
  state_->file.end();
}

}  // namespace tencache
