#include "policies/updates.h"

namespace tencache {

Device updates_on_cpu(const Trace& trace, const Op& op) {
  if (op.placeable) return Device::cpu;
  for (const TensorId tensor : trace.writes(op)) {
    if (trace.tensors[tensor].persistent && trace.tensors[tensor].role != Role::input) return Device::cpu;
  }
  return op.device;
}

}  // namespace tencache
