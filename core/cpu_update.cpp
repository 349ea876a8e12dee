#include "core/cpu_update.h"

#include "core/check.h"

namespace tencache {
namespace {

// AdamW in fp32 reads parameter, gradient and two moments and writes three of them back: 28 bytes a parameter. The CPU
// update is bound by memory, so the machine's parameters/s also says how fast it does other optimizer work.
constexpr double adam_bytes_per_parameter = 28;

}  // namespace

Bytes bytes_touched(const Trace& trace, const Op& op) {
  Bytes bytes = 0;
  for (const TensorId tensor : trace.reads(op)) bytes += trace.tensors[tensor].bytes;
  for (const TensorId tensor : trace.writes(op)) bytes += trace.tensors[tensor].bytes;
  return bytes;
}

Nanoseconds duration_on_cpu(const Trace& trace, const Op& op, const MachineSpec& machine) {
  const double rate = machine.cpu_adam_parameters_per_second;
  TENCACHE_CHECK(rate > 0);
  return static_cast<Nanoseconds>(static_cast<double>(bytes_touched(trace, op)) / (adam_bytes_per_parameter * rate) *
                                  1e9);
}

}  // namespace tencache
