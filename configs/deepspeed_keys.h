// Inside the readers and writers of DeepSpeed's configuration: its keys.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tencache::deepspeed {

enum class Kind { count, flag, device };

// A key that says what an option of zero-infinity says. `whole`: it counts whole parameters, not a rank's part.
struct UsedKey {
  std::string_view section, key, option;
  Kind kind;
  bool whole = false;
};

inline constexpr std::string_view zero = "zero_optimization", param = "offload_param", optimizer = "offload_optimizer";

inline constexpr std::array used_keys{
    UsedKey{zero, "stage3_prefetch_bucket_size", "prefetch_bucket", Kind::count, true},
    UsedKey{zero, "stage3_max_live_parameters", "max_live", Kind::count, true},
    UsedKey{zero, "stage3_max_reuse_distance", "max_reuse_distance", Kind::count, true},
    UsedKey{zero, "stage3_param_persistence_threshold", "persistence_threshold", Kind::count, true},
    UsedKey{zero, "reduce_bucket_size", "reduce_bucket", Kind::count, true},
    UsedKey{zero, "sub_group_size", "sub_group", Kind::count},
    UsedKey{param, "device", "offload_param", Kind::device},
    UsedKey{param, "buffer_count", "buffer_count", Kind::count},
    UsedKey{param, "buffer_size", "buffer_size", Kind::count},
    UsedKey{param, "max_in_cpu", "max_in_cpu", Kind::count},
    UsedKey{param, "pin_memory", "pin_memory", Kind::flag},
    UsedKey{optimizer, "device", "offload_optimizer", Kind::device},
    UsedKey{optimizer, "buffer_count", "optimizer_buffer_count", Kind::count},
    UsedKey{optimizer, "pipeline_read", "pipeline_read", Kind::flag},
    UsedKey{optimizer, "pipeline_write", "pipeline_write", Kind::flag},
};

// Keys that are valid without a bearing on what is simulated; of the file itself where `section` is empty.
const std::vector<std::string>& other_keys(std::string_view section);

}  // namespace tencache::deepspeed
