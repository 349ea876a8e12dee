// Where the weights of a model live for good, for policies that run inference: each module's home is one tier, from
// where its weights are copied to the GPU when they are needed. A module is a layer of the model, or what is in none.
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

class WeightHomes {
 public:
  enum class Mapped { all, layers };  // which modules go by `bytes`; the others' home is the GPU

  WeightHomes() = default;
  // `bytes`: of weights that each tier may be home to, 0 for those that may not. Modules fill the tiers in their order,
  // from the fastest on, and never go back to one that a module did not fit into: Accelerate's infer_auto_device_map.
  WeightHomes(const Trace& trace, std::span<const Bytes> bytes, Mapped mapped = Mapped::all);

  // Of a tensor of the program; no_tier for what is no weight.
  TierId of(TensorId tensor) const { return tensor < tiers_.size() ? tiers_[tensor] : no_tier; }
  // As Layout::start, for chunks of that size (0: whole tensors).
  std::vector<std::uint8_t> start(const Trace& trace, Bytes chunk_bytes) const;

 private:
  std::vector<TierId> tiers_;  // by tensor
};

// The bytes of the largest module, and of the largest weight in a layer; 0: there is none.
Bytes largest_module(const Trace& trace);
Bytes largest_layer_weight(const Trace& trace);

}  // namespace tencache
