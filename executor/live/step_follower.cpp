#include "executor/live/step_follower.h"

#include <algorithm>
#include <deque>
#include <map>

#include "core/check.h"

namespace tencache {

// ---- What happens ---------------------------------------------------------------------------------------------------

void StepFollower::created(TensorId tensor, Bytes bytes, Role role) {
  if (tensor >= live_.size()) live_.resize(tensor + std::size_t{1});
  Live& live = live_[tensor];
  live = Live{};
  live.bytes = bytes;
  live.role = role;
  live.alive = true;
  live.birth = births_++;
  if (recording_) add_draft(live, false);
}

void StepFollower::destroyed(TensorId tensor) {
  Live& live = live_[tensor];
  live.alive = false;
  if (recording_ && live.draft != none) {
    Draft& draft = drafts_[live.draft];
    draft.gone = true;
    const bool only_in_this_op = in_op_ && draft.born_at == draft_ops_.size() - 1;
    if (only_in_this_op && draft.role == Role::activation) draft.role = Role::workspace;
  }
  live.program = live.draft = none;
}

void StepFollower::marked(TensorId tensor, Role role, std::string_view name) {
  Live& live = live_[tensor];
  live.role = role;
  live.name = names_.intern(name);
  if (!recording_ || live.draft == none) return;
  drafts_[live.draft].role = role;
  drafts_[live.draft].name = live.name;
}

StepFollower::Signal StepFollower::iteration_boundary() {
  Signal signal = Signal::nothing;
  if (recording_) {
    recording_ = false;
    if (!draft_ops_.empty()) {
      build_program();
      signal = Signal::profile;
    }
  } else if (recorded() && cursor_ != none && cursor_ != program_.trace.ops.size()) {
    signal = leave("the step ended after " + std::to_string(cursor_) + " of " +
                   std::to_string(program_.trace.ops.size()) + " ops");
  }
  ++step_;
  const bool first = step_ >= 2 && !recorded();  // the first step warms up
  if (follow_ && (first || record_next_)) start_recording();
  cursor_ = recorded() ? 0 : none;
  boundary_cursor_ = 0;
  return signal;
}

OpIndex StepFollower::begin_op(const OpInfo& op, std::span<const Use> uses, Nanoseconds gap_before_ns, Signal& signal) {
  TENCACHE_CHECK(!in_op_);
  in_op_ = true;
  signal = Signal::nothing;
  running_ = none;
  if (aside_) {
    if (cursor_ != none) signal = Signal::deviated;
    cursor_ = none;
    return none;
  }
  if (recording_) {
    DraftOp& draft = draft_ops_.emplace_back();
    draft.info = op;
    draft.module = modules_.empty() ? 0 : modules_.back();
    draft.phase = phase_;
    draft.gap_before_ns = gap_before_ns;
    for (const Use& use : uses) draft.uses.push_back({live_[use.tensor].draft, use.read, use.write});
  }
  if (cursor_ == none) return none;
  std::string why;
  if (!matches(op, uses, why)) {
    signal = leave(why);
    return none;
  }
  running_ = cursor_++;
  ordinal_ = 0;
  return running_;
}

TensorId StepFollower::born(TensorId tensor) {
  Live& live = live_[tensor];
  if (recording_ && in_op_ && !aside_) {
    drafts_[live.draft].born_at = static_cast<std::uint32_t>(draft_ops_.size() - 1);
    draft_ops_.back().births.push_back(live.draft);
  }
  if (running_ == none || ordinal_ >= births_of_[running_].size()) return none;
  const TensorId id = births_of_[running_][ordinal_++];
  const Tensor& recorded = program_.trace.tensors[id];
  if (recorded.bytes != live.bytes) return none;  // the next op that uses it does not match and says so
  live.program = id;
  live.role = recorded.role;
  return id;
}

void StepFollower::end_op(Nanoseconds duration_ns) {
  TENCACHE_CHECK(in_op_);
  in_op_ = false;
  running_ = none;
  if (recording_ && !aside_) draft_ops_.back().duration_ns = duration_ns;
}

std::uint32_t StepFollower::recorded_op() const {
  return recording_ ? static_cast<std::uint32_t>(draft_ops_.size() - 1) : none;
}

void StepFollower::set_duration(std::uint32_t record, Nanoseconds duration_ns) {
  if (recording_ && record < draft_ops_.size()) draft_ops_[record].duration_ns = duration_ns;
}

// ---- Following ------------------------------------------------------------------------------------------------------

bool StepFollower::matches(const OpInfo& op, std::span<const Use> uses, std::string& why) const {
  const std::string_view name = names_[op.name];
  if (cursor_ == program_.trace.ops.size()) {
    why = "op '" + name + "' after the recorded step's last op";
    return false;
  }
  const Op& recorded = program_.trace.ops[cursor_];
  if (recorded.name != op.name) {
    why = "op '" + name + "' where '" + program_.trace.name(recorded) + "' was recorded (op " +
          std::to_string(cursor_) + ")";
    return false;
  }
  const std::vector<Use>& expected = uses_[cursor_];
  bool same = expected.size() == uses.size();
  for (std::size_t i = 0; same && i < uses.size(); ++i) {
    same = uses[i].read == expected[i].read && uses[i].write == expected[i].write &&
           live_[uses[i].tensor].bytes == program_.trace.tensors[expected[i].tensor].bytes;
  }
  if (!same) why = "op '" + name + "' (op " + std::to_string(cursor_) + ") with tensors of other sizes than recorded";
  return same;
}

StepFollower::Signal StepFollower::leave(const std::string& why) {
  cursor_ = none;
  ++deviations_;
  if (first_deviation_.empty()) first_deviation_ = "step " + std::to_string(step_) + ": " + why;
  return Signal::deviated;
}

void StepFollower::module_begin(NameId module) {
  modules_.push_back(module);
  module_boundary(module, true);
}

NameId StepFollower::module_end() {
  TENCACHE_CHECK(!modules_.empty());
  const NameId module = modules_.back();
  modules_.pop_back();
  module_boundary(module, false);
  return module;
}

void StepFollower::module_boundary(NameId module, bool begins) {
  if (recording_) draft_boundaries_.push_back({module, begins, static_cast<OpIndex>(draft_ops_.size())});
  if (!recorded()) return;
  for (std::size_t i = boundary_cursor_; i < boundaries_.size(); ++i) {
    const Boundary& boundary = boundaries_[i];
    if (boundary.module != module || boundary.begins != begins) continue;
    if (cursor_ != none && boundary.op != cursor_) continue;  // on the schedule the op says where we are
    cursor_ = boundary.op;
    boundary_cursor_ = i + 1;
    return;
  }
}

// ---- Recording ------------------------------------------------------------------------------------------------------

void StepFollower::add_draft(Live& live, bool old) {
  live.draft = static_cast<std::uint32_t>(drafts_.size());
  Draft& draft = drafts_.emplace_back();
  draft.bytes = live.bytes;
  draft.role = live.role;
  draft.name = live.name;
  draft.old = old;
  draft.birth = live.birth;
}

void StepFollower::start_recording() {
  record_next_ = false;
  recording_ = true;
  drafts_.clear();
  draft_ops_.clear();
  draft_boundaries_.clear();
  std::vector<Live*> alive;
  for (Live& live : live_) {
    live.draft = none;
    if (live.alive) alive.push_back(&live);
  }
  std::sort(alive.begin(), alive.end(), [](const Live* a, const Live* b) { return a->birth < b->birth; });
  for (Live* live : alive) add_draft(*live, true);
}

// A tensor that was born in the step before and died in this one, and one that was born in this step and outlived it,
// are the same in the eyes of a cyclic program. Gives each draft the draft that stands for it.
std::vector<std::uint32_t> StepFollower::pair_old_and_new() const {
  std::vector<std::uint32_t> stands_for(drafts_.size());
  std::map<Bytes, std::deque<std::uint32_t>> outlived;
  for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
    stands_for[i] = i;
    if (!drafts_[i].old && !drafts_[i].gone) outlived[drafts_[i].bytes].push_back(i);
  }
  for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
    if (!drafts_[i].old || !drafts_[i].gone) continue;
    const auto found = outlived.find(drafts_[i].bytes);
    if (found == outlived.end() || found->second.empty()) continue;
    stands_for[found->second.front()] = i;
    found->second.pop_front();
  }
  return stands_for;
}

std::string StepFollower::name_of(std::uint32_t index, const std::vector<std::uint32_t>& ordinals) const {
  const Draft& draft = drafts_[index];
  if (draft.name != 0) return std::string(names_[draft.name]);
  if (draft.born_at == none) return "tensor." + std::to_string(index);
  return names_[draft_ops_[draft.born_at].info.name] + "." + std::to_string(draft.born_at) + ":" +
         std::to_string(ordinals[index]);
}

void StepFollower::build_program() {
  const std::vector<std::uint32_t> stands_for = pair_old_and_new();
  std::vector<std::uint8_t> used(drafts_.size(), 0), paired(drafts_.size(), 0);
  std::vector<std::uint32_t> ordinals(drafts_.size(), 0);
  for (const DraftOp& op : draft_ops_) {
    for (const Use& use : op.uses) used[stands_for[use.tensor]] = 1;
    for (std::uint32_t i = 0; i < op.births.size(); ++i) {
      used[stands_for[op.births[i]]] = 1;
      ordinals[op.births[i]] = i;
    }
  }
  std::vector<std::uint32_t> successor(drafts_.size(), none);  // the new tensor of a pair knows its name and role best
  for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
    if (stands_for[i] == i) continue;
    paired[stands_for[i]] = 1;
    successor[stands_for[i]] = i;
  }

  const Program empty;
  program_ = empty;
  Trace& trace = program_.trace;
  trace.header = header_;
  trace.names = names_;
  std::vector<TensorId> id_of(drafts_.size(), none);
  for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
    const Draft& draft = drafts_[i];
    if (stands_for[i] != i || (draft.gone && used[i] == 0)) continue;
    // What no op of the step has made and what outlives the step keeps its content from one step to the next.
    const bool persistent = draft.old || draft.born_at == none;
    const std::uint32_t told_by = successor[i] == none ? i : successor[i];
    id_of[i] = trace.add_tensor(name_of(told_by, ordinals), draft.bytes, drafts_[told_by].role, persistent);
  }
  const auto final_id = [&](std::uint32_t draft) { return id_of[stands_for[draft]]; };

  uses_.assign(draft_ops_.size(), {});
  births_of_.assign(draft_ops_.size(), {});
  std::vector<TensorId> reads, writes;
  for (std::size_t i = 0; i < draft_ops_.size(); ++i) {
    const DraftOp& draft = draft_ops_[i];
    reads.clear();
    writes.clear();
    for (const Use& use : draft.uses) {
      const TensorId id = final_id(use.tensor);
      uses_[i].push_back({id, use.read, use.write});
      if (use.read) reads.push_back(id);
      if (use.write) writes.push_back(id);
    }
    for (const std::uint32_t birth : draft.births) {
      births_of_[i].push_back(final_id(birth));
      writes.push_back(final_id(birth));
    }
    Op op;
    op.name = draft.info.name;
    op.module = draft.module;
    op.group = draft.info.group;
    op.phase = draft.phase;
    op.device = draft.info.device;
    op.placeable = draft.info.placeable;
    op.reorderable = draft.info.reorderable;
    op.duration_ns = std::max<Nanoseconds>(draft.duration_ns, 0);
    op.gap_before_ns = std::max<Nanoseconds>(draft.gap_before_ns, 0);
    trace.add_op(op, reads, writes);
  }
  names_ = trace.names;  // ids given from now on differ from those of the trace's own names
  recorded_ = trace;
  boundaries_ = draft_boundaries_;
  for (Live& live : live_) {
    live.program = live.alive && live.draft != none ? final_id(live.draft) : none;
  }
}

void StepFollower::arrange(const std::vector<Op>& ops, const std::vector<OpIndex>& order) {
  TENCACHE_CHECK(ops.size() == program_.trace.ops.size() && order.size() == ops.size());
  const std::vector<std::vector<Use>> uses = std::move(uses_);
  const std::vector<std::vector<TensorId>> births_of = std::move(births_of_);
  uses_.clear();
  births_of_.clear();
  for (std::size_t i = 0; i < order.size(); ++i) {
    program_.trace.ops[i] = ops[order[i]];
    uses_.push_back(uses[order[i]]);
    births_of_.push_back(births_of[order[i]]);
  }
}

std::vector<TensorId> StepFollower::to_memory() const {
  std::vector<TensorId> ids(program_.trace.tensors.size(), none);
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
