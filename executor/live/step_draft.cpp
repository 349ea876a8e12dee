#include "executor/live/step_draft.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "core/check.h"
#include "core/reveal.h"

namespace tencache {

void StepDraft::module_begin(NameId module) {
  modules_.push_back(module);
  if (recording_) boundaries_.push_back({module, true, static_cast<OpIndex>(ops_.size())});
}

NameId StepDraft::module_end() {
  TENCACHE_CHECK(!modules_.empty());
  const NameId module = modules_.back();
  modules_.pop_back();
  if (recording_) boundaries_.push_back({module, false, static_cast<OpIndex>(ops_.size())});
  return module;
}

void StepDraft::start() {
  recording_ = true;
  tensors_.clear();
  ops_.clear();
  boundaries_.clear();
  gates_.clear();
}

std::uint32_t StepDraft::add(Bytes bytes, Role role, NameId name, bool old) {
  if (!recording_) return none;
  tensors_.push_back({.bytes = bytes, .role = role, .name = name, .old = old});
  return static_cast<std::uint32_t>(tensors_.size() - 1);
}

void StepDraft::died(std::uint32_t tensor, bool in_op) {
  if (!recording_ || tensor == none) return;
  DraftTensor& draft = tensors_[tensor];
  draft.gone = true;
  if (!ops_.empty()) draft.gone_after = static_cast<std::uint32_t>(ops_.size() - 1);
  const bool only_in_this_op = in_op && draft.born_at == ops_.size() - 1;
  if (only_in_this_op && draft.role == Role::activation) draft.role = Role::workspace;
}

void StepDraft::marked(std::uint32_t tensor, Role role, NameId name) {
  if (!recording_ || tensor == none) return;
  tensors_[tensor].role = role;
  tensors_[tensor].name = name;
}

void StepDraft::begin_op(Op op, std::vector<Use> uses) {
  op.module = modules_.empty() ? 0 : modules_.back();
  op.phase = phase_;
  op.gap_before_ns = std::max<Nanoseconds>(op.gap_before_ns, 0);
  ops_.push_back({op, std::move(uses), {}});
}

void StepDraft::born(std::uint32_t tensor) {
  if (!recording_) return;
  tensors_[tensor].born_at = static_cast<std::uint32_t>(ops_.size() - 1);
  ops_.back().births.push_back(tensor);
}

void StepDraft::chose(NameId block) {
  if (!recording_ || ops_.empty()) return;
  const OpIndex gate = last_op();
  ops_.back().op.module = block;
  if (!gates_.empty() && gates_.back().first == gate) gates_.pop_back();
  gates_.emplace_back(gate, block);
}

void StepDraft::set_duration(std::uint32_t op, Nanoseconds duration_ns) {
  if (recording_ && op < ops_.size()) ops_[op].op.duration_ns = std::max<Nanoseconds>(duration_ns, 0);
}

void StepDraft::set_gap(std::uint32_t op, Nanoseconds gap_ns) {
  if (recording_ && op < ops_.size()) ops_[op].op.gap_before_ns = gap_ns;
}

void StepDraft::set_issue(std::uint32_t op, Nanoseconds issue_ns) {
  if (recording_ && op < ops_.size()) ops_[op].op.issue_ns = std::max<Nanoseconds>(issue_ns, 0);
}

// A tensor that was born in the step before and died in this one, and one that was born in this step and outlived it,
// are the same in the eyes of a cyclic program. Gives each draft the draft that stands for it.
std::vector<std::uint32_t> StepDraft::pair_old_and_new() const {
  std::vector<std::uint32_t> stands_for(tensors_.size());
  std::map<Bytes, std::deque<std::uint32_t>> outlived;
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    stands_for[i] = i;
    if (!tensors_[i].old && !tensors_[i].gone) outlived[tensors_[i].bytes].push_back(i);
  }
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].old || !tensors_[i].gone) continue;
    const auto found = outlived.find(tensors_[i].bytes);
    if (found == outlived.end() || found->second.empty()) continue;
    stands_for[found->second.front()] = i;
    found->second.pop_front();
  }
  pair_grown(stands_for);
  return stands_for;
}

// The rest, with the largest of those that its op reads; what is left then in order of birth, if as many died as
// outlived the step.
void StepDraft::pair_grown(std::vector<std::uint32_t>& stands_for) const {
  std::vector<std::uint8_t> paired(tensors_.size(), 0);
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if (stands_for[i] != i) paired[stands_for[i]] = 1;
  }
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    const DraftTensor& born = tensors_[i];
    if (born.old || born.gone || born.born_at == none || stands_for[i] != i) continue;
    std::uint32_t largest = none;
    for (const Use& use : ops_[born.born_at].uses) {
      const DraftTensor& from = tensors_[use.tensor];
      if (!from.old || !from.gone || paired[use.tensor] != 0 || from.bytes > born.bytes) continue;
      if (largest == none || from.bytes > tensors_[largest].bytes) largest = use.tensor;
    }
    if (largest == none) continue;
    stands_for[i] = largest;
    paired[largest] = 1;
  }
  // Positions of tokens are made anew in each step, and are more each time.
  std::vector<std::uint32_t> died, outlived;
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    const DraftTensor& tensor = tensors_[i];
    if (tensor.old && tensor.gone && paired[i] == 0) died.push_back(i);
    if (!tensor.old && !tensor.gone && tensor.born_at != none && stands_for[i] == i) outlived.push_back(i);
  }
  if (died.size() != outlived.size()) return;
  for (std::size_t i = 0; i < died.size(); ++i) stands_for[outlived[i]] = died[i];
}

std::string StepDraft::name_of(std::uint32_t tensor, std::uint32_t ordinal, const NamePool& names) const {
  const DraftTensor& draft = tensors_[tensor];
  if (draft.name != 0) return std::string(names[draft.name]);
  if (draft.born_at == none) return "tensor." + std::to_string(tensor);
  return names[ops_[draft.born_at].op.name] + "." + std::to_string(draft.born_at) + ":" + std::to_string(ordinal);
}

// Returns the ids by draft.
std::vector<TensorId> StepDraft::add_tensors(Trace& trace) const {
  const std::vector<std::uint32_t> stands_for = pair_old_and_new();
  std::vector<std::uint8_t> used(tensors_.size(), 0);
  std::vector<std::uint32_t> ordinals(tensors_.size(), 0);
  for (const DraftOp& op : ops_) {
    for (const Use& use : op.uses) used[stands_for[use.tensor]] = 1;
    for (std::uint32_t i = 0; i < op.births.size(); ++i) {
      used[stands_for[op.births[i]]] = 1;
      ordinals[op.births[i]] = i;
    }
  }
  std::vector<std::uint32_t> successor(tensors_.size(), none);  // the new tensor of a pair knows its name and role best
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if (stands_for[i] != i) successor[stands_for[i]] = i;
  }
  std::vector<TensorId> ids(tensors_.size(), none);
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    const DraftTensor& draft = tensors_[i];
    if (stands_for[i] != i || (draft.gone && used[i] == 0)) continue;
    // What no op of the step has made and what outlives the step keeps its content from one step to the next.
    const bool persistent = draft.old || draft.born_at == none;
    const std::uint32_t told_by = successor[i] == none ? i : successor[i];
    ids[i] = trace.add_tensor(name_of(told_by, ordinals[told_by], trace.names), draft.bytes, tensors_[told_by].role,
                              persistent);
  }
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) ids[i] = ids[stands_for[i]];
  return ids;
}

std::vector<std::vector<TensorId>> StepDraft::frees(const Trace& trace, const std::vector<TensorId>& ids) const {
  std::vector<std::uint32_t> last_use(tensors_.size(), none);
  for (std::uint32_t op = 0; op < ops_.size(); ++op) {
    for (const Use& use : ops_[op].uses) last_use[use.tensor] = op;
    for (const std::uint32_t birth : ops_[op].births) last_use[birth] = op;
  }
  std::vector<std::vector<TensorId>> result(ops_.size());
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if (ids[i] == none || trace.tensors[ids[i]].persistent) continue;
    const std::uint32_t until = tensors_[i].gone ? tensors_[i].gone_after : static_cast<std::uint32_t>(ops_.size() - 1);
    if (until > last_use[i]) result[until].push_back(ids[i]);
  }
  return result;
}

// The modules that have weights of role `expert`, by name.
std::set<std::string> StepDraft::experts_of(std::string_view block, const NamePool& names) const {
  std::set<std::string> experts;
  const std::string before = block + ".";
  for (const DraftTensor& tensor : tensors_) {
    const std::string_view name = names[tensor.name];
    if (tensor.role != Role::expert || !name.starts_with(before)) continue;
    experts.insert(before + std::string(expert_in(name.substr(before.size()))));
  }
  return experts;
}

std::vector<GatedRegion> StepDraft::find_regions(const NamePool& names) const {
  std::vector<GatedRegion> regions;
  for (std::size_t i = 0; i < gates_.size(); ++i) {
    GatedRegion region{.gate = gates_[i].first, .block = gates_[i].second};
    const OpIndex next_gate = i + 1 < gates_.size() ? gates_[i + 1].first : static_cast<OpIndex>(ops_.size());
    const std::set<std::string> experts = experts_of(names[region.block], names);
    NameId open = 0;  // the expert that runs
    for (std::size_t at = 0; at < boundaries_.size(); ++at) {
      const auto& [module, begins, op] = boundaries_[at];
      if (op <= region.gate) continue;
      if (op > next_gate) break;
      if (module == region.block && !begins) {
        region.end = op;
        region.boundaries = at + 1;
        break;
      }
      if (open == 0 && begins && experts.contains(std::string(names[module]))) {
        open = module;
        region.calls.push_back({module, op, op});
      } else if (module == open && !begins) {
        region.calls.back().end = op;
        open = 0;
      }
    }
    // If the same block chooses twice, the last choice counts.
    if (region.end != 0 && !region.calls.empty()) regions.push_back(std::move(region));
  }
  return regions;
}

void StepDraft::reveal(RecordedStep& step) {
  Trace& trace = step.trace;
  for (const GatedRegion& region : step.regions) {
    const std::uint32_t detail = trace.add_detail({.revealed_by = region.gate});
    for (const auto& [expert, begin, end] : region.calls) {
      for (OpIndex op = begin; op < end; ++op) {
        trace.ops[op].detail = detail;
        trace.ops[op].module = expert;
      }
    }
  }
  const Experts experts(trace);
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    Role& role = trace.tensors[tensor].role;
    if (role == Role::expert && experts.place(tensor).layer == none) role = Role::parameter;
  }
}

RecordedStep StepDraft::finish(const NamePool& names, std::vector<TensorId>& ids) const {
  RecordedStep step;
  step.trace.header.provenance.made_by = MadeBy::recorded;
  step.trace.names = names;
  ids = add_tensors(step.trace);
  step.boundaries = boundaries_;
  const std::vector<std::vector<TensorId>> freed = frees(step.trace, ids);
  std::vector<TensorId> reads, writes;
  for (const DraftOp& draft : ops_) {
    reads.clear();
    writes.clear();
    std::vector<Use>& uses = step.uses.emplace_back();
    for (const Use& use : draft.uses) {
      const TensorId id = ids[use.tensor];
      uses.push_back({id, use.read, use.write});
      if (use.read) reads.push_back(id);
      if (use.write) writes.push_back(id);
    }
    std::vector<TensorId>& births = step.births.emplace_back();
    for (const std::uint32_t birth : draft.births) {
      births.push_back(ids[birth]);
      writes.push_back(ids[birth]);
    }
    step.trace.add_op(draft.op, reads, writes, freed[step.trace.ops.size()]);
  }
  step.regions = find_regions(names);
  reveal(step);
  return step;
}

}  // namespace tencache
