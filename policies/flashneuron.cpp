// flashneuron: Bae et al., "FlashNeuron: SSD-Enabled Large-Batch Training of Very Deep Neural Networks" (FAST'21), with
// the choices that G10's public simulator (MICRO'23) made for its baseline. Only activations move, and only between GPU
// and SSD; what is persistent stays on the GPU.
//   1. Offloadable is what a forward op makes and the backward pass uses, in the order of first use. From the first
//      one on they are offloaded, until the rest takes less than the GPU's memory without what is persistent and
//      without the most that one op needs.
//   2. Each leaves after its last use in the forward pass, over one queue; its room is free when it has arrived.
//   3. The backward pass begins when all have arrived.
//   4. After each op of the backward pass offloaded tensors are asked for in the order of their use, while
//      there is room for them and, besides, for the most that one op needs. One queue again.
//   5. GPU memory is contiguous (allocator=two_ended): first fit, persistent tensors from the low end, all others from
//      the high end.
// Nothing leaves for lack of room: what does not fit, or finds no hole that is large enough, is out of memory
// (overflow=evict: the coldest tensors leave instead). Compression, an option of the system, is not modelled.
#include <algorithm>

#include "policies/policies.h"
#include "policies/storage.h"

namespace tencache {
namespace {

class FlashNeuron final : public Policy {
 public:
  explicit FlashNeuron(Options& options) {
    options.choice("allocator", allocator_, {"two_ended", "exact"},
                   "two_ended: contiguous, so that memory fragments; exact: pages from anywhere");
    options.choice("overflow", overflow_, {"oom", "evict"},
                   "when what stays on the GPU does not fit: report out of memory, or evict the coldest");
  }

  Requirements requirements() const override { return Requirements::governing({Role::activation}); }

  Layout layout(const MachineSpec& machine, const Program*) const override {
    require_ssd(machine, "flashneuron");
    Layout layout;
    layout.chunk_bytes = 0;
    layout.fallback_eviction = overflow_ == "evict";
    layout.initial.fill(0);
    layout.allocators.resize(machine.tiers.size());
    if (allocator_ == "two_ended") layout.allocators[0].kind = AllocatorKind::two_ended;
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (event.kind == EventKind::schedule_deviated) first_backward_ = none;
    if (event.device != Device::gpu || event.op == none || first_backward_ == none) return;
    if (event.kind == EventKind::op_ready) no_hole_ = {};
    if (event.kind == EventKind::op_issued && event.op == first_backward_) begin_backward(view, actions);
    // What died with the op before has gone when the next is issued.
    const EventKind asks = event.op == first_backward_ ? EventKind::op_ready : EventKind::op_issued;
    if (event.op >= first_backward_ && event.kind == asks) prefetch(view, actions);
    if (event.kind != EventKind::op_done) return;
    const auto leaving =
        std::equal_range(offloads_.begin(), offloads_.end(), Offload{none, event.op, none},
                         [](const Offload& a, const Offload& b) { return a.leaves_after < b.leaves_after; });
    for (auto offload = leaving.first; offload != leaving.second; ++offload) {
      if (const TensorId id = view.memory_tensor(offload->tensor); id != none) actions.evict(id, ssd_);
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (overflow_ == "evict" && !request.prefetch) coldest_victims(request, view, victims);
    const bool enough_in_sum = request.bytes <= 1 && request.tier == 0;  // docs/engine.md, "Room"
    if (enough_in_sum && !request.prefetch) no_hole_ = {view.op, view.memory.free(0)};
  }

  std::uint64_t fingerprint() const override { return next_; }

  void notes(std::vector<std::string>& notes) const override {
    if (!plan_.empty()) notes.push_back(plan_);
    if (no_hole_.op != none) {
      notes.push_back("op " + std::to_string(no_hole_.op) + " found no hole that is large enough, with " +
                      format_bytes(no_hole_.free) + " of GPU memory free: it is fragmented");
    }
  }

 private:
  struct Offload {
    TensorId tensor = none;
    OpIndex leaves_after = none, used_at = none;  // its last use in the forward pass and its first in the backward pass
  };
  struct NoHole {
    OpIndex op = none;
    Bytes free = 0;
  };

  void make_plan(const View& view) {
    const Trace& trace = view.program->trace;
    ssd_ = require_ssd(view.machine, "flashneuron");
    next_ = 0;
    asked_.clear();
    offloads_.clear();
    first_backward_ = 0;
    while (first_backward_ < trace.ops.size() && trace.ops[first_backward_].phase != Phase::backward) ++first_backward_;
    Bytes persistent = 0, offloadable = 0, offloaded = 0;
    largest_need_ = 0;
    for (const Tensor& tensor : trace.tensors) persistent += tensor.persistent ? tensor.bytes : 0;
    std::vector<Offload> candidates;
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      Bytes need = 0;
      for (const Use& use : view.schedule->uses(op)) {
        const Tensor& tensor = trace.tensors[use.tensor];
        need += tensor.persistent ? 0 : tensor.bytes;
        const auto ops = view.schedule->ops_of(use.tensor);
        if (tensor.persistent || op != ops.front() || op >= first_backward_ || ops.back() < first_backward_) continue;
        const auto backward = std::lower_bound(ops.begin(), ops.end(), first_backward_);
        candidates.push_back({use.tensor, *(backward - 1), *backward});
        offloadable += tensor.bytes;
      }
      largest_need_ = std::max(largest_need_, need);
    }
    const Bytes taken = persistent + largest_need_, capacity = view.machine.tiers[0].capacity;
    const Bytes budget = capacity > taken ? capacity - taken : 0;
    for (const Offload& candidate : candidates) {
      if (offloadable - offloaded < budget) break;
      offloads_.push_back(candidate);
      offloaded += trace.tensors[candidate.tensor].bytes;
    }
    std::stable_sort(offloads_.begin(), offloads_.end(),
                     [](const Offload& a, const Offload& b) { return a.leaves_after < b.leaves_after; });
    by_use_ = offloads_;
    std::stable_sort(by_use_.begin(), by_use_.end(),
                     [](const Offload& a, const Offload& b) { return a.used_at < b.used_at; });
    plan_ = std::to_string(offloads_.size()) + " of " + std::to_string(candidates.size()) + " activations, " +
            format_bytes(offloaded) + " of " + format_bytes(offloadable) + ", go to the SSD";
    if (capacity < taken) {
      plan_ += "; " + format_bytes(persistent) + " that stay and " + format_bytes(largest_need_) +
               " that one op needs are more than the GPU has";
    }
  }

  void begin_backward(const View& view, Actions& actions) {
    next_ = 0;
    asked_.clear();
    for (const Offload& offload : offloads_) {
      if (const TensorId id = view.memory_tensor(offload.tensor); id != none) {
        actions.hold(first_backward_, id, ssd_);
      }
    }
  }

  void prefetch(const View& view, Actions& actions) {
    const Residency& memory = view.memory;
    const auto has_room_or_died = [&](TensorId id) {
      return view.dead(id) || memory.copy(memory.first_chunk(id), 0).state != CopyState::absent;
    };
    std::erase_if(asked_, has_room_or_died);
    Bytes wanted = largest_need_;
    for (const TensorId id : asked_) wanted += memory.bytes(id);
    for (; next_ < by_use_.size(); ++next_) {
      const TensorId id = view.memory_tensor(by_use_[next_].tensor);
      if (id == none || view.dead(id) || !memory.valid(memory.first_chunk(id), ssd_)) continue;
      wanted += memory.bytes(id);
      if (wanted > memory.free(0)) return;
      actions.fetch(id);
      asked_.push_back(id);
    }
  }

  std::string allocator_ = "two_ended", overflow_ = "oom";
  TierId ssd_ = no_tier;
  OpIndex first_backward_ = none;  // none: no plan
  Bytes largest_need_ = 0;         // of an op, but for what is persistent
  std::vector<Offload> offloads_;  // by leaves_after
  std::vector<Offload> by_use_;    // the same, by used_at
  std::vector<TensorId> asked_;    // ids of the memory whose room was not taken yet
  std::size_t next_ = 0;           // of by_use_: to be asked for
  NoHole no_hole_;
  std::string plan_;
};

}  // namespace

std::unique_ptr<Policy> make_flashneuron(Options& options) { return std::make_unique<FlashNeuron>(options); }

}  // namespace tencache
