// What nobody can know before it is decided: which experts the ops read that a gate decides.
//
// A gate is an op that others name in OpDetail::revealed_by: the router of a layer with experts. Policies, unless they
// are oracles, are given traces that are sealed, from which the choice is left out, and hear of it when the gate is done
// (EventKind::revealed); so none can look further by mistake. Rehearsals draw a choice in place of the real one.
//
// The experts that a gate may choose are the tensors of role `expert` whose names begin with the gate's module and a
// dot; those of one expert have the same name up to its first number, such as "layers.3.mlp" and "experts.17.up".
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/trace.h"

namespace tencache {

// Of a name after its gate's module and a dot, the expert's: up to the first part that is a number.
std::string_view expert_in(std::string_view name);

// Whether the trace has gates.
bool has_gates(const Trace& trace);

// The trace as it is known before its gates are done. The ops that they decide do not read their experts;
// OpDetail::expert_bytes says how many bytes of weights each will read. Neither they nor what else they use is named
// after one (names have numbers of their own), and where a policy lets them run is not to be seen: they are shown on
// the GPU, those that lowering has moved with a time of 0. How many experts a gate chooses, and how many tokens each
// gets, is not hidden: ops stay as many, and all else as long and as large. Linear in the trace.
Trace sealed(const Trace& trace);

// The experts of a gate that it may choose among.
class Experts {
 public:
  // Of a trace, sealed or not, which must outlive this object.
  explicit Experts(const Trace& trace);

  // How many the gate has to choose from; 0: the op is no gate, or no tensor is named after its module.
  std::size_t count(OpIndex gate) const { return layer_of(gate).size(); }
  // The weights of one, in the order of their ids.
  std::span<const TensorId> weights(OpIndex gate, std::size_t expert) const { return layer_of(gate)[expert]; }
  // Numbers of layers, dense, in the order of their first gates; `none`: the op is no gate.
  std::uint32_t layer(OpIndex gate) const { return layer_of_module(trace_.ops[gate].module); }
  std::uint32_t layers() const { return static_cast<std::uint32_t>(experts_.size()); }
  std::size_t count_in(std::uint32_t layer) const { return experts_[layer].size(); }
  std::span<const TensorId> weights_in(std::uint32_t layer, std::size_t expert) const {
    return experts_[layer][expert];
  }
  // The number of the expert of the gate's layer with that name, such as "experts.17"; `none`: no such expert.
  std::uint32_t find(OpIndex gate, std::string_view name) const;
  // Which layer and expert the tensor is of; layer `none`: of none that a gate may choose.
  struct Place {
    std::uint32_t layer = none, expert = 0;
  };
  Place place(TensorId tensor) const { return places_.empty() ? Place{} : places_[tensor]; }
  // The gates, ascending.
  std::span<const OpIndex> gates() const { return gates_; }

 private:
  using Layer = std::vector<std::vector<TensorId>>;  // by expert
  std::uint32_t layer_of_module(NameId module) const { return module < by_module_.size() ? by_module_[module] : none; }
  const Layer& layer_of(OpIndex gate) const {
    const std::uint32_t number = layer(gate);
    return number == none ? no_experts_ : experts_[number];
  }

  const Trace& trace_;
  std::vector<OpIndex> gates_;
  std::vector<std::uint32_t> by_module_;  // the layer
  std::vector<Layer> experts_;            // by layer
  std::vector<Place> places_;             // by tensor
  Layer no_experts_;
};

// The sealed trace with experts drawn for every gate, each as likely as the others: as many as it will choose. The same
// seed draws the same. Where a gate has no experts to choose from, its ops stay as they are; so does all of a trace
// that is not sealed.
Trace draw_experts(Trace sealed, std::uint64_t seed = 1);

// What the gates of one step chose, by gate in the order of Experts::gates: numbers of experts, as Experts has them, in
// the order in which they run.
using StepChoices = std::vector<std::vector<std::uint32_t>>;
// Of a step that was recorded once, as many as there are choices: copies of the step, one after the other, each with
// the experts that its gates chose. OpDetail::step numbers them. What does not persist is each copy's own. An op whose
// gate chose fewer experts than in the recorded step keeps the recorded one. The step is not sealed.
Trace repeat_step(const Trace& step, std::span<const StepChoices> choices);
// How many steps the trace has of which each is a token's: repeat_step's copies; else 1.
std::uint32_t repeated_steps(const Trace& trace);

// What a run has revealed: which uses of experts are known and still to come.
class Revelations {
 public:
  Revelations() = default;
  // Of the program as it is run, not sealed.
  explicit Revelations(const Trace& trace);

  bool empty() const { return first_use_.empty(); }
  // The op of that iteration may be issued: no gate decides it, or its gate is done.
  bool decided(OpIndex op, std::uint64_t iteration) const {
    return empty() || gate_of_[op] == none || times_done_[gate_of_[op]] > iteration;
  }
  // The gate is done. What it decided, in the order of the ops, valid until the next call; empty: it is no gate.
  std::span<const Use> reveal(OpIndex gate);
  // The same of a live program, whose gate chose these experts and not those of the recorded step. Its ops read them in
  // this order. Those beyond the recorded number come last, and no op is known to read them. What the gate revealed
  // before and no op has read is forgotten. `experts`: of the same trace.
  std::span<const Use> reveal(OpIndex gate, const Experts& experts, std::span<const std::uint32_t> chosen);
  // The op is done.
  void done(OpIndex op);
  // Whether what the op reads is revealed.
  bool shown(OpIndex op) const { return !empty() && shown_[op] > 0; }

  // For policies. The experts that the op reads, empty until its gate is done and once it is over itself.
  std::span<const Use> uses(OpIndex op) const;
  // The first op, other than `op`, that is known to read the expert's tensor and is still to come; `none`: unknown.
  OpIndex next_use(TensorId tensor, OpIndex op) const;

 private:
  std::span<const Use> hidden(OpIndex op) const {
    const std::uint32_t first = first_use_[op];
    return {uses_.data() + first, counts_.empty() ? first_use_[op + std::size_t{1}] - first : counts_[op]};
  }

  std::vector<Use> uses_;                     // of experts by ops that gates decide, op after op
  std::vector<std::uint32_t> first_use_;      // by op, and the end of the last
  std::vector<Use> recorded_;                 // live: `uses_` at first
  std::vector<std::uint32_t> counts_;         // live: by op, how many of `uses_` from its first
  std::vector<OpIndex> gate_of_;              // by op
  std::vector<OpIndex> end_of_;               // by gate's op: after the last that it decides; 0: no gate
  std::vector<OpIndex> begin_of_;             // by gate's op: the first that it decides
  std::vector<std::uint8_t> shown_;           // by op: revealed and not done, as often
  std::vector<std::uint64_t> times_done_;     // by gate's op
  std::vector<std::vector<OpIndex>> coming_;  // by tensor: ops to come, in the order in which they were revealed
  std::vector<Use> decided_;                  // by the last gate
};

}  // namespace tencache
