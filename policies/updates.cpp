#include "policies/updates.h"

#include <algorithm>
#include <map>

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

void order_as_ready(const Trace& trace, std::vector<std::int32_t>& groups) {
  std::vector<OpIndex> written_by(trace.tensors.size(), 0);
  std::map<std::int32_t, OpIndex> ready;  // by group
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (!op.reorderable) {
      for (const TensorId tensor : trace.writes(op)) written_by[tensor] = index;
      continue;
    }
    OpIndex& last = ready[op.group];
    for (const TensorId tensor : trace.reads(op)) last = std::max(last, written_by[tensor]);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [&ready](std::int32_t a, std::int32_t b) { return ready[a] < ready[b]; });
}

}  // namespace tencache
