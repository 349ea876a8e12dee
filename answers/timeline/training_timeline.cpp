#include "answers/timeline/training_timeline.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

void append(Timeline& whole, const Timeline& part) {
  whole.spans.insert(whole.spans.end(), part.spans.begin(), part.spans.end());
  whole.occupancy.insert(whole.occupancy.end(), part.occupancy.begin(), part.occupancy.end());
}

}  // namespace

TrainingTimeline::NamedStep::NamedStep(Trace recorded) : trace(std::move(recorded)) {
  Op unrecorded;
  unrecorded.name = trace.names.intern("not in the recorded step");
  unrecorded_op = trace.add_op(unrecorded, {}, {});
  unrecorded_tensor = trace.add_tensor("a tensor since freed or not in the recorded step", 1, Role::activation, true);
}

void TrainingTimeline::NamedStep::name(Timeline& timeline) const {
  for (Span& span : timeline.spans) {
    if (span.kind != SpanKind::gap && span.op >= unrecorded_op) span.op = unrecorded_op;
    if (span.of_chunk() && span.tensor >= unrecorded_tensor) span.tensor = unrecorded_tensor;
  }
  for (OccupancySample& sample : timeline.occupancy) {
    if (sample.tensor >= unrecorded_tensor) sample.tensor = none;  // what it holds is told by role
  }
}

TrainingTimeline::TrainingTimeline(const std::string& file, std::string name, const MachineSpec& machine)
    : file_(file), name_(std::move(name)), machine_(machine) {}

void TrainingTimeline::add(Timeline part, Trace program) {
  if (step_) return write(std::move(part));
  if (!program.ops.empty()) program_ = std::move(program);
  append(pending_, part);
  const bool named = std::ranges::any_of(
      pending_.spans, [](const Span& span) { return span.kind == SpanKind::op && span.iteration >= first_named_step; });
  if (named && !program_.ops.empty()) begin(from_iteration(std::exchange(pending_, {}), first_named_step));
}

void TrainingTimeline::end(const Trace& program) {
  if (!step_) {
    program_ = program;
    begin(std::exchange(pending_, {}));
  }
  file_.end();
}

void TrainingTimeline::begin(Timeline part) {
  step_.emplace(std::move(program_));
  file_.follow({.name = name_, .timeline = &written_, .machine = &machine_, .trace = &step_->trace});
  write(std::move(part));
}

void TrainingTimeline::write(Timeline part) {
  step_->name(part);
  append(written_, part);
  file_.append();
}

}  // namespace tencache
