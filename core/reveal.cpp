#include "core/reveal.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/state_hash.h"

namespace tencache {
namespace {

OpIndex gate_of(const Trace& trace, const Op& op) { return trace.detail(op).revealed_by; }

bool is_expert(const Trace& trace, TensorId tensor) { return trace.tensors[tensor].role == Role::expert; }

// Tensors that do not persist and that an op which a gate decides reads or writes.
std::vector<bool> used_by_decided(const Trace& trace) {
  std::vector<bool> used(trace.tensors.size(), false);
  for (const Op& op : trace.ops) {
    if (gate_of(trace, op) == none) continue;
    for (const std::span<const TensorId> tensors : {trace.reads(op), trace.writes(op)}) {
      for (const TensorId tensor : tensors) used[tensor] = !trace.tensors[tensor].persistent;
    }
  }
  return used;
}

}  // namespace

std::string_view expert_in(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == part.npos) return name.substr(0, end);
    begin = end + 1;
  }
  return name;
}

bool has_gates(const Trace& trace) {
  return std::ranges::any_of(trace.details, [](const OpDetail& detail) { return detail.revealed_by != none; });
}

Trace sealed(const Trace& trace) {
  Trace result;
  result.header = trace.header;
  result.tensors = trace.tensors;
  result.kernels = trace.kernels;
  result.choices = trace.choices;
  result.ops.reserve(trace.ops.size());
  result.accesses.reserve(trace.accesses.size());
  // Names are numbered anew, since their numbers tell in what order they came.
  std::vector<NameId> renamed(trace.names.size(), none);
  const auto rename = [&](NameId& name) {
    NameId& now = renamed[name];
    if (now == none) now = result.names.intern(trace.names[name]);
    name = now;
  };
  const std::vector<bool> of_expert = used_by_decided(trace);
  const NameId unnamed = result.names.intern("of an expert");
  for (TensorId tensor = 0; tensor < result.tensors.size(); ++tensor) {
    if (of_expert[tensor]) {
      result.tensors[tensor].name = unnamed;
    } else {
      rename(result.tensors[tensor].name);
    }
  }
  for (RecomputeChoice& choice : result.choices) rename(choice.module);
  std::unordered_map<OpIndex, std::uint32_t> slots;  // by gate: of its experts, how many have come
  NameId expert = 0;                                 // the module of the op before, if a gate decided it
  NameId slot = 0;                                   // what it is called
  std::vector<TensorId> reads;
  for (Op op : trace.ops) {
    const std::span<const TensorId> writes = trace.writes(op), frees = trace.frees(op);
    reads.assign(trace.reads(op).begin(), trace.reads(op).end());
    OpDetail detail = trace.detail(op);
    rename(op.name);
    rename(op.rendezvous);
    if (detail.revealed_by == none) {
      expert = 0;
      rename(op.module);
    } else {
      for (const TensorId tensor : reads) {
        if (is_expert(trace, tensor)) detail.expert_bytes += trace.tensors[tensor].bytes;
      }
      std::erase_if(reads, [&](TensorId tensor) { return is_expert(trace, tensor); });
      if (op.module != expert || expert == 0) {
        const std::uint32_t number = slots[detail.revealed_by]++;
        slot = result.names.intern(trace.module(trace.ops[detail.revealed_by]) + ".chosen " + std::to_string(number));
      }
      expert = std::exchange(op.module, slot);
      if (op.device == Device::cpu && op.placeable) {
        op.device = Device::gpu;
        op.duration_ns = 0;
      }
    }
    op.detail = result.add_detail(detail);
    result.add_op(op, reads, writes, frees);
  }
  result.names.settle();
  return result;
}

// ---- Experts --------------------------------------------------------------------------------------------------------

Experts::Experts(const Trace& trace) : trace_(trace) {
  for (const Op& op : trace.ops) {
    const OpIndex gate = gate_of(trace, op);
    if (gate != none && (gates_.empty() || gates_.back() != gate)) gates_.push_back(gate);
  }
  if (gates_.empty()) return;
  std::ranges::sort(gates_);
  gates_.erase(std::ranges::unique(gates_).begin(), gates_.end());
  by_module_.assign(trace.names.size(), none);
  std::unordered_map<std::string_view, std::uint32_t> layers;  // by name
  for (const OpIndex gate : gates_) {
    const NameId module = trace.ops[gate].module;
    if (by_module_[module] != none) continue;
    by_module_[module] = layers.emplace(trace.names[module], layers.size()).first->second;
  }
  experts_.resize(layers.size());
  places_.resize(trace.tensors.size());
  std::vector<std::map<std::string_view, std::uint32_t>> numbers(layers.size());  // of experts, by name
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (!is_expert(trace, tensor)) continue;
    const std::string_view name = trace.name(trace.tensors[tensor]);
    for (std::size_t dot = name.rfind('.'); dot != name.npos && dot > 0; dot = name.rfind('.', dot - 1)) {
      const auto layer = layers.find(name.substr(0, dot));
      if (layer == layers.end()) continue;
      Layer& experts = experts_[layer->second];
      const auto number = static_cast<std::uint32_t>(experts.size());
      const auto [found, added] = numbers[layer->second].emplace(expert_in(name.substr(dot + 1)), number);
      if (added) experts.emplace_back();
      experts[found->second].push_back(tensor);
      places_[tensor] = {layer->second, found->second};
      break;
    }
  }
}

std::uint32_t Experts::find(OpIndex gate, std::string_view name) const {
  const Layer& layer = layer_of(gate);
  for (std::uint32_t expert = 0; expert < layer.size(); ++expert) {
    const std::string_view full = trace_.name(trace_.tensors[layer[expert].front()]);
    if (expert_in(full.substr(trace_.module(trace_.ops[gate]).size() + 1)) == name) return expert;
  }
  return none;
}

namespace {

// The experts that the gate's ops read, in the order of the ops.
std::vector<std::uint32_t> recorded_choice(const Trace& trace, const Experts& experts, OpIndex gate) {
  std::vector<std::uint32_t> chosen;
  for (OpIndex op = gate + 1; op < trace.ops.size(); ++op) {
    if (gate_of(trace, trace.ops[op]) != gate) continue;
    for (const TensorId tensor : trace.reads(trace.ops[op])) {
      const Experts::Place at = experts.place(tensor);
      if (at.layer != experts.layer(gate) || std::ranges::find(chosen, at.expert) != chosen.end()) continue;
      chosen.push_back(at.expert);
    }
  }
  return chosen;
}

// Makes the copies of a step.
class StepCopier {
 public:
  explicit StepCopier(const Trace& step) : step_(step), experts_(step) {
    result_.header = step.header;
    result_.names = step.names;
    result_.tensors = step.tensors;
    result_.kernels = step.kernels;
    result_.ops.reserve(step.ops.size());
    for (const OpIndex gate : experts_.gates()) recorded_.push_back(recorded_choice(step, experts_, gate));
  }

  void add(const StepChoices& choices) {
    begin_copy(choices);
    const auto first = static_cast<OpIndex>(result_.ops.size());
    std::vector<TensorId> reads, writes, frees;
    const auto map = [this](std::span<const TensorId> from, std::vector<TensorId>& to) {
      to.clear();
      for (const TensorId tensor : from) to.push_back(stands_for_[tensor]);
    };
    const auto after = [](const std::unordered_map<std::uint32_t, std::uint32_t>& ids, std::uint32_t id) {
      const auto found = ids.find(id);
      return found == ids.end() ? id : found->second;
    };
    for (const Op& recorded : step_.ops) {
      Op op = recorded;
      OpDetail detail = step_.detail(recorded);
      map(step_.reads(recorded), reads);
      map(step_.writes(recorded), writes);
      map(step_.frees(recorded), frees);
      if (detail.revealed_by != none) {
        const Choice& choice = choices_[detail.revealed_by];
        op.module = after(choice.modules, recorded.module);
        for (TensorId& tensor : reads) tensor = after(choice.weights, tensor);
        detail.revealed_by += first;
      }
      detail.step = copies_;
      op.detail = result_.add_detail(detail);
      result_.add_op(op, reads, writes, frees);
    }
    ++copies_;
  }

  Trace take() && {
    result_.names.settle();
    return std::move(result_);
  }

 private:
  void begin_copy(const StepChoices& choices) {
    stands_for_.resize(step_.tensors.size());
    choices_.clear();
    for (TensorId tensor = 0; tensor < step_.tensors.size(); ++tensor) {
      const bool own = copies_ > 0 && !step_.tensors[tensor].persistent;
      stands_for_[tensor] = own ? static_cast<TensorId>(result_.tensors.size()) : tensor;
      if (own) result_.tensors.push_back(step_.tensors[tensor]);
    }
    for (std::size_t i = 0; i < recorded_.size() && i < choices.size(); ++i) {
      const OpIndex gate = experts_.gates()[i];
      for (std::size_t slot = 0; slot < recorded_[i].size() && slot < choices[i].size(); ++slot) {
        put(gate, recorded_[i][slot], choices[i][slot]);
      }
    }
  }

  // Ops that read the first expert's weights read the second's.
  void put(OpIndex gate, std::uint32_t recorded, std::uint32_t chosen) {
    const std::span<const TensorId> from = experts_.weights(gate, recorded), to = experts_.weights(gate, chosen);
    Choice& choice = choices_[gate];
    for (std::size_t i = 0; i < from.size() && i < to.size(); ++i) choice.weights[from[i]] = to[i];
    choice.modules[module(gate, recorded)] = module(gate, chosen);
  }
  NameId module(OpIndex gate, std::uint32_t expert) {
    const std::string_view block = step_.module(step_.ops[gate]);
    const std::string_view weight = step_.name(step_.tensors[experts_.weights(gate, expert).front()]);
    return result_.names.intern(block + "." + std::string(expert_in(weight.substr(block.size() + 1))));
  }

  const Trace& step_;
  const Experts experts_;
  std::vector<std::vector<std::uint32_t>> recorded_;  // by gate
  Trace result_;
  std::uint32_t copies_ = 0;
  std::vector<TensorId> stands_for_;  // in the copy that is made
  struct Choice {                     // what stands for the recorded one
    std::unordered_map<std::uint32_t, std::uint32_t> weights, modules;
  };
  std::unordered_map<OpIndex, Choice> choices_;  // by gate
};

}  // namespace

Trace repeat_step(const Trace& step, std::span<const StepChoices> choices) {
  StepCopier copier(step);
  for (const StepChoices& of_step : choices) copier.add(of_step);
  return std::move(copier).take();
}

std::uint32_t repeated_steps(const Trace& trace) {
  if (trace.header.provenance.made_by != MadeBy::recorded) return 1;
  std::uint32_t last = 0;
  for (const OpDetail& detail : trace.details) last = std::max(last, detail.step);
  return last + 1;
}

Trace draw_experts(Trace sealed, std::uint64_t seed) {
  const auto reads_one = [](const OpDetail& detail) { return detail.expert_bytes > 0; };
  if (std::ranges::none_of(sealed.details, reads_one)) return sealed;
  const Experts experts(sealed);
  if (experts.gates().empty()) return sealed;
  struct Gate {
    std::vector<std::uint32_t> order;  // of its layer's experts: the next to be drawn at `drawn`
    std::size_t drawn = 0;
    std::uint64_t draws = 0;
  };
  std::unordered_map<OpIndex, Gate> gates;
  Trace result = sealed;
  result.ops.clear();
  result.accesses.clear();
  NameId slot = 0;                    // of the op before
  std::span<const TensorId> weights;  // of the expert that was drawn for it
  std::size_t taken = 0;              // of them, which come in the order in which its ops read them
  std::vector<TensorId> reads;
  result.ops.reserve(sealed.ops.size());
  for (const Op& op : sealed.ops) {
    reads.assign(sealed.reads(op).begin(), sealed.reads(op).end());
    const OpDetail& detail = result.details[op.detail];
    if (detail.revealed_by == none || detail.expert_bytes == 0) {
      if (detail.revealed_by == none) slot = 0;
    } else if (const std::size_t count = experts.count(detail.revealed_by); count > 0) {
      if (op.module != slot || slot == 0) {
        Gate& gate = gates[detail.revealed_by];
        if (gate.drawn == gate.order.size()) {
          gate.order.resize(count);
          for (std::uint32_t i = 0; i < count; ++i) gate.order[i] = i;
          gate.drawn = 0;
        }
        StateHash hash;
        for (const std::uint64_t part_of_seed : {seed, std::uint64_t{detail.revealed_by}, ++gate.draws}) {
          hash.mix(part_of_seed);
        }
        std::swap(gate.order[gate.drawn], gate.order[gate.drawn + hash.value() % (count - gate.drawn)]);
        weights = experts.weights(detail.revealed_by, gate.order[gate.drawn++]);
        taken = 0;
        slot = op.module;
      }
      for (Bytes bytes = 0; bytes < detail.expert_bytes && taken < weights.size(); ++taken) {
        reads.push_back(weights[taken]);
        bytes += result.tensors[weights[taken]].bytes;
      }
    }
    result.add_op(op, reads, sealed.writes(op), sealed.frees(op));
  }
  for (OpDetail& detail : result.details) detail.expert_bytes = 0;
  return result;
}

// ---- Revelations ----------------------------------------------------------------------------------------------------

Revelations::Revelations(const Trace& trace) {
  if (!has_gates(trace)) return;
  const std::size_t ops = trace.ops.size();
  first_use_.reserve(ops + 1);
  gate_of_.assign(ops, none);
  begin_of_.assign(ops, none);
  end_of_.assign(ops, 0);
  shown_.assign(ops, 0);
  times_done_.assign(ops, 0);
  coming_.resize(trace.tensors.size());
  for (OpIndex index = 0; index < ops; ++index) {
    first_use_.push_back(static_cast<std::uint32_t>(uses_.size()));
    const Op& op = trace.ops[index];
    const OpIndex gate = gate_of_[index] = gate_of(trace, op);
    if (gate == none) continue;
    begin_of_[gate] = std::min(begin_of_[gate], index);
    end_of_[gate] = index + 1;
    const std::size_t first = uses_.size();
    for (const TensorId tensor : trace.reads(op)) {
      const bool again = std::any_of(uses_.begin() + static_cast<std::ptrdiff_t>(first), uses_.end(),
                                     [tensor](const Use& use) { return use.tensor == tensor; });
      if (is_expert(trace, tensor) && !again) uses_.push_back({tensor, true, false});
    }
  }
  first_use_.push_back(static_cast<std::uint32_t>(uses_.size()));
}

std::span<const Use> Revelations::reveal(OpIndex gate) {
  decided_.clear();
  if (empty() || end_of_[gate] == 0) return {};
  ++times_done_[gate];
  for (OpIndex op = begin_of_[gate]; op < end_of_[gate]; ++op) {
    if (gate_of_[op] != gate) continue;
    ++shown_[op];
    for (const Use& use : hidden(op)) {
      coming_[use.tensor].push_back(op);
      decided_.push_back(use);
    }
  }
  return decided_;
}

std::span<const Use> Revelations::reveal(OpIndex gate, const Experts& experts, std::span<const std::uint32_t> chosen) {
  if (empty() || end_of_[gate] == 0) return {};
  if (recorded_.empty()) {
    recorded_ = uses_;
    counts_.resize(gate_of_.size());
    for (OpIndex op = 0; op < counts_.size(); ++op) counts_[op] = first_use_[op + std::size_t{1}] - first_use_[op];
  }
  std::vector<std::uint32_t> slots;  // the recorded step's experts, in order
  for (OpIndex op = begin_of_[gate]; op < end_of_[gate]; ++op) {
    if (gate_of_[op] != gate) continue;
    while (shown_[op] > 0) done(op);
    counts_[op] = 0;
    for (std::uint32_t i = first_use_[op]; i < first_use_[op + std::size_t{1}]; ++i) {
      const Experts::Place was = experts.place(recorded_[i].tensor);
      if (was.layer != experts.layer(gate)) continue;
      auto slot = std::ranges::find(slots, was.expert);
      if (slot == slots.end()) slot = slots.insert(slot, was.expert);
      const auto number = static_cast<std::size_t>(slot - slots.begin());
      if (number >= chosen.size()) continue;
      const std::span<const TensorId> from = experts.weights(gate, was.expert);
      const std::span<const TensorId> to = experts.weights(gate, chosen[number]);
      const auto at = static_cast<std::size_t>(std::ranges::find(from, recorded_[i].tensor) - from.begin());
      if (at < to.size()) uses_[first_use_[op] + counts_[op]++] = {to[at], true, false};
    }
  }
  reveal(gate);
  for (std::size_t more = slots.size(); more < chosen.size(); ++more) {
    for (const TensorId tensor : experts.weights(gate, chosen[more])) decided_.push_back({tensor, true, false});
  }
  return decided_;
}

void Revelations::done(OpIndex op) {
  if (empty() || gate_of_[op] == none) return;
  TENCACHE_CHECK(shown_[op] > 0);
  --shown_[op];
  for (const Use& use : hidden(op)) {
    std::vector<OpIndex>& coming = coming_[use.tensor];
    coming.erase(std::ranges::find(coming, op));
  }
}

std::span<const Use> Revelations::uses(OpIndex op) const {
  if (empty() || gate_of_[op] == none || shown_[op] == 0) return {};
  return hidden(op);
}

OpIndex Revelations::next_use(TensorId tensor, OpIndex op) const {
  if (empty()) return none;
  const std::vector<OpIndex>& coming = coming_[tensor];
  const auto next = std::ranges::find_if(coming, [op](OpIndex other) { return other != op; });
  return next == coming.end() ? none : *next;
}

}  // namespace tencache
