#include "policies/footprint.h"

#include <algorithm>

namespace tencache {

Bytes persistent_bytes(const Trace& trace) {
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) bytes += tensor.persistent ? tensor.bytes : 0;
  return bytes;
}

Bytes peak_of_intermediates(const Trace& trace, const Schedule& schedule, bool with_gradients) {
  Bytes live = 0, peak = 0;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    Bytes dying = 0;
    for (const Use& use : schedule.uses(op)) {
      const Tensor& tensor = trace.tensors[use.tensor];
      if (tensor.persistent || (tensor.role == Role::gradient && !with_gradients)) continue;
      const auto ops = schedule.ops_of(use.tensor);
      if (ops.front() == op) live += tensor.bytes;
      if (ops.back() == op) dying += tensor.bytes;
    }
    peak = std::max(peak, live);
    live -= dying;
  }
  return peak;
}

}  // namespace tencache
