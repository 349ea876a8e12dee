// flashneuron: Bae et al., "FlashNeuron: SSD-Enabled Large-Batch Training of Very Deep Neural Networks" (FAST'21), with
// the choices that G10's public simulator (MICRO'23) made for its baseline. Only activations move, and only between GPU
// and SSD; what is persistent stays on the GPU.
//   1. Offloadable is what a forward op makes and the backward pass uses, in the order of first use. From the first
//      one on they are offloaded, until the rest takes less than the GPU's memory without what is persistent, without
//      the most that one op needs and without what else is alive when the backward pass begins.
//   2. Each leaves after its last use in the forward pass, over one queue; its room is free when it has arrived.
//   3. The backward pass begins when all have arrived.
//   4. After each op of the backward pass offloaded tensors are asked for in the order of their use, while
//      there is room for them and, besides, for the most that one op needs. One queue again.
//      Where several micro-batches follow each other, each has its forward and backward pass.
//   5. GPU memory is contiguous (allocator=two_ended): first fit, persistent tensors from the low end, all others from
//      the high end.
// Nothing leaves for lack of room: what does not fit, or finds no hole that is large enough, is out of memory
// (overflow=evict: the coldest tensors leave instead). Compression, an option of the system, is not modelled. A live
// program's memory is mapped page by page and never contiguous.
#include <algorithm>
#include <utility>

#include "policies/common_options.h"
#include "policies/footprint.h"
#include "policies/policy_library.h"
#include "policies/storage.h"

namespace tencache {
namespace {

class FlashNeuron final : public Policy {
 public:
  explicit FlashNeuron(Options& options) {
    options.choice("allocator", allocator_, {"two_ended", "exact"},
                   "two_ended: contiguous, so that memory fragments; exact: pages from anywhere");
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::activation}); }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    require_ssd(machine, "flashneuron");
    Layout layout;
    layout.chunk_bytes = 0;
    layout.fallback_eviction = overflow_ == "evict";
    layout.initial.fill(0);
    layout.allocators.resize(machine.tiers.size());
    if (allocator_ == "two_ended" && program != nullptr) layout.allocators[0].kind = AllocatorKind::two_ended;
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (event.kind == EventKind::schedule_deviated) pass_of_.clear();
    if (event.device != Device::gpu || event.op == none || pass_of_.empty()) return;
    if (event.kind == EventKind::op_ready) no_hole_ = {};
    const std::uint32_t pass = pass_of_[event.op];
    if (pass != none) {
      const bool first = event.op == passes_[pass].first_op;
      if (event.kind == EventKind::op_issued && first) begin_backward(pass, view, actions);
      // What died with the op before has gone when the next is issued.
      if (event.kind == (first ? EventKind::op_ready : EventKind::op_issued)) prefetch(pass, view, actions);
    }
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
  struct Pass {  // backward, of a micro-batch: a run of GPU ops, updates among them too
    OpIndex first_op = none;
    std::vector<Offload> by_use;  // what leaves before it and is used in it, by used_at
  };
  struct NoHole {
    OpIndex op = none;
    Bytes free = 0;
  };

  void make_plan(const View& view) {
    const Trace& trace = view.program->trace;
    ssd_ = require_ssd(view.machine, "flashneuron");
    find_passes(trace);
    const std::vector<Offload> candidates = find_offloadable(trace, *view.schedule);
    Bytes offloadable = 0, offloaded = 0;
    const Bytes persistent = persistent_bytes(trace), taken = persistent + largest_need_,
                capacity = view.machine.tiers[0].capacity;
    const Bytes budget = capacity > taken ? capacity - taken : 0;
    std::vector<Bytes> staying = alive_beside(trace, *view.schedule, candidates);  // by pass
    for (const Offload& candidate : candidates) {
      staying[pass_of_[candidate.used_at]] += trace.tensors[candidate.tensor].bytes;
    }
    offloads_.clear();
    for (const Offload& candidate : candidates) {
      const Bytes bytes = trace.tensors[candidate.tensor].bytes;
      Bytes& rest = staying[pass_of_[candidate.used_at]];
      offloadable += bytes;
      if (rest < budget) continue;
      rest -= bytes;
      offloads_.push_back(candidate);
      offloaded += bytes;
    }
    std::ranges::stable_sort(offloads_, {}, &Offload::leaves_after);
    for (const Offload& offload : offloads_) passes_[pass_of_[offload.used_at]].by_use.push_back(offload);
    for (Pass& pass : passes_) {
      std::ranges::stable_sort(pass.by_use, {}, &Offload::used_at);
    }
    plan_ = std::to_string(offloads_.size()) + " of " + std::to_string(candidates.size()) + " activations, " +
            format_bytes(offloaded) + " of " + format_bytes(offloadable) + ", go to the SSD";
    if (capacity < taken) {
      plan_ += "; " + format_bytes(persistent) + " that stay and " + format_bytes(largest_need_) +
               " that one op needs are more than the GPU has";
    }
  }

  void find_passes(const Trace& trace) {
    next_ = 0;
    asked_.clear();
    passes_.clear();
    pass_of_.assign(trace.ops.size(), none);
    bool backward = false;
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].device != Device::gpu) continue;
      const Phase phase = trace.ops[op].phase;
      const bool before = std::exchange(backward, phase == Phase::backward || (backward && phase == Phase::optimizer));
      if (backward && !before) passes_.push_back({op, {}});
      if (backward) pass_of_[op] = static_cast<std::uint32_t>(passes_.size() - 1);
    }
  }

  // In the order of first use. Finds out, too, what an op needs at most.
  std::vector<Offload> find_offloadable(const Trace& trace, const Schedule& schedule) {
    std::vector<Offload> candidates;
    largest_need_ = 0;
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      Bytes need = 0;
      for (const Use& use : schedule.uses(op)) {
        if (trace.tensors[use.tensor].persistent) continue;
        need += trace.tensors[use.tensor].bytes;
        const auto ops = schedule.ops_of(use.tensor);
        if (op != ops.front() || pass_of_[op] != none) continue;
        const auto backward = std::ranges::find_if(ops, [this](OpIndex at) { return pass_of_[at] != none; });
        if (backward != ops.end()) candidates.push_back({use.tensor, *(backward - 1), *backward});
      }
      if (trace.ops[op].device == Device::gpu) largest_need_ = std::max(largest_need_, need);
    }
    return candidates;
  }

  // When a backward pass begins: what is neither persistent nor offloadable, such as gradients that accumulate.
  std::vector<Bytes> alive_beside(const Trace& trace, const Schedule& schedule,
                                  const std::vector<Offload>& candidates) const {
    std::vector<bool> offloadable(trace.tensors.size(), false);
    for (const Offload& candidate : candidates) offloadable[candidate.tensor] = true;
    std::vector<Bytes> alive(passes_.size(), 0);
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      const auto ops = schedule.ops_of(id);
      if (trace.tensors[id].persistent || offloadable[id] || ops.empty()) continue;
      for (std::size_t pass = 0; pass < passes_.size(); ++pass) {
        if (ops.front() < passes_[pass].first_op && passes_[pass].first_op < ops.back()) {
          alive[pass] += trace.tensors[id].bytes;
        }
      }
    }
    return alive;
  }

  void begin_backward(std::uint32_t pass, const View& view, Actions& actions) {
    next_ = 0;
    asked_.clear();
    for (const Offload& offload : passes_[pass].by_use) {
      if (const TensorId id = view.memory_tensor(offload.tensor); id != none) {
        actions.hold(passes_[pass].first_op, id, ssd_);
      }
    }
  }

  void prefetch(std::uint32_t pass, const View& view, Actions& actions) {
    const Residency& memory = view.memory;
    const auto has_room_or_died = [&](TensorId id) {
      return view.dead(id) || memory.copy(memory.first_chunk(id), 0).state != CopyState::absent;
    };
    std::erase_if(asked_, has_room_or_died);
    Bytes wanted = largest_need_;
    for (const TensorId id : asked_) wanted += memory.bytes(id);
    for (const std::vector<Offload>& by_use = passes_[pass].by_use; next_ < by_use.size(); ++next_) {
      const TensorId id = view.memory_tensor(by_use[next_].tensor);
      if (id == none || view.dead(id) || !memory.valid(memory.first_chunk(id), ssd_)) continue;
      wanted += memory.bytes(id);
      if (wanted > memory.free(0)) return;
      actions.fetch(id);
      asked_.push_back(id);
    }
  }

  std::string allocator_ = "two_ended", overflow_ = "oom";
  TierId ssd_ = no_tier;
  Bytes largest_need_ = 0;  // of an op, but for what is persistent
  std::vector<Pass> passes_;
  std::vector<std::uint32_t> pass_of_;  // by op; none: not of a backward pass. Empty: no plan
  std::vector<Offload> offloads_;       // by leaves_after
  std::size_t next_ = 0;                // of the running pass: to be asked for
  std::vector<TensorId> asked_;         // ids of the memory whose room was not taken yet
  NoHole no_hole_;
  std::string plan_;
};

}  // namespace

TENCACHE_POLICY({"flashneuron",
                 "the earliest activations go to the SSD until the rest fits, and come back during the backward pass",
                 "FlashNeuron (FAST'21)", make_policy_of<FlashNeuron>, 120})

}  // namespace tencache
