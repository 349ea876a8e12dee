// What the systems that run generations are told: a device map for Hugging Face Accelerate, a configuration for
// DeepSpeed's ZeRO-Inference. Of a policy's settings, a trace and a machine.
#pragma once

#include <map>
#include <string>

#include "configs/deepspeed_config.h"
#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// JSON of the argument `device_map` of from_pretrained() and dispatch_model(): each module's home under the
// policy, 0 (the GPU), "cpu" or "disk". A layer is one module. What reads a weight of another module, as a tied
// head does, has its device. Throws Error for several ranks, or a tier that Accelerate does not know.
WrittenConfig write_device_map(const std::string& policy, const std::map<std::string, std::string>& settings,
                               const Trace& trace, const MachineSpec& machine);

// JSON of ZeRO stage 3 without an optimizer, as DeepSpeedExamples' zero_inference has it, of policy `zero-inference`.
WrittenConfig write_zero_inference_config(const std::map<std::string, std::string>& settings, const Trace& trace,
                                          const TrainingShape& shape);

// Arguments of FlexGen's flex_opt.py, of policy `flexgen`, for blocks of so many micro-batches. Throws Error where a
// linear program chooses the shares.
WrittenConfig write_flexgen_arguments(const std::map<std::string, std::string>& settings, std::uint64_t requests,
                                      std::uint64_t micro_batches);

// Arguments of llama.cpp's programs, of policy `llama-cpp`: layers and experts as they are placed, which may be fewer
// than the settings ask for.
WrittenConfig write_llama_cpp_arguments(const std::string& policy, const std::map<std::string, std::string>& settings,
                                        const Trace& trace, const MachineSpec& machine);

// Arguments of `vllm serve`, of policies `vllm-uva` and `vllm-prefetch`. Throws Error where vLLM does something else.
WrittenConfig write_vllm_arguments(const std::map<std::string, std::string>& settings);

// Arguments of SGLang's server, of the same policies, with `copied` and `experts`: its offloaders read nothing in
// place, and those by groups move experts alone. Throws Error without these.
WrittenConfig write_sglang_arguments(const std::map<std::string, std::string>& settings);

// What write_ktransformers_arguments throws for such a model.
std::string no_experts(const std::string& model);

// Arguments of the server that KTransformers is part of (a fork of SGLang), of policy `ktransformers`: as many experts
// on the GPU as the policy places there. Throws Error for a model without experts and for several ranks.
WrittenConfig write_ktransformers_arguments(const std::string& policy,
                                            const std::map<std::string, std::string>& settings, const Trace& trace,
                                            const MachineSpec& machine);

}  // namespace tencache
