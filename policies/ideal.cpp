// ideal: what the iteration would take if the GPU's memory had no limit. Everything persistent is on the GPU before the
// first op, nothing ever moves; ops that the trace has on the CPU stay there.
#include "policies/policies.h"

namespace tencache {
namespace {

class Ideal final : public Policy {
 public:
  Layout layout(const MachineSpec&, const Program*) const override {
    Layout layout;
    layout.unlimited_gpu = true;
    layout.chunk_bytes = 0;
    return layout;
  }
};

}  // namespace

std::unique_ptr<Policy> make_ideal(Options&) { return std::make_unique<Ideal>(); }

}  // namespace tencache
