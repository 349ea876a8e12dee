#include "traces/transform/jitter.h"

#include <cmath>
#include <random>

namespace tencache {

Trace jittered(Trace trace, double spread, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (Op& op : trace.ops) {
    // From -1 to 1, in steps that a double holds exactly.
    const double position = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
    const double factor = 1 + spread * std::fabs(position);
    const auto duration = static_cast<double>(op.duration_ns);
    op.duration_ns = std::llround(position < 0 ? duration / factor : duration * factor);
  }
  return trace;
}

}  // namespace tencache
