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
  const std::vector<OpIndex> deaths = trace.deaths();
  const auto counts = [&](const Tensor& tensor) {
    return !tensor.persistent && (tensor.role != Role::gradient || with_gradients);
  };
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    Bytes dying = 0;
    for (const Use& use : schedule.uses(op)) {
      const Tensor& tensor = trace.tensors[use.tensor];
      if (!counts(tensor)) continue;
      if (schedule.ops_of(use.tensor).front() == op) live += tensor.bytes;
      if (deaths[use.tensor] == op) dying += tensor.bytes;
    }
    for (const TensorId freed : trace.frees(trace.ops[op])) {
      // One that the op uses as well is counted.
      const bool used = schedule.ops_of(freed).back() == op;
      if (counts(trace.tensors[freed]) && deaths[freed] == op && !used) dying += trace.tensors[freed].bytes;
    }
    peak = std::max(peak, live);
    live -= dying;
  }
  return peak;
}

}  // namespace tencache
