// Recomputation as a choice: a trace that keeps all activations, and the programs that compute some of them again.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/trace.h"

namespace tencache {

// The program of a level for each of the trace's choices: before a layer's backward pass (a new token's attention) run
// copies of those ops of its forward pass that the level runs again, with the same times, into tensors of their own, and
// what follows reads these, up to the next choice that could make the same tensors.
// The result has no choices. `levels`: by choice. Throws Error for a level that a choice does not offer.
Trace with_levels(const Trace& trace, std::span<const RecomputeLevel> levels);

// The trace without choices, and without any use of the tensors that they can make again: what the programs of all
// levels have in common.
Trace without_choices(const Trace& trace);

// Ops of a layer's forward pass, first to before end, and of its backward pass, of one micro-batch.
struct LayerPasses {
  NameId module = 0;
  std::uint32_t micro_batch = 0;
  OpIndex first = 0, end = 0, before = none;
};
// Gives the trace, which has one rank and keeps all activations, a choice for each of these, in the order of their
// backward passes. elementwise: norms and activation functions whose inputs are kept anyway; attention: all ops but
// fused attention, if there is any; block: all ops. `early_stop`: without the last ops, as far as
// the backward pass reads nothing that they make.
void add_choices(Trace& trace, std::span<const LayerPasses> layers, bool early_stop);

// By op, whether it makes again in the backward pass what the forward pass made: a result of the same name by an op of
// the same name and module, as in programs of levels, generated traces and recordings of tencache_recorder; or only
// what such ops read. In other recordings each result has a name of its own, so that none is.
std::vector<bool> recomputed_ops(const Trace& trace);

// Why the trace has no choices, for people. It has none. A recorder says it as option "no-choice" of the provenance.
std::string why_no_choices(const Trace& trace);

}  // namespace tencache
