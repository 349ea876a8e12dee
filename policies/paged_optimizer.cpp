// paged-optimizer: the states of the optimizer are unified memory, and nothing else leaves the GPU. bitsandbytes'
// PagedAdam and PagedAdamW (bitsandbytes/optim/optimizer.py, functional.py; docs/source/explanations/optimizers.mdx).
//
// 1. States of parameters with 100,000 elements or more are unified memory; all others lie on the GPU for good. Nothing
//    moves while all fits.
// 2. Where the GPU is short, the driver evicts pages of them, the least recently used first (2 MiB at a time). All else
//    stays: what then still does not fit is out of memory.
// 3. Before each update its states are prefetched whole, one parameter at a time and none ahead; the update waits.
//    Updates run on the GPU, where the trace has them.
// 4. Pages move at a share of a link's bandwidth, half where the machine does not say ("paged" of a link).
//
// The elements of a parameter are not known here, so that rule 1 counts a byte of its states as one, which is right for
// 8-bit states and pages a few small ones more where they have four bytes an element.
#include <string>
#include <vector>

#include "policies/common_options.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

constexpr Bytes page = 2 * MiB;
constexpr Bytes least_paged_bytes = 100'000;

class PagedOptimizer final : public Policy {
 public:
  explicit PagedOptimizer(Options& options) {
    options.bytes("least", least_bytes_, "states that are smaller stay on the GPU", "none")
        .fixed(Options::rules_of_a_system);
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::optimizer_state}); }

  Layout layout(const MachineSpec&, const Program*) const override {
    Layout layout;
    layout.chunk_bytes = page;
    layout.fallback_eviction = overflow_ == "evict";
    layout.copy_memory.fill(CopyMemory::unified);
    layout.staging_memory = CopyMemory::unified;
    layout.initial.fill(0);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    victims_.on(event, view);
    if (event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none ||
        view.program == nullptr)
      return;
    const Trace& trace = view.program->trace;
    const Op& op = trace.ops[event.op];
    if (op.phase != Phase::optimizer && !is_update(trace, op)) return;
    for (const TensorId tensor : trace.reads(op)) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none || !is_paged(view, id) || view.memory.resident(id, 0)) continue;
      actions.fetch(id);
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) return coldest_victims(request, view, victims);
    victims_.find([this](const View& of, TensorId tensor) { return is_paged(of, tensor); }, request, view, victims);
  }

 private:
  bool is_paged(const View& view, TensorId tensor) const {
    return view.memory.role(tensor) == Role::optimizer_state && view.memory.bytes(tensor) >= least_bytes_;
  }

  Bytes least_bytes_ = least_paged_bytes;
  std::string overflow_ = "oom";
  ColdestVictims victims_;
};

}  // namespace

TENCACHE_POLICY({"paged-optimizer",
                 "optimizer states are unified memory: pages leave when the GPU is short, and come "
                 "back before their update",
                 "bitsandbytes' paged optimizers",
                 make_policy_of<PagedOptimizer>,
                 175,
                 nullptr,
                 nullptr,
                 {.bitsandbytes = true, .changes_training = "with 8-bit states"}})

}  // namespace tencache
