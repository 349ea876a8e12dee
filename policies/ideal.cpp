// ideal: what the iteration would take if the GPU's memory had no limit. Everything persistent is on the GPU before the
// first op, nothing ever moves; ops that the trace has on the CPU stay there.
#include "policies/policy_library.h"

namespace tencache {
namespace {

class Ideal final : public Policy {
 public:
  explicit Ideal(Options&) {}

  Layout layout(const MachineSpec&, const Program*) const override {
    Layout layout;
    layout.unlimited_gpu = true;
    layout.chunk_bytes = 0;
    return layout;
  }
};

}  // namespace

TENCACHE_POLICY({"ideal", "GPU memory without limit: nothing moves, the compute time alone", "reference point",
                 make_policy_of<Ideal>, 20})

}  // namespace tencache
