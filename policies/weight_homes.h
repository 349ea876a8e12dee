// Where the weights of a model live for good, for policies that run inference: each module's home is one tier, from
// where its weights are copied to the GPU when they are needed. A module is a layer of the model, or, of what is in none,
// the weights whose names differ in their last part only.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

// Roles of a model's weights: each kernel that reads one needs it on its device.
inline bool is_weight(Role role) { return role == Role::parameter || role == Role::expert; }

// As Layout::start, for tensors that start in one tier each: `homes` by tensor, no_tier for those of which nothing is
// said. Chunks of `chunk_bytes`, 0: whole tensors.
std::vector<std::uint8_t> start_in(const Trace& trace, std::span<const TierId> homes, Bytes chunk_bytes);

// The same, of weights that are on the GPU, but for those that are `away` (by tensor), in the tier `below`.
std::vector<std::uint8_t> start_of_weights(const Trace& trace, const std::vector<bool>& away, TierId below,
                                           Bytes chunk_bytes);

class WeightHomes {
 public:
  // Which modules go by `bytes`; the home of the others is the GPU.
  enum class Mapped { all, layers };

  WeightHomes() = default;
  // `bytes`: of weights that each tier may be home to, 0 for those that may not. Modules fill the tiers in their order,
  // from the fastest on, and never go back to one that a module did not fit into. The slowest takes what is left. If all
  // are mapped, the largest of the modules that are still to come must fit as well into each tier but the slowest, so
  // that a copy of it has room there: infer_auto_device_map of Accelerate 1.15, where `bytes` are its max_memory.
  WeightHomes(const Trace& trace, std::span<const Bytes> bytes, Mapped mapped = Mapped::all);

  // Of a tensor of the program; no_tier for what is no weight.
  TierId of(TensorId tensor) const { return tensor < tiers_.size() ? tiers_[tensor] : no_tier; }
  // As Layout::start, for chunks of that size (0: whole tensors).
  std::vector<std::uint8_t> start(const Trace& trace, Bytes chunk_bytes) const {
    return start_in(trace, tiers_, chunk_bytes);
  }

 private:
  std::vector<TierId> tiers_;  // by tensor
};

// The bytes of the largest weight in a layer; 0: there is none.
Bytes largest_layer_weight(const Trace& trace);

}  // namespace tencache
