// The GPUs of configs/gpus.yaml: peaks and reachable shares, each with its source.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/generate/gpu_spec.h"

namespace tencache {

// A GPU of the shipped file by its name. Throws Error that lists the valid names.
GpuSpec read_gpu(const std::string& name);
// The same with the kernels' constants of a file (configs/kernel_yaml.h) in place of its own; empty: its own. Throws
// Error if the file is of another GPU.
GpuSpec read_gpu(const std::string& name, const std::string& kernel_file);

// All of them, in the order of the file. Throws Error with file and line if it is broken.
std::vector<GpuSpec> list_gpus();

// A GPU without its kernels' constants, and what its card is plugged into, or shares its memory with: "pcie4x16",
// "apple" or "unified"; empty where no desktop has it.
struct HostedGpu {
  GpuSpec gpu;
  std::string host;
};
// All of them; none where the folder of configs has no such file.
std::vector<HostedGpu> list_hosted_gpus();

// What pinned copies reach on "pcie4x8": 78 % of its rate, as 10Cache measured on PCIe 4 x16 (24.7 of 31.5 GB/s). None
// where the text is no such link: generations 1 to 6, 1 to 16 lanes.
std::optional<BytesPerSecond> pcie_bandwidth(std::string_view link);

// The shipped file: beside the folder of machines. Throws Error where it is not to be found.
std::string gpu_file();

// The same from text; `file` is for messages, `kernels` the folder of the kernels' constants (empty: left out).
std::vector<GpuSpec> parse_gpus(std::string_view text, const std::string& file, const std::string& kernels = "");

}  // namespace tencache
