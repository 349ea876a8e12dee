// The engines of a device in time: one copies to it, one from it, one computes. Each does one job at a time, in the
// order in which streams let them begin; jobs that run side by side share the bandwidth of the device's memory in
// proportion to what they ask for. Shares no code with the simulator (sim/), which is judged by it.
#pragma once

#include <array>
#include <optional>

#include "core/units.h"
#include "tests/live/rules/device_queue.h"
#include "tests/live/rules/model_gpu.h"

namespace tencache::rules {

class DeviceEngines {
 public:
  // Both outlive this.
  DeviceEngines(DeviceQueue& queue, const ModelGpu& model) : queue_(queue), model_(model) {}

  // All that happens until then.
  void advance(Nanoseconds to_ns);
  // The next moment at which a job begins or ends, unless something is submitted before. Nothing: no job is left that
  // could.
  std::optional<Nanoseconds> next_ns() const;

 private:
  struct Running {
    Line line = 0;
    Nanoseconds begin_ns = 0;
    double left_ns = 0;  // at full speed
    double demand = 0;   // bytes a nanosecond of memory, at full speed
  };
  static std::size_t engine_of(JobKind kind);

  void begin_jobs();
  void work(Nanoseconds until_ns);
  double speed(const Running& job) const;
  Nanoseconds end_ns(const Running& job) const;

  DeviceQueue& queue_;
  const ModelGpu& model_;
  std::array<std::optional<Running>, 3> engines_;
  Nanoseconds now_ns_ = 0;
};

}  // namespace tencache::rules
