#include "executor/choose_device.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/remark.h"
#include "executor/cuda/cuda_backend.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

struct Backend {
  const char* name;
  std::shared_ptr<Accelerator> (*open)();  // throws Error that says what is missing
};
constexpr Backend backends[] = {{"cuda", [] { return open_cuda(); }}};

// Null where it cannot be used and was not asked for by name.
std::shared_ptr<Accelerator> open(const Backend& backend, bool by_name) {
  std::shared_ptr<Accelerator> accelerator;
  try {
    accelerator = backend.open();
    static_cast<void>(accelerator->replay_kernels());  // does the driver take what this was built with?
  } catch (const Error& error) {
    if (by_name) throw;
    if (accelerator != nullptr) remark(fmt::format("ordinary memory stands in for the GPU's: {}", error.what()));
    return nullptr;
  }
  return accelerator;
}

bool has_room(const Accelerator& accelerator, const MachineSpec& machine) {
  Bytes asked = 0;
  for (const Tier& tier : machine.tiers) {
    if (tier.kind == TierKind::gpu && tier.capacity < unlimited) asked += tier.capacity;
  }
  const Bytes free = accelerator.free_bytes();
  if (asked > free) {
    remark(fmt::format("ordinary memory stands in for the GPU's: the machine has {}, {} has {} free",
                       format_bytes(asked), accelerator.describe(), format_bytes(free)));
    return false;
  }
  remark(fmt::format("GPU: {} (--device host: ordinary memory instead)", accelerator.describe()));
  return true;
}

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names{"auto"};
  for (const Backend& backend : backends) names.push_back(backend.name);
  names.push_back("host");
  return names;
}

ChosenDevice choose_device(const std::string& device, const MachineSpec& machine) {
  for (const Backend& backend : backends) {
    if (device != "auto" && device != backend.name) continue;
    const std::shared_ptr<Accelerator> accelerator = open(backend, device == backend.name);
    if (accelerator == nullptr) continue;
    if (device == backend.name || has_room(*accelerator, machine)) return {backend.name, accelerator};
  }
  return {};
}

}  // namespace tencache
