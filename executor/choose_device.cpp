#include "executor/choose_device.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/remark.h"
#include "executor/cuda/cuda_backend.h"
#include "executor/replay_bodies.h"
#include "traces/summary.h"

namespace tencache {

Bytes peak_in_pages(Trace trace, const Accelerator* accelerator) {
  const Bytes page = accelerator != nullptr ? accelerator->granularity() : 1;
  for (Tensor& tensor : trace.tensors) tensor.bytes = (tensor.bytes + page - 1) / page * page;
  return summarize(trace).peak_demand_bytes;
}

std::shared_ptr<Accelerator> choose_device(const std::string& device, const MachineSpec& machine) {
  if (device == "host") return nullptr;
  std::shared_ptr<Accelerator> accelerator;
  try {
    accelerator = open_cuda();
  } catch (const Error&) {
    if (device == "cuda") throw;
    return nullptr;
  }
  try {
    static_cast<void>(accelerator->replay_kernels());  // does the driver take what this was built with?
  } catch (const Error& error) {
    if (device == "cuda") throw;
    remark(fmt::format("ordinary memory stands in for the GPU's: {}", error.what()));
    return nullptr;
  }
  if (device == "cuda") return accelerator;
  Bytes asked = 0;
  for (const Tier& tier : machine.tiers) {
    if (tier.kind == TierKind::gpu && tier.capacity < unlimited) asked += tier.capacity;
  }
  const Bytes free = accelerator->free_bytes();
  if (asked > free) {
    remark(fmt::format("ordinary memory stands in for the GPU's: the machine has {}, {} has {} free",
                       format_bytes(asked), accelerator->describe(), format_bytes(free)));
    return nullptr;
  }
  remark(fmt::format("GPU: {} (--device host: ordinary memory instead)", accelerator->describe()));
  return accelerator;
}

}  // namespace tencache
