#include "traces/transform/fold_updates.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

constexpr std::uint64_t sub_group_elements = 1'000'000'000;

bool is_state(const Trace& trace, TensorId id) {
  const Tensor& tensor = trace.tensors[id];
  return tensor.role == Role::parameter || tensor.role == Role::optimizer_state ||
         tensor.role == Role::master_parameter;
}

// What a kernel of the step uses, each tensor once, in order.
std::vector<TensorId> used_by(const Trace& trace, const Op& op) {
  std::vector<TensorId> used;
  for (const auto& list : {trace.reads(op), trace.writes(op)}) {
    for (const TensorId id : list) {
      if (std::find(used.begin(), used.end(), id) == used.end()) used.push_back(id);
    }
  }
  return used;
}

struct Region {
  OpIndex first = none, last = none;
};

// The ops that are folded; `none` where there is nothing to do.
Region find_region(const Trace& trace) {
  Region region;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (op.rank != 0) return {};
    if (op.phase != Phase::optimizer) continue;
    if (op.placeable || op.group >= 0 || op.device != Device::gpu) return {};
    const auto writes = trace.writes(op);
    if (std::none_of(writes.begin(), writes.end(), [&](TensorId id) { return is_state(trace, id); })) continue;
    if (region.first == none) region.first = index;
    region.last = index;
  }
  // Nothing but the optimizer may run in between.
  for (OpIndex index = region.first; region.first != none && index <= region.last; ++index) {
    if (trace.ops[index].phase != Phase::optimizer) return {};
  }
  return region;
}

// Which tensors belong together (rule 2): a forest of tensors.
class Families {
 public:
  explicit Families(std::size_t tensors) : parent_(tensors) { std::iota(parent_.begin(), parent_.end(), TensorId{0}); }

  TensorId of(TensorId id) {
    while (parent_[id] != id) id = parent_[id] = parent_[parent_[id]];
    return id;
  }

  void add(const Trace& trace, const Op& op) {
    // What is only written is a list of its own: results of which the kernel has read others.
    std::map<std::pair<Role, bool>, std::vector<TensorId>> lists;
    const auto reads = trace.reads(op);
    for (const TensorId id : used_by(trace, op)) {
      const bool read = std::find(reads.begin(), reads.end(), id) != reads.end();
      if (trace.tensors[id].role != Role::input) lists[{trace.tensors[id].role, read}].push_back(id);
    }
    std::size_t length = 0;  // of a list: a kernel may have two states of each parameter, never two parameters
    for (const Role role : {Role::parameter, Role::master_parameter, Role::gradient, Role::optimizer_state,
                            Role::activation, Role::workspace}) {
      for (const bool read : {true, false}) {
        if (length == 0 && lists.contains({role, read})) length = lists[{role, read}].size();
      }
    }
    std::vector<TensorId> first(length, none);
    for (const auto& [key, list] : lists) {
      if (list.size() % length != 0) continue;
      for (std::size_t i = 0; i < list.size(); ++i) join(first[i % length], list[i]);
    }
  }

 private:
  void join(TensorId& first, TensorId id) {
    if (first == none) first = id;
    parent_[of(id)] = of(first);
  }

  std::vector<TensorId> parent_;
};

struct ParameterUpdate {
  std::vector<TensorId> reads, writes;
  TensorId parameter = none;
  Bytes touched = 0;
  Bytes temporary = 0, most_temporary = 0;  // intermediate results now, and at most
};

// The updates by the family's tensor, and the order in which their parameters or states come.
struct Updates {
  std::map<TensorId, ParameterUpdate> of;
  std::vector<TensorId> order;
};

void add_once(std::vector<TensorId>& list, TensorId id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

Updates collect(const Trace& trace, const Region& region, Families& families) {
  std::vector<OpIndex> made(trace.tensors.size(), none), last(trace.tensors.size(), 0);
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    for (const TensorId id : used_by(trace, trace.ops[index])) {
      if (made[id] == none) made[id] = index;
      last[id] = index;
    }
  }
  // An intermediate result: made and last used by the folded ops.
  const auto temporary = [&](TensorId id) {
    return !trace.tensors[id].persistent && made[id] >= region.first && last[id] <= region.last &&
           trace.tensors[id].role != Role::gradient;
  };
  Updates updates;
  for (OpIndex index = region.first; index <= region.last; ++index) {
    const Op& op = trace.ops[index];
    const auto visit = [&](std::span<const TensorId> ids, std::vector<TensorId> ParameterUpdate::*list) {
      for (const TensorId id : ids) {
        if (temporary(id)) continue;
        const TensorId family = families.of(id);
        ParameterUpdate& update = updates.of[family];  // may be there for its temporaries
        if (update.reads.empty() && update.writes.empty()) updates.order.push_back(family);
        add_once(update.*list, id);
        if (trace.tensors[id].role == Role::parameter && update.parameter == none) update.parameter = id;
      }
    };
    visit(trace.reads(op), &ParameterUpdate::reads);
    visit(trace.writes(op), &ParameterUpdate::writes);
    const std::vector<TensorId> used = used_by(trace, op);
    for (const TensorId id : used) {
      if (!temporary(id) || made[id] != index) continue;
      ParameterUpdate& update = updates.of[families.of(id)];
      update.temporary += trace.tensors[id].bytes;
      update.most_temporary = std::max(update.most_temporary, update.temporary);
    }
    for (const TensorId id : used) {
      if (temporary(id) && last[id] == index) updates.of[families.of(id)].temporary -= trace.tensors[id].bytes;
    }
  }
  return updates;
}

// Of each tensor, whether the folded trace has it: persistent ones, and those that its ops use.
std::vector<std::uint8_t> tensors_left(const Trace& trace, const Region& region, const Updates& updates) {
  std::vector<std::uint8_t> used(trace.tensors.size(), 0);
  for (TensorId id = 0; id < trace.tensors.size(); ++id) used[id] = trace.tensors[id].persistent;
  const auto use = [&used](std::span<const TensorId> ids) {
    for (const TensorId id : ids) used[id] = 1;
  };
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    if (index >= region.first && index <= region.last) continue;
    use(trace.reads(trace.ops[index]));
    use(trace.writes(trace.ops[index]));
  }
  for (const auto& [family, update] : updates.of) {
    use(update.reads);
    use(update.writes);
  }
  return used;
}

// What the region's ops take together, which its updates share by the bytes that they touch.
struct Whole {
  Nanoseconds duration_ns = 0, gap_ns = 0, issue_ns = 0;
  DurationSource source = DurationSource::measured;
  Bytes touched = 0;
  bool kernels_known = false;  // of at least one of the ops
  std::uint32_t step = 0;      // of the first op

  // Cut where the sum of the bytes so far is: nothing is lost in rounding.
  Nanoseconds share(Nanoseconds whole, Bytes before, Bytes bytes) const {
    return up_to(whole, before + bytes) - up_to(whole, before);
  }

 private:
  Nanoseconds up_to(Nanoseconds whole, Bytes so_far) const {
    return static_cast<Nanoseconds>(static_cast<double>(whole) * static_cast<double>(so_far) /
                                    static_cast<double>(touched));
  }
};

Whole whole_of(const Trace& trace, const Region& region, const Updates& updates) {
  Whole whole;
  whole.step = trace.detail(trace.ops[region.first]).step;
  for (OpIndex index = region.first; index <= region.last; ++index) {
    const Op& op = trace.ops[index];
    whole.duration_ns += op.duration_ns;
    whole.gap_ns += op.gap_before_ns;
    whole.issue_ns += op.issue_ns;
    if (op.duration_source == DurationSource::modelled) whole.source = DurationSource::modelled;
    if (trace.kernel(op).kind != KernelKind::unknown) whole.kernels_known = true;
  }
  for (const TensorId family : updates.order) whole.touched += updates.of.at(family).touched;
  return whole;
}

// The folded trace while it is made, op by op.
class FoldedTrace {
 public:
  // `left`: tensors_left().
  FoldedTrace(const Trace& trace, const std::vector<std::uint8_t>& left)
      : trace_(trace), ids_(left.size(), none), index_(trace.ops.size(), none) {
    result_.header = trace.header;
    result_.kernels = trace.kernels;
    for (TensorId id = 0; id < left.size(); ++id) {
      const Tensor& tensor = trace.tensors[id];
      if (left[id] == 0) continue;
      ids_[id] = result_.add_tensor(trace.name(tensor), tensor.bytes, tensor.role, tensor.persistent);
      result_.tensors[ids_[id]].stored_bytes = tensor.stored_bytes;
      result_.tensors[ids_[id]].profiled_uses = tensor.profiled_uses;
    }
  }

  void keep(OpIndex index) {
    const Op& before = trace_.ops[index];
    Op op = before;
    op.name = result_.names.intern(trace_.name(before));
    op.module = result_.names.intern(trace_.module(before));
    op.rendezvous = result_.names.intern(trace_.names[before.rendezvous]);
    OpDetail detail = trace_.detail(before);
    if (detail.revealed_by != none) {
      const OpIndex revealing = index_[detail.revealed_by];
      detail.revealed_by = revealing != none ? revealing : last_update_;
    }
    op.detail = result_.add_detail(detail);
    index_[index] = result_.add_op(op, renumbered(trace_.reads(before)), renumbered(trace_.writes(before)),
                                   renumbered(trace_.frees(before)));
  }

  // `frees`: of the trace.
  void add(const ParameterUpdate& update, const Whole& whole, std::span<const TensorId> frees) {
    const TensorId named = update.parameter != none ? update.parameter : update.writes.front();
    const std::string name(trace_.name(trace_.tensors[named]));
    std::vector<TensorId> writes = renumbered(update.writes);
    if (update.most_temporary > 0) {
      writes.push_back(result_.add_tensor(name + ".update:workspace", update.most_temporary, Role::workspace, false));
    }
    Op op;
    op.name = result_.names.intern("update");
    op.module = result_.names.intern(std::string_view(name).substr(0, std::min(name.rfind('.'), name.size())));
    op.phase = Phase::optimizer;
    op.duration_source = whole.source;
    op.placeable = op.reorderable = true;
    op.group = group_;
    op.duration_ns = whole.share(whole.duration_ns, touched_, update.touched);
    op.gap_before_ns = whole.share(whole.gap_ns, touched_, update.touched);
    op.issue_ns = whole.share(whole.issue_ns, touched_, update.touched);
    op.bytes = update.touched;
    if (whole.kernels_known) op.kernel = result_.kernels.intern({.kind = KernelKind::optimizer});
    op.detail = result_.add_detail({.step = whole.step});
    last_update_ = result_.add_op(op, renumbered(update.reads), writes, renumbered(frees));
    touched_ += update.touched;
    elements_ += trace_.tensors[named].bytes / trace_.header.element_bytes();
    if (elements_ >= sub_group_elements) ++group_, elements_ = 0;
  }

  Trace take() { return std::move(result_); }

 private:
  // Those that the folded trace has: the kernels' temporaries, which some op may free, are gone.
  std::vector<TensorId> renumbered(std::span<const TensorId> list) const {
    std::vector<TensorId> result;
    for (const TensorId id : list) {
      if (ids_[id] != none) result.push_back(ids_[id]);
    }
    return result;
  }

  const Trace& trace_;
  std::vector<TensorId> ids_;   // in the folded trace, of each of the trace's tensors
  std::vector<OpIndex> index_;  // in the folded trace, of each of the trace's ops; none: folded, or still to come
  OpIndex last_update_ = none;  // what a folded op has revealed, the updates together do
  Trace result_;
  // Of the updates so far.
  Bytes touched_ = 0;
  std::uint64_t elements_ = 0;  // in the present sub-group
  std::int32_t group_ = 0;
};

// The folded ops in place of the region's, with all that is around them as it was, and without tensors that no op uses
// any more.
Trace rebuild(const Trace& trace, const Region& region, const Updates& updates) {
  FoldedTrace folded(trace, tensors_left(trace, region, updates));
  for (OpIndex index = 0; index < region.first; ++index) folded.keep(index);
  const Whole whole = whole_of(trace, region, updates);
  std::vector<TensorId> frees;  // by the region's ops: gradients, most often all at once at the end
  for (OpIndex index = region.first; index <= region.last; ++index) {
    const auto more = trace.frees(trace.ops[index]);
    frees.insert(frees.end(), more.begin(), more.end());
  }
  for (const TensorId family : updates.order) {
    const bool last = family == updates.order.back();
    folded.add(updates.of.at(family), whole, last ? std::span<const TensorId>(frees) : std::span<const TensorId>());
  }
  for (OpIndex index = region.last + 1; index < trace.ops.size(); ++index) folded.keep(index);
  Trace result = folded.take();
  // The ops before the region are where they were.
  if (!trace.choices.empty() && trace.choices.back().before < region.first) result.choices = trace.choices;
  for (RecomputeChoice& choice : result.choices) choice.module = result.names.intern(trace.names[choice.module]);
  return result;
}

}  // namespace

std::string FoldedUpdates::to_string() const {
  const std::string whose = "the optimizer's " + std::to_string(kernels) + " kernels ";
  if (updates > 0) return whose + "are simulated as " + std::to_string(updates) + " updates";
  return whose + "could not be told apart by parameter: policies that place or order updates find kernels instead";
}

FoldedUpdates fold_updates(Trace& trace) {
  const Region region = find_region(trace);
  if (region.first == none) return {};
  Families families(trace.tensors.size());
  for (OpIndex index = region.first; index <= region.last; ++index) families.add(trace, trace.ops[index]);
  Updates updates = collect(trace, region, families);
  // A family of nothing but gradients or inputs is no update, a state without a parameter a rule that did not hold.
  std::erase_if(updates.order, [&](TensorId family) { return updates.of.at(family).writes.empty(); });
  for (const TensorId family : updates.order) {
    ParameterUpdate& update = updates.of.at(family);
    const auto lone_state = [&](TensorId id) { return trace.tensors[id].role == Role::optimizer_state; };
    if (std::ranges::all_of(update.writes, lone_state)) {
      return {.kernels = region.last - region.first + 1, .updates = 0};
    }
    for (const auto* list : {&update.reads, &update.writes}) {
      for (const TensorId id : *list) update.touched += trace.tensors[id].bytes;
    }
  }
  std::erase_if(updates.of, [](const auto& entry) { return entry.second.writes.empty(); });
  if (updates.order.empty()) return {};
  const FoldedUpdates folded{.kernels = region.last - region.first + 1, .updates = updates.order.size()};
  trace = rebuild(trace, region, updates);
  trace.validate("trace with folded updates");
  return folded;
}

Trace read_trace_to_simulate(const std::string& path, FoldedUpdates* folded) {
  Trace trace = read_trace(path);
  const FoldedUpdates done = fold_updates(trace);
  if (folded != nullptr) *folded = done;
  return trace;
}

}  // namespace tencache
