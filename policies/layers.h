// What a layer of a program is, for the policies that move whole layers.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/policy.h"
#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

// The layer that a module belongs to: the name up to its first number, "model.decoder.layers.0" of
// "model.decoder.layers.0.self_attn.q_proj"; a name without one is a layer of its own ("embedding", "lm_head").
std::string_view layer_of_module(std::string_view module);

// A layer is a run of ops of one layer's modules: it begins and ends with the first op of another, in forward and
// backward alike. A run of ops without a module (the optimizer's, say) has no parameters here and is served on demand.
struct Layers {
  struct Layer {
    // Ids of the program; each once, in order of first use; at a gate, all the experts that it chooses among.
    std::vector<TensorId> parameters;
    std::vector<TensorId> gradients;  // that it writes
  };
  std::vector<Layer> list;           // in program order
  std::vector<std::uint32_t> of_op;  // index into `list`
};

// Linear in the program's accesses.
Layers find_layers(const Program& program, const Schedule& schedule);

// The tensor (an id of the program) leaves the GPU for CPU memory, as far as no op uses it: dropped where it is clean.
void send_home(TensorId tensor, const View& view, Actions& actions);

}  // namespace tencache
