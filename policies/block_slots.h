// A block of requests, as a generation runs through it: a slot is one micro-batch's pass through one layer at one step
// (FlexGen, Sheng et al. 2023, algorithm 1: the body of its innermost loop).
#pragma once

#include <cstdint>
#include <vector>

#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

struct BlockSlot {
  OpIndex first = none, last = none;      // its ops, all in a row
  OpIndex last_on_cpu = none;             // of them; none: all are the GPU's
  std::uint32_t layer = 0;                // into BlockSlots::layers
  std::uint32_t micro_batch = 0;          // which of those that pass the layer one after the other
  bool ends_run = false;                  // the next slot is another layer's, or another step's
  std::vector<TensorId> cache_read = {};  // KV tensors of earlier slots
  std::vector<TensorId> cache_written = {};
  std::vector<TensorId> hidden_read = {};  // activations of earlier slots
  std::vector<TensorId> hidden_kept = {};  // activations that later slots read
};

// A layer's weights, with all of its experts, in the order of their first use. The attention's come before `attention_end`.
struct BlockLayer {
  std::vector<TensorId> weights;
  std::size_t attention_end = 0;  // weights.size() for an embedding or a head: they are one part
};

struct BlockSlots {
  BlockSlots() = default;
  // Of the ops of one rank. A layer is what layer_of_module says; its slots are told apart by its first op, which comes
  // again. Linear in the accesses.
  BlockSlots(const Trace& trace, const Schedule& schedule);

  std::vector<BlockSlot> slots;
  std::vector<BlockLayer> layers;    // in order of their first slot
  std::vector<std::uint32_t> of_op;  // slot, by op
};

// By op: the KV tensors that it is the last of its slot to use, and that another slot uses later.
std::vector<std::vector<TensorId>> leaving_caches(const Trace& trace, const Schedule& schedule,
                                                  const BlockSlots& slots);

// Moves to the CPU what new tokens do with KV caches, as far as the trace lets it: for Policy::place. Throws Error, in the
// name of `policy`, where no such op is on the CPU or may be moved there.
void attend_on_cpu(const Trace& trace, const char* policy, std::vector<Device>& devices);

}  // namespace tencache
