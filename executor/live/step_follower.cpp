#include "executor/live/step_follower.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace tencache {

void StepFollower::created(TensorId tensor, Bytes bytes, Role role) {
  if (tensor >= live_.size()) live_.resize(tensor + std::size_t{1});
  Live& live = live_[tensor];
  live = Live{};
  live.bytes = bytes;
  live.role = role;
  live.alive = true;
  live.birth = births_++;
  add_draft(live, false);
}

void StepFollower::destroyed(TensorId tensor) {
  Live& live = live_[tensor];
  live.alive = false;
  draft_.died(live.draft, in_op_);
  live.program = live.draft = none;
}

void StepFollower::marked(TensorId tensor, Role role, std::string_view name) {
  Live& live = live_[tensor];
  live.role = role;
  live.name = names_.intern(name);
  draft_.marked(live.draft, role, live.name);
}

bool StepFollower::left_this_step() const {
  return recorded() && !recording() && (patience_.has_left() || stopped_early());
}

StepFollower::Signal StepFollower::iteration_boundary() {
  Signal signal = Signal::nothing;
  const bool record = records_next();
  if (recording()) {
    draft_.stop();
    if (draft_.has_ops()) {
      finish_recording();
      signal = Signal::profile;
    }
  } else if (recorded() && whole_) {
    patience_.step_ended(left_this_step());
    if (stopped_early()) {
      signal = leave("the step ended after " + std::to_string(followed_.next()) + " of " +
                     std::to_string(program().trace.ops.size()) + " ops");
    }
  }
  patience_.step_begins();
  ++step_;
  const bool first = step_ >= 2 && !recorded();  // the first step warms up
  if (first || record) start_recording();
  whole_ = !unseen_;
  if (!unseen_) followed_.begin_step();
  return signal;
}

void StepFollower::set_unseen(bool on) {
  unseen_ = on;
  whole_ = false;
  followed_.leave();
}

OpIndex StepFollower::begin_op(const Op& op, std::span<const Use> uses, Signal& signal) {
  TENCACHE_CHECK(!in_op_);
  in_op_ = true;
  signal = Signal::nothing;
  if (aside_) {
    if (followed_.on_schedule()) signal = Signal::deviated;
    followed_.leave();
    return none;
  }
  if (recording()) {
    std::vector<Use> drafts;
    for (const Use& use : uses) drafts.push_back({live_[use.tensor].draft, use.read, use.write});
    draft_.begin_op(op, std::move(drafts));
  }
  const bool counts = recorded() && !followed_.in_region();
  if (counts) ++ops_;
  if (!followed_.on_schedule()) return none;
  const auto is = [this](TensorId tensor, TensorId recorded) {
    return live_[tensor].program == recorded || live_[tensor].bytes == program().trace.tensors[recorded].bytes;
  };
  if (followed_.matches(op.name, uses, is)) {
    if (counts) ++ops_on_schedule_;
    return followed_.begin_op();
  }
  if (followed_.in_region()) return none;
  signal = leave(followed_.mismatch(names_[op.name], op.name));
  return none;
}

OpIndex StepFollower::chose(NameId block) {
  if (aside_) return none;
  draft_.chose(block);
  return followed_.gate(block);
}

TensorId StepFollower::born(TensorId tensor) {
  Live& live = live_[tensor];
  if (in_op_ && !aside_) draft_.born(live.draft);
  const TensorId id = followed_.next_birth();
  if (id == none) return none;
  live.program = id;
  live.role = program().trace.tensors[id].role;
  return id;
}

void StepFollower::end_op(Nanoseconds duration_ns) {
  TENCACHE_CHECK(in_op_);
  in_op_ = false;
  followed_.end_op();
  if (!aside_) draft_.set_duration(draft_.last_op(), duration_ns);
}

StepFollower::Signal StepFollower::leave(const std::string& why) {
  followed_.leave();
  patience_.step_left();
  ++deviations_;
  if (first_deviation_.empty()) first_deviation_ = "step " + std::to_string(step_) + ": " + why;
  return Signal::deviated;
}

void StepFollower::module_begin(NameId module) {
  draft_.module_begin(module);
  if (!unseen_) followed_.module_boundary(module, names_[module], true);
}

NameId StepFollower::module_end() {
  const NameId module = draft_.module_end();
  if (!unseen_) followed_.module_boundary(module, names_[module], false);
  return module;
}

void StepFollower::start_recording() {
  if (recorded() && !record_next_) patience_.recorded_anew();
  record_next_ = false;
  draft_.start();
  std::vector<Live*> alive;
  for (Live& live : live_) {
    live.draft = none;
    if (live.alive) alive.push_back(&live);
  }
  std::ranges::sort(alive, {}, &Live::birth);
  for (Live* live : alive) add_draft(*live, true);
}

void StepFollower::finish_recording() {
  std::vector<TensorId> ids;
  RecordedStep step = draft_.finish(names_, ids);
  names_ = step.trace.names;  // ids given from now on differ from those of the trace's own names
  followed_.set(std::move(step));
  for (Live& live : live_) live.program = live.alive && live.draft != none ? ids[live.draft] : none;
}

std::vector<TensorId> StepFollower::to_memory() const {
  std::vector<TensorId> ids(program().trace.tensors.size(), none);
  for (TensorId tensor = 0; tensor < live_.size(); ++tensor) {
    if (live_[tensor].alive && live_[tensor].program != none) ids[live_[tensor].program] = tensor;
  }
  return ids;
}

std::vector<TensorId> StepFollower::to_program() const {
  std::vector<TensorId> ids(live_.size(), none);
  for (TensorId tensor = 0; tensor < live_.size(); ++tensor) ids[tensor] = live_[tensor].program;
  return ids;
}

}  // namespace tencache
