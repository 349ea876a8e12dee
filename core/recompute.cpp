#include "core/recompute.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

// By op, the least id of a tensor that is not persistent and first written there or later: what an op before this one
// makes would have been added before it.
std::vector<TensorId> places_of(const Trace& trace) {
  std::vector<TensorId> places(trace.ops.size(), static_cast<TensorId>(trace.tensors.size()));
  std::vector<bool> written(trace.tensors.size(), false);
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    for (const TensorId id : trace.writes(trace.ops[index])) {
      if (!written[id] && !trace.tensors[id].persistent) places[index] = std::min(places[index], id);
      written[id] = true;
    }
  }
  for (std::size_t index = trace.ops.size(); --index > 0;)
    places[index - 1] = std::min(places[index - 1], places[index]);
  return places;
}

// Writes the program of some levels, op by op.
class Lowering {
 public:
  Lowering(const Trace& trace, std::span<const RecomputeLevel> levels) : trace_(trace), levels_(levels) {
    lowered_.header = trace.header;
    lowered_.names = trace.names;
    lowered_.kernels = trace.kernels;
    lowered_.details = trace.details;
    add_tensors();
  }

  Trace run() {
    std::vector<OpIndex> moved;  // by op: where it is now
    std::size_t next = 0;
    for (OpIndex index = 0; index < trace_.ops.size(); ++index) {
      for (; next < levels_.size() && trace_.choices[next].before == index; ++next) {
        take_back(trace_.choices[next]);
        for (const auto& [id, copy] : copies_of_[next]) copies_[id] = copy;
        for (const OpIndex op : again_in(next)) {
          for (const TensorId id : trace_.writes(trace_.ops[op])) now_[id] = copies_[id];
          add_again(trace_.ops[op], trace_.ops[index]);
        }
      }
      moved.push_back(static_cast<OpIndex>(lowered_.ops.size()));
      add(trace_.ops[index]);
    }
    for (OpDetail& detail : lowered_.details) {
      if (detail.revealed_by != none) detail.revealed_by = moved[detail.revealed_by];
    }
    return std::move(lowered_);
  }

 private:
  const std::vector<OpIndex>& again_in(std::size_t choice) const {
    return trace_.choices[choice].again[static_cast<std::size_t>(levels_[choice])];
  }

  // What a choice before this one made anew is again what the trace itself makes.
  void take_back(const RecomputeChoice& choice) {
    for (const std::vector<OpIndex>& again : choice.again) {
      for (const OpIndex op : again) {
        for (const TensorId id : trace_.writes(trace_.ops[op])) now_[id] = recorded_[id];
      }
    }
  }

  // All tensors, with the copies where the generator would have added them.
  void add_tensors() {
    std::vector<std::tuple<TensorId, TensorId, std::size_t>> copied;  // before which tensor, of which, for which choice
    const std::vector<TensorId> places = places_of(trace_);
    std::vector<std::size_t> seen(trace_.tensors.size(), 0);  // by which choice last, from 1
    for (std::size_t choice = 0; choice < levels_.size(); ++choice) {
      for (const OpIndex op : again_in(choice)) {
        for (const TensorId id : trace_.writes(trace_.ops[op])) {
          if (std::exchange(seen[id], choice + 1) != choice + 1)
            copied.emplace_back(places[trace_.choices[choice].before], id, choice);
        }
      }
    }
    std::ranges::sort(copied);
    copies_.assign(trace_.tensors.size(), none);
    copies_of_.resize(levels_.size());
    recorded_.resize(trace_.tensors.size());
    const auto add = [&](TensorId id) {
      lowered_.tensors.push_back(trace_.tensors[id]);
      return static_cast<TensorId>(lowered_.tensors.size() - 1);
    };
    std::size_t next = 0;
    for (TensorId id = 0; id <= trace_.tensors.size(); ++id) {
      for (; next < copied.size() && std::get<0>(copied[next]) == id; ++next) {
        const auto [place, of, choice] = copied[next];
        copies_of_[choice].emplace_back(of, add(of));
      }
      if (id < trace_.tensors.size()) recorded_[id] = add(id);
    }
    now_ = recorded_;
  }

  // In the phase, and at the step of a generation, of the op that it runs before.
  void add_again(const Op& op, const Op& before) {
    Op& added = lowered_.ops[add(op)];
    added.phase = before.phase;
    if (before.phase == Phase::decode) added.detail = before.detail;
  }
  OpIndex add(const Op& op) {
    const auto present = [this](std::span<const TensorId> ids, std::vector<TensorId>& to) {
      to.clear();
      for (const TensorId id : ids) to.push_back(now_[id]);
    };
    present(trace_.reads(op), reads_);
    present(trace_.writes(op), writes_);
    present(trace_.frees(op), frees_);
    return lowered_.add_op(op, reads_, writes_, frees_);
  }

  const Trace& trace_;
  std::span<const RecomputeLevel> levels_;
  Trace lowered_;
  std::vector<TensorId> recorded_;  // by tensor: what it is in the lowered program
  std::vector<TensorId> now_;       // what the present op reads and writes for it
  std::vector<TensorId> copies_;    // what its ops make when they run again for the present choice
  std::vector<std::vector<std::pair<TensorId, TensorId>>> copies_of_;  // by choice: tensors, and what is made of them
  std::vector<TensorId> reads_, writes_, frees_;
};

// What the ops of a layer's forward pass need of each other if they run again.
class Needs {
 public:
  explicit Needs(const Trace& trace)
      : trace_(trace), last_read_(trace.tensors.size()), writers_(trace.tensors.size()), marked_(trace.tensors.size()) {
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      for (const TensorId id : trace.reads(trace.ops[index])) last_read_[id] = index;
      for (const TensorId id : trace.writes(trace.ops[index])) ++writers_[id];
    }
  }

  // Leaves out the last ops as far as the backward pass reads nothing that they make.
  void stop_early(std::vector<OpIndex>& ops, OpIndex before) const {
    const auto is_read = [&](TensorId id) { return last_read_[id] >= before; };
    while (!ops.empty() && std::ranges::none_of(trace_.writes(trace_.ops[ops.back()]), is_read)) ops.pop_back();
  }

  // Norms and elementwise ops that make what the backward pass reads from what is kept for it anyway.
  std::vector<OpIndex> elementwise(const LayerPasses& layer) {
    std::vector<OpIndex> result;
    ++mark_;  // what they make
    for (OpIndex index = layer.first; index < layer.end; ++index) {
      const Op& op = trace_.ops[index];
      const KernelKind kind = trace_.kernel(op).kind;
      if (kind != KernelKind::norm && kind != KernelKind::elementwise) continue;
      const auto is_kept = [&](TensorId id) {
        return trace_.tensors[id].persistent || last_read_[id] >= layer.before || marked_[id] == mark_;
      };
      const auto can_be_made = [&](TensorId id) {
        return last_read_[id] >= layer.before && !trace_.tensors[id].persistent && writers_[id] == 1;
      };
      if (!std::ranges::all_of(trace_.reads(op), is_kept) || !std::ranges::all_of(trace_.writes(op), can_be_made))
        continue;
      result.push_back(index);
      for (const TensorId id : trace_.writes(op)) marked_[id] = mark_;
    }
    return result;
  }

 private:
  const Trace& trace_;
  std::vector<OpIndex> last_read_;      // by tensor
  std::vector<std::uint32_t> writers_;  // by tensor: how many ops write it
  std::vector<std::uint32_t> marked_;   // by tensor
  std::uint32_t mark_ = 0;
};

}  // namespace

Trace with_levels(const Trace& trace, std::span<const RecomputeLevel> levels) {
  TENCACHE_CHECK(levels.size() == trace.choices.size());
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const RecomputeChoice& choice = trace.choices[i];
    if (choice.offers(levels[i])) continue;
    std::string offered;
    for (std::size_t level = 0; level < recompute_level_count; ++level) {
      const auto other = static_cast<RecomputeLevel>(level);
      if (choice.offers(other)) offered += (offered.empty() ? "" : ", ") + std::string(to_string(other));
    }
    throw Error("micro-batch " + std::to_string(choice.micro_batch) + " of '" + trace.names[choice.module] +
                "' cannot be recomputed at level '" + std::string(to_string(levels[i])) + "'; the trace offers " +
                offered);
  }
  return Lowering(trace, levels).run();
}

Trace without_choices(const Trace& trace) {
  std::vector<bool> can_be_made(trace.tensors.size(), false);
  for (const RecomputeChoice& choice : trace.choices) {
    for (const std::vector<OpIndex>& again : choice.again) {
      for (const OpIndex op : again) {
        for (const TensorId id : trace.writes(trace.ops[op])) can_be_made[id] = true;
      }
    }
  }
  Trace common = trace;
  common.choices.clear();
  common.accesses.clear();
  common.ops.clear();
  std::vector<TensorId> reads, writes, frees;
  const auto left = [&](std::span<const TensorId> ids, std::vector<TensorId>& to) {
    to.clear();
    std::ranges::copy_if(ids, std::back_inserter(to), [&](TensorId id) { return !can_be_made[id]; });
  };
  for (const Op& op : trace.ops) {
    left(trace.reads(op), reads);
    left(trace.writes(op), writes);
    left(trace.frees(op), frees);
    common.add_op(op, reads, writes, frees);
  }
  return common;
}

void add_choices(Trace& trace, std::span<const LayerPasses> layers, bool early_stop) {
  Needs needs(trace);
  for (const LayerPasses& layer : layers) {
    RecomputeChoice choice{
        .module = layer.module, .micro_batch = layer.micro_batch, .before = layer.before, .again = {}};
    auto& [keep, elementwise, attention, block] = choice.again;
    elementwise = needs.elementwise(layer);
    for (OpIndex op = layer.first; op < layer.end; ++op) {
      block.push_back(op);
      if (trace.kernel(trace.ops[op]).kind != KernelKind::attention) attention.push_back(op);
    }
    if (attention.size() == block.size()) attention.clear();
    if (early_stop) {
      needs.stop_early(attention, layer.before);
      needs.stop_early(block, layer.before);
    }
    trace.choices.push_back(std::move(choice));
  }
}

std::vector<bool> recomputed_ops(const Trace& trace) {
  std::vector<bool> again(trace.ops.size(), false);
  std::set<std::tuple<NameId, NameId, NameId>> made;  // op, module, result
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    const bool forward = op.phase == Phase::forward || op.phase == Phase::loss;
    if (!forward && (op.phase != Phase::backward || made.empty())) continue;
    for (const TensorId id : trace.writes(op)) {
      const Tensor& tensor = trace.tensors[id];
      if (tensor.role != Role::activation || tensor.name == 0) continue;
      const std::tuple result(op.name, op.module, tensor.name);
      if (forward) {
        made.insert(result);
      } else if (made.contains(result)) {
        again[index] = true;
      }
    }
  }
  std::vector<bool> read_again(trace.tensors.size(), false);  // by the next op that uses it
  for (OpIndex index = static_cast<OpIndex>(trace.ops.size()); index-- > 0;) {
    const Op& op = trace.ops[index];
    const auto serves = [&](TensorId id) { return trace.tensors[id].role == Role::workspace && read_again[id]; };
    const std::span<const TensorId> writes = trace.writes(op);
    if (op.phase == Phase::backward && !writes.empty() && std::ranges::all_of(writes, serves)) again[index] = true;
    for (const TensorId id : writes) read_again[id] = false;
    for (const TensorId id : trace.reads(op)) read_again[id] = again[index];
  }
  return again;
}

std::string why_no_choices(const Trace& trace) {
  if (const std::string* const why = trace.header.provenance.option("no-choice")) return "no choice: " + *why;
  const bool has_modules = std::ranges::any_of(trace.ops, [](const Op& op) { return op.module != 0; });
  if (!has_modules) return "no choice: no modules recorded";
  return "no choice: the trace names none; generate it with --recompute choose";
}

}  // namespace tencache
