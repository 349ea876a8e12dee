// ideal: what the iteration would take if the GPU's memory had no limit. Everything persistent is on the GPU before the
// first op, and stays; ops that the trace has on the CPU stay there. What they read is copied there as soon as a GPU op
// has written it.
#include <vector>

#include "policies/policy_library.h"

namespace tencache {
namespace {

class Ideal final : public Policy {
 public:
  explicit Ideal(Options&) {}

  bool oracle() const override { return true; }

  Layout layout(const MachineSpec&, const Program*) const override {
    Layout layout;
    layout.unlimited_gpu = true;
    layout.chunk_bytes = 0;
    return layout;
  }

  bool hears(EventKind kind) const override { return kind == EventKind::profile_ready || kind == EventKind::op_done; }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) return learn(*view.program);
    if (event.device != Device::gpu || read_on_cpu_.empty()) return;
    for (const Use& use : event.uses) {
      if (use.write && read_on_cpu_[use.tensor]) actions.clean(use.tensor, view.machine.tier_of(Device::cpu));
    }
  }

 private:
  void learn(const Program& program) {
    for (const Op& op : program.trace.ops) {
      if (op.device != Device::cpu) continue;
      read_on_cpu_.resize(program.trace.tensors.size(), false);
      for (const TensorId tensor : program.trace.reads(op)) read_on_cpu_[tensor] = true;
    }
  }

  std::vector<bool> read_on_cpu_;  // by tensor; empty: the CPU computes nothing
};

}  // namespace

TENCACHE_POLICY({"ideal",
                 "GPU memory without limit: nothing moves, the compute time alone",
                 "reference point",
                 make_policy_of<Ideal>,
                 20,
                 nullptr,
                 nullptr,
                 {.oracle = true}})

}  // namespace tencache
