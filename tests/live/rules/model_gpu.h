// What a GPU, its driver and its host cost in time, as a file of figures says (bench/model_gpu_h200.yaml). A driver of
// rules that has one keeps time: calls take the host's, jobs the device's (device_engines.h).
#pragma once

#include <map>
#include <string>

#include "core/units.h"
#include "tests/live/rules/device_job.h"

namespace tencache::rules {

struct ModelGpu {
  Bytes memory = 0;
  double copy_bytes_per_ns = 0;  // of each direction, which do not disturb each other
  double hbm_bytes_per_ns = 0;   // shared by kernels and copies
  // From submission to begin on an idle engine. Behind other work it is hidden.
  Nanoseconds copy_latency_ns = 0, kernel_latency_ns = 0;
  // Of the host, for each function of the driver; none: nothing. Page-locking besides takes its time a byte.
  std::map<std::string, Nanoseconds> call_ns;
  double page_lock_ns_per_byte = 0;
  double memcpy_bytes_per_ns = 0;  // of one thread of the host
  // From what is waited for to the waiter's next instruction: in a loop that asks; asleep, until an interrupt of the
  // device or another thread wakes it.
  Nanoseconds spin_ns = 0, wake_ns = 0;
  // PyTorch's own time to issue what launches one kernel, the launch included.
  Nanoseconds issue_ns = 0;
  // The runtime's for an op whose tensors are there.
  Nanoseconds op_ns = 0;

  // Alone on the device.
  Nanoseconds duration_ns(const DeviceJob& job) const;
  // Of memory, a nanosecond, while it runs at full speed.
  double demand(const DeviceJob& job) const;
  Nanoseconds latency_ns(JobKind kind) const { return is_copy(kind) ? copy_latency_ns : kernel_latency_ns; }
  static bool is_copy(JobKind kind) { return kind == JobKind::upload || kind == JobKind::download; }
};

// Throws Error.
ModelGpu load_model_gpu(const std::string& file);

}  // namespace tencache::rules
