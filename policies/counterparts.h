// What other tools are told, and take, to do what a policy does. Their files' formats are in configs/deepspeed_config.h,
// configs/fsdp_config.h and studies/inference_config.h, which ask here and name no policy.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/model_shape.h"
#include "policies/options.h"

namespace tencache {

// Elements of a model as FSDP wraps it, whole: the parts of all ranks together.
struct LayerShape {
  std::uint64_t layer = 0;  // of the largest layer; 0: no tensor's name says its layer
  std::uint64_t all = 0;
};

// In DeepSpeed's own words: "none" (the GPU), "cpu", "nvme".
struct DeepSpeedDevices {
  std::string optimizer = "cpu", parameters = "none";
  std::vector<std::string> remarks = {};  // settings that have no key there
};

// What PyTorch's FSDP is told, whichever its version.
struct FsdpSettings {
  bool offload = true;
  bool reshard = true;           // after the forward pass
  std::uint64_t prefetched = 0;  // layers ahead
  std::vector<std::string> remarks = {};
};

// CPU memory that DeepSpeed allocates at the start, a rank's (studies/deepspeed_memory.h). PyTorch's allocator rounds each
// page-locked piece up to a power of two.
struct DeepSpeedMemory {
  Bytes pageable = 0;                        // never page-locked
  Bytes locked = 0;                          // always, rounded
  Bytes if_asked = 0, if_asked_rounded = 0;  // with `pin_memory`

  static Bytes rounded(Bytes bytes) { return bytes == 0 ? 0 : std::bit_ceil(bytes); }
  void add_if_asked(Bytes bytes) {
    if_asked += bytes;
    if_asked_rounded += rounded(bytes);
  }
  Bytes page_locked(bool pin_memory) const { return locked + (pin_memory ? if_asked_rounded : 0); }
  Bytes all(bool pin_memory) const { return pageable + locked + (pin_memory ? if_asked_rounded : if_asked); }
};

// Of a policy; what is null or 0 the tool does not have. `resolved`: all options of the policy.
struct Counterparts {
  std::uint32_t zero_stage = 0;  // of DeepSpeed's ZeRO, with an optimizer that is offloaded
  DeepSpeedDevices (*deepspeed)(const Settings& resolved) = nullptr;
  DeepSpeedMemory (*deepspeed_memory)(const Settings& resolved, const ModelShape& model) = nullptr;
  // `shards`: ranks that each parameter is split over.
  FsdpSettings (*fsdp)(const Settings& resolved, std::uint64_t shards, const LayerShape& layers) = nullptr;
  bool zero_inference = false;  // ZeRO-Inference
  bool device_map = false;      // Accelerate's, which places modules where the policy has them at the start
  bool flexgen = false;         // arguments of FlexGen
  bool llama_cpp = false;       // arguments of llama.cpp
};

}  // namespace tencache
