#include "core/cpu_op.h"

#include <algorithm>
#include <cmath>

namespace tencache {
namespace {

// AdamW in fp32 reads parameter, gradient and two moments and writes three of them back: 28 bytes a parameter. The CPU
// update is bound by memory, so the machine's parameters/s also says how fast it does other optimizer work.
constexpr double adam_bytes_per_parameter = 28;

Nanoseconds roofline_on_cpu(const Trace& trace, const Op& op, const CpuRates& rates) {
  const auto bytes = static_cast<double>(op.bytes != 0 ? op.bytes : bytes_touched(trace, op));
  const double seconds =
      std::max(static_cast<double>(op.flops) / rates.flops_per_second, bytes / static_cast<double>(rates.bandwidth));
  return std::max<Nanoseconds>(1, std::llround(seconds * 1e9));
}

}  // namespace

Bytes bytes_touched(const Trace& trace, const Op& op) {
  Bytes bytes = 0;
  for (const TensorId tensor : trace.reads(op)) bytes += trace.tensors[tensor].bytes;
  for (const TensorId tensor : trace.writes(op)) bytes += trace.tensors[tensor].bytes;
  return bytes;
}

bool may_move_to_cpu(const Op& op) {
  if (op.device != Device::gpu || op.stream == OpStream::communication) return false;
  return op.phase == Phase::optimizer || op.placeable;
}

std::optional<Nanoseconds> duration_on_cpu(const Trace& trace, const Op& op, const MachineSpec& machine) {
  if (!may_move_to_cpu(op) || machine.tier_of(Device::cpu) == no_tier) return {};
  const CpuRates& rates = machine.cpu;
  if (op.phase == Phase::optimizer) {
    if (rates.adam_parameters_per_second <= 0) return {};
    const auto bytes = static_cast<double>(bytes_touched(trace, op));
    return static_cast<Nanoseconds>(bytes / (adam_bytes_per_parameter * rates.adam_parameters_per_second) * 1e9);
  }
  return forward_duration_on_cpu(trace, op, machine);
}

std::optional<Nanoseconds> forward_duration_on_cpu(const Trace& trace, const Op& op, const MachineSpec& machine) {
  if (const Nanoseconds given = trace.detail(op).cpu_duration_ns; given > 0) return given;
  if (!machine.cpu.can_compute()) return {};
  return roofline_on_cpu(trace, op, machine.cpu);
}

}  // namespace tencache
