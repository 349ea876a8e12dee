// Something that the device does: a copy, a fill or a kernel, in the order of its stream.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/units.h"
#include "tests/live/rules/access_log.h"
#include "tests/live/rules/vector_clock.h"

namespace tencache::rules {

enum class JobKind : std::uint8_t { upload, download, copy, fill, kernel };

struct DeviceJob {
  JobKind kind = JobKind::kernel;
  std::vector<Access> accesses;
  std::function<void()> run;
  std::uint64_t number = 0;              // in its stream, from 1
  std::vector<Moment> after;             // works of other streams
  Nanoseconds duration_ns = 0;           // of a kernel that has the device for itself (ModelGpu)
  Bytes traffic = 0;                     // of a kernel, with the device's memory
  Nanoseconds begin_ns = 0, end_ns = 0;  // of the device's clock: when it ran, as its cost has it

  Bytes bytes() const {
    Bytes sum = 0;
    for (const Access& access : accesses) sum += access.range.bytes;
    return sum;
  }
};

// How long a job takes. The device's clock follows from it: a job begins when its stream and all that it waits for are
// over. Without one everything takes no time, and only order counts.
using JobCost = std::function<Nanoseconds(const DeviceJob&)>;

}  // namespace tencache::rules
