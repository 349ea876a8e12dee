// oomb: Wenhao Li and others, "OOMB" (arXiv 2602.02108; github wenhaoli-xmu/OOMB). A context is trained chunk by chunk
// (`generate --context-chunk`); what earlier chunks leave, keys and values and in the second pass gradients of them,
// lives in page-locked CPU memory and comes to the GPU layer by layer.
//   1. When the GPU enters a layer, what its attention uses is brought in, and so is that of the layer which comes
//      next, the one above in forward passes and the one below in backward passes; all other layers' is sent out.
//   2. Sending out copies every piece, changed or not (exclusive copies). One stream copies in both directions, so that
//      attention, which waits for its own pieces, also waits for what was sent out when they were asked for.
//   3. Weights and their gradients stay on the GPU. The authors measure forward and backward passes; optimizer states
//      and master copies live in CPU memory here, come for their update and leave after it.
// What does not fit is out of memory (overflow=evict: the coldest tensors leave). It departs from the code where pieces
// have no use any more: those are dropped, not sent; and in the second pass's forward half gradients stay in CPU
// memory, which there move with keys and values.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "policies/common_options.h"
#include "policies/layers.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class Oomb final : public Policy {
 public:
  explicit Oomb(Options& options) { add_overflow_option(options, overflow_); }

  Layout layout(const MachineSpec& machine, const Program*) const override {
    Layout layout;
    layout.chunk_bytes = 0;
    layout.exclusive_copies = true;
    layout.fallback_eviction = overflow_ == "evict";
    layout.initial.fill(0);
    for (const Role role : {Role::optimizer_state, Role::master_parameter}) {
      layout.initial[static_cast<std::size_t>(role)] = machine.tier_of(Device::cpu);
    }
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) find_context(view);
    if (event.kind == EventKind::schedule_deviated) visits_.clear(), sent_.clear();
    if (event.device != Device::gpu || event.op == none || visits_.empty()) return;
    if (event.kind == EventKind::op_issued) enter(event.op, view, actions);
    if (event.kind == EventKind::op_done && view.program->trace.ops[event.op].phase == Phase::optimizer) {
      for (const Use& use : event.uses) {
        const Role role = view.memory.role(use.tensor);
        if (role == Role::optimizer_state || role == Role::master_parameter) actions.evict(use.tensor);
      }
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (overflow_ == "evict" && !request.prefetch) coldest_victims(request, view, victims);
  }

  std::uint64_t fingerprint() const override { return at_; }

 private:
  void find_context(const View& view) {
    const Trace& trace = view.program->trace;
    const Layers layers = find_layers(*view.program, *view.schedule);
    visits_.clear();
    visit_of_.assign(trace.ops.size(), none);
    at_ = none;
    // Keys, values, and the gradients that an op reads beside them.
    std::vector<std::uint8_t> is_piece(trace.tensors.size(), 0);
    const auto keeps = [&](const Use& use) { return trace.tensors[use.tensor].role == Role::kv_cache; };
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      const auto uses = view.schedule->uses(op);
      if (std::ranges::none_of(uses, keeps)) continue;
      for (const Use& use : uses) {
        const Tensor& tensor = trace.tensors[use.tensor];
        const bool gradient = tensor.role == Role::gradient && use.read && use.write;
        if (!tensor.persistent && (gradient || keeps(use))) is_piece[use.tensor] = 1;
      }
    }
    std::vector<std::uint32_t> seen(trace.tensors.size(), none);
    std::uint32_t layer = none;
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      for (const Use& use : view.schedule->uses(op)) {
        if (is_piece[use.tensor] == 0) continue;
        if (layers.of_op[op] != layer) visits_.emplace_back();
        layer = layers.of_op[op];
        const auto visit = static_cast<std::uint32_t>(visits_.size() - 1);
        visit_of_[op] = visit;
        if (std::exchange(seen[use.tensor], visit) != visit) visits_.back().push_back(use.tensor);
      }
    }
    for (std::vector<TensorId>& pieces : visits_) std::ranges::sort(pieces);
  }

  void enter(OpIndex op, const View& view, Actions& actions) {
    const std::uint32_t visit = visit_of_[op];
    if (visit == none || visit == at_) return;
    const std::uint32_t left = std::exchange(at_, visit);
    const TierId cpu = view.machine.tier_of(Device::cpu);
    const std::uint32_t next = (visit + 1) % static_cast<std::uint32_t>(visits_.size());
    for (const TensorId id : sent_) actions.hold(op, id, cpu);
    sent_.clear();
    if (left != none) {
      for (const TensorId tensor : visits_[left]) {
        const TensorId id = view.memory_tensor(tensor);
        if (id == none || view.dead(id) || !view.memory.resident(id, 0)) continue;
        if (wants(visit, tensor) || wants(next, tensor)) continue;
        actions.evict(id);
        sent_.push_back(id);
      }
    }
    for (const std::uint32_t wanted : {visit, next}) {
      for (const TensorId tensor : visits_[wanted]) {
        const TensorId id = view.memory_tensor(tensor);
        if (id == none || view.dead(id) || view.memory.resident(id, 0)) continue;
        if (view.memory.valid(view.memory.first_chunk(id), cpu)) actions.fetch(id);
      }
    }
  }

  bool wants(std::uint32_t visit, TensorId tensor) const { return std::ranges::binary_search(visits_[visit], tensor); }

  std::string overflow_ = "oom";
  std::vector<std::vector<TensorId>> visits_;  // by run of a layer's ops: the pieces that they use, ascending
  std::vector<std::uint32_t> visit_of_;        // by op; none: it does not attend
  std::uint32_t at_ = none;
  std::vector<TensorId> sent_;  // on entering it; ids of the memory
};

}  // namespace

TENCACHE_POLICY({"oomb",
                 "keys, values and gradients of a long context in CPU memory, a layer ahead on the GPU",
                 "OOMB, arXiv 2602.02108",
                 make_policy_of<Oomb>,
                 185,
                 nullptr,
                 nullptr,
                 {.artifact = true}})

}  // namespace tencache
