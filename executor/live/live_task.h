// Work that the engine orders, places and runs on a lane of the machine: an optimizer's sub-group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/trace.h"

namespace tencache {

struct LiveTask {
  std::string name;
  std::int32_t group = -1;      // for the recording: sub-group of the optimizer step
  std::vector<Use> uses;        // each tensor once
  Device device = Device::gpu;  // where it runs if it is not placeable
  bool placeable = true;        // the policy says where
  bool reorderable = false;     // for the recording
  Nanoseconds duration_ns = 0;  // expected; 0: not known
  // On the lane's thread, with one address for each of `uses`, in that order: the tensor's bytes, all of them there.
  // It may throw; it must not call the runtime or LibTorch ops. What it refers to lives until it is done (`run_tasks`).
  std::function<void(std::span<std::byte* const> addresses)> body;
};

}  // namespace tencache
