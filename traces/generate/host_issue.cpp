#include "traces/generate/host_issue.h"

#include <algorithm>
#include <vector>

namespace tencache {

void issue(Trace& trace, Nanoseconds launch_ns) {
  struct Clocks {
    Nanoseconds host = 0, gpu = 0;
  };
  std::vector<Clocks> ranks;
  for (Op& op : trace.ops) {
    if (op.device != Device::gpu) continue;
    if (ranks.size() <= op.rank) ranks.resize(op.rank + std::size_t{1});
    Clocks& clocks = ranks[op.rank];
    clocks.host += launch_ns * trace.kernel(op).launches;
    op.gap_before_ns = std::max<Nanoseconds>(clocks.host - clocks.gpu, 0);
    clocks.gpu += op.occupied_ns();
  }
}

}  // namespace tencache
