// Settings of PyTorch's fully sharded data parallelism and of Hugging Face Accelerate, from the policies that they come
// near (policies/counterparts.h): FSDP keeps parameters, gradients and the optimizer in CPU memory and fetches a layer at
// a time, some layers ahead.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "configs/deepspeed_config.h"
#include "core/trace.h"
#include "policies/counterparts.h"

namespace tencache {

// A layer's parameters have names that agree up to their first number: "model.layers.17." in
// "model.layers.17.mlp.up_proj.weight".
LayerShape layer_shape(const Trace& trace);

// JSON of the arguments of FullyShardedDataParallel (FSDP1) and of fully_shard (FSDP2), where
// `forward_prefetch_modules` are what set_modules_to_forward_prefetch of each layer is given. Throws Error for another
// policy.
WrittenConfig write_fsdp_config(const std::string& policy, const std::map<std::string, std::string>& resolved,
                                const TrainingShape& shape, const LayerShape& layers);

// Accelerate's YAML: the DeepSpeed plugin for zero-infinity and zero-offload, which refers to `deepspeed_file` where
// one was written, else FSDP's. Throws Error for another policy.
WrittenConfig write_accelerate_config(const std::string& policy, const std::map<std::string, std::string>& resolved,
                                      const TrainingShape& shape, const LayerShape& layers,
                                      const std::string& deepspeed_file);

}  // namespace tencache
