// Which system runs a policy today; what other tools are told, and take, to do what it does. Their formats are in
// configs/deepspeed_config.h, configs/fsdp_config.h and studies/inference_config.h, which ask here and name no policy.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "policies/model_shape.h"
#include "policies/options.h"

namespace tencache {

// The last three nobody can install: code that a paper's authors published, memory without a limit, no system at all.
enum class RunsWith : std::uint8_t {
  deepspeed,
  fsdp,
  accelerate,
  flexgen,
  llama_cpp,
  vllm,
  ktransformers,
  bitsandbytes,
  tencache_run,
  artifact,
  oracle,
  nothing
};
template <>
inline constexpr auto enum_texts<RunsWith> =
    std::to_array<std::string_view>({"DeepSpeed", "FSDP", "Accelerate", "FlexGen", "llama.cpp", "vLLM", "KTransformers",
                                     "bitsandbytes", "tencache run", "research artifact", "oracle", "nothing"});
constexpr bool can_be_run(RunsWith system) { return system < RunsWith::artifact; }

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
  bool vllm = false;            // arguments of vLLM
  bool sglang = false;          // arguments of SGLang
  bool ktransformers = false;   // KTransformers, which computes experts on the CPU
  bool bitsandbytes = false;    // its paged optimizers
  bool artifact = false;        // code that the authors published with the paper
  bool oracle = false;          // what no memory allows
  // Whether training ends elsewhere than with everything on the GPU: "no", or when it does.
  const char* changes_training = "no";
};

// What the choice of a system depends on beside the policy.
struct StepNeeds {
  bool training = false;  // a backward pass or an optimizer, which systems for generation do not have
  bool placed = false;  // ops of the model on the CPU, or its parts on several ranks, which `tencache run` does not do
};
// The nearest system that people can install; what only the executor runs, `tencache run` does.
constexpr RunsWith runs_with(const Counterparts& of, const StepNeeds& step = {}) {
  if (of.oracle) return RunsWith::oracle;
  if (of.zero_stage != 0) return RunsWith::deepspeed;
  if (of.fsdp != nullptr) return RunsWith::fsdp;
  if (of.bitsandbytes) return RunsWith::bitsandbytes;
  if (!step.training) {
    if (of.zero_inference) return RunsWith::deepspeed;
    if (of.device_map) return RunsWith::accelerate;
    if (of.flexgen) return RunsWith::flexgen;
    if (of.llama_cpp) return RunsWith::llama_cpp;
    if (of.vllm) return RunsWith::vllm;
    if (of.ktransformers) return RunsWith::ktransformers;
  }
  if (!step.placed) return RunsWith::tencache_run;
  return of.artifact ? RunsWith::artifact : RunsWith::nothing;
}

}  // namespace tencache
