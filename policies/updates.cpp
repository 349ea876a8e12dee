#include "policies/updates.h"

namespace tencache {

bool is_update(const Trace& trace, const Op& op) {
  if (op.phase != Phase::optimizer) return false;
  if (op.placeable) return true;
  for (const TensorId tensor : trace.writes(op)) {
    if (trace.tensors[tensor].persistent && trace.tensors[tensor].role != Role::input) return true;
  }
  return false;
}

void place_updates_on_cpu(const Trace& trace, std::vector<Device>& devices) {
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (is_update(trace, trace.ops[op])) devices[op] = Device::cpu;
  }
}

}  // namespace tencache
