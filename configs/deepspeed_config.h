// DeepSpeed's configuration file, as far as it says how a model is offloaded, in the options of the policies
// `zero-infinity` (stage 3) and `zero-offload` (stages 1 and 2 with an offloaded optimizer). Keys, defaults and what
// counts whole parameters are those of DeepSpeed 0.19's runtime/zero/config.py, offload_config.py, stage3.py and
// swap_tensor/aio_config.py.
//
// A policy counts elements as the trace has them: a rank's part, where ZeRO-3 splits each parameter over `shards`
// ranks. DeepSpeed counts whole parameters for prefetching, live parameters, reuse, persistence and the reduction
// bucket, and parts for sub-groups and swap buffers.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tencache {

struct DeepSpeedConfig {
  std::string policy;                           // of TenCache; empty: nothing is offloaded
  std::uint64_t stage = 0;                      // of ZeRO
  std::map<std::string, std::string> settings;  // of its options, those that the file says
  std::string precision;                        // "bf16", "fp16"; empty: not said
  std::uint64_t micro_batch = 0;                // a rank's; 0: not said
  // ZeRO++: so many ranks keep a second 16-bit copy of all parameters on their GPUs between them; 0: none does.
  std::uint64_t second_copy_ranks = 0;
  std::vector<std::string> warnings;  // a sentence each
  nlohmann::ordered_json document;    // as read, keys put right: what is written again
};

// Reads JSON as people write it: with comments, trailing commas, Python's True and None, numbers such as 1e9 or "1e9".
// "auto" is the default. Nested at most 200 deep. A misspelt, misplaced or deprecated key is taken for the one it
// stands for, with a warning; keys that the model does not use are named in one. Also Hugging Face Accelerate's YAML
// with a `deepspeed_config` section (of a name that ends in .yaml or .yml). Throws Error, with the file's name, on what
// is neither, a value that is not of its key's type, and on a file that offloads nothing. `shards` is at least 1.
DeepSpeedConfig parse_deepspeed_config(const std::string& text, const std::string& file, std::uint64_t shards);
DeepSpeedConfig read_deepspeed_config(const std::string& file, std::uint64_t shards);
// The same, but a file that offloads nothing is read as well, and stage 3 whose optimizer stays on the GPU.
DeepSpeedConfig read_any_deepspeed_config(const std::string& file, std::uint64_t shards);

// What of a workload a configuration names.
struct TrainingShape {
  std::string precision = {};     // "bf16", "fp16", "fp32"; empty: unknown
  std::uint64_t micro_batch = 0;  // a rank's; 0: unknown
  std::uint64_t accumulation = 1;
  std::uint64_t ranks = 1, shards = 1;
  std::uint64_t data_parallel = 1;  // ranks that share the batch
  bool pageable =
      false;  // the machine says what memory that is not pinned costs; else the base says pin_memory, or true
  std::string why_not_pinned = {};  // then pin_memory is false, whatever else would be written; a part of a sentence
};

struct WrittenConfig {
  std::string text;
  std::vector<std::string> remarks;  // what the format cannot say, or the model leaves open; a sentence each
};

// `resolved`: all options of the policy. `base`: a configuration whose other keys and batch stay, with a remark where
// the shape has another batch; null without one. Throws Error for a policy that is not DeepSpeed's.
WrittenConfig write_deepspeed_config(const std::string& policy, const std::map<std::string, std::string>& resolved,
                                     const TrainingShape& shape, const nlohmann::ordered_json& base = nullptr);

}  // namespace tencache
