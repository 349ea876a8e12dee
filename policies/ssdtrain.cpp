// ssdtrain: Wu et al., "SSDTrain: An Activation Offloading Framework to SSDs for Faster Large Language Model Training"
// (arXiv 2408.10013, DAC'25). Only what the forward pass saves for the backward pass moves, between GPU and SSD;
// parameters, gradients and optimizer states stay on the GPU.
//   1. Stored is an activation of at least `minimum` elements that the backward pass uses, but not what the last `keep`
//      modules make and what comes after them: it is used again at once.
//   2. Each is stored when it is made, in that order, over one queue. Its room goes free when it has been stored and
//      its last use in the forward pass is over.
//   3. When the backward pass enters a module, the activations of the next `prefetch` modules are fetched, in the order
//      of their use: the modules of the forward pass in reverse.
//   4. An activation that is wanted before it has been stored is still there: it stays (the paper's forwarding).
// A module is a layer of layers.h; the last ones of a forward pass are counted among those whose name ends in a number,
// if there are any. Nothing leaves for lack of room: what does not fit is out of memory (overflow=evict: the coldest
// tensors leave). A tensor is one object here however many modules save it, so deduplication needs no rule.
#include <algorithm>

#include "policies/common_options.h"
#include "policies/layers.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/storage.h"

namespace tencache {
namespace {

class SsdTrain final : public Policy {
 public:
  explicit SsdTrain(Options& options) {
    options.number("minimum", minimum_, "elements", "of an activation that is worth storing");
    options.number("keep", keep_, "modules", "at the end of the forward pass whose activations are not stored");
    options.number("prefetch", prefetch_, "modules", "of the backward pass, after the running one, fetched ahead");
    add_overflow_option(options, overflow_);
    add_chunk_option(options, chunk_bytes_, true);
  }

  Requirements requirements() const override {
    Requirements r = Requirements::governing({Role::activation});
    r.module_hooks = true;
    return r;
  }

  Layout layout(const MachineSpec& machine, const Program*) const override {
    require_ssd(machine, "ssdtrain");
    Layout layout;
    layout.chunk_bytes = unit_that_moves(machine, chunk_bytes_);
    layout.fallback_eviction = overflow_ == "evict";
    layout.initial.fill(0);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (event.kind == EventKind::schedule_deviated) activations_.clear();
    if (activations_.empty()) return;
    if (event.kind == EventKind::transfer_done && event.to == ssd_) stored(event, view, actions);
    if (event.kind == EventKind::iteration_begin) entered_ = 0;
    if (event.device != Device::gpu || event.op == none) return;
    if (event.kind == EventKind::op_done) done(event.op, view, actions);
    const bool backward = view.program->trace.ops[event.op].phase == Phase::backward;
    if (event.kind == EventKind::op_issued && backward) enter(event.op, view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (overflow_ == "evict" && !request.prefetch) coldest_victims(request, view, victims);
  }

  std::uint64_t fingerprint() const override { return entered_; }

  void notes(std::vector<std::string>& notes) const override {
    if (!plan_.empty()) notes.push_back(plan_);
  }

 private:
  struct Activation {
    OpIndex made_by = none;         // the last op of the forward pass that writes it; none: it is not stored
    OpIndex last_forward = none;    // that uses it
    OpIndex first_backward = none;  // that uses it
    bool room_may_go = false;       // its last use in the forward pass is over, and it is not wanted back yet
  };

  void make_plan(const View& view) {
    const Trace& trace = view.program->trace;
    ssd_ = require_ssd(view.machine, "ssdtrain");
    entered_ = 0;
    layers_ = find_layers(*view.program, *view.schedule);
    const std::vector<bool> kept = find_kept(trace);
    activations_.assign(trace.tensors.size(), {});
    wanted_in_.assign(layers_.list.size(), {});
    Bytes stored_bytes = 0, saved_bytes = 0;
    std::size_t count = 0;
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      const Tensor& tensor = trace.tensors[id];
      if (tensor.persistent || tensor.role != Role::activation) continue;
      Activation activation;
      for (const OpIndex op : view.schedule->ops_of(id)) {
        if (trace.ops[op].phase == Phase::backward) {
          activation.first_backward = op;
          break;
        }
        for (const Use& use : view.schedule->uses(op)) {
          if (use.tensor == id && use.write) activation.made_by = op;
        }
        activation.last_forward = op;
      }
      if (activation.made_by == none || activation.first_backward == none) continue;
      saved_bytes += tensor.bytes;
      if (kept[activation.made_by] || tensor.bytes < minimum_ * trace.header.element_bytes()) continue;
      activations_[id] = activation;
      wanted_in_[layers_.of_op[activation.first_backward]].push_back(id);
      stored_bytes += tensor.bytes;
      ++count;
    }
    for (std::vector<TensorId>& wanted : wanted_in_) {
      std::ranges::stable_sort(wanted, [this](TensorId a, TensorId b) {
        return activations_[a].first_backward < activations_[b].first_backward;
      });
    }
    plan_ = std::to_string(count) + " activations, " + format_bytes(stored_bytes) + " of the " +
            format_bytes(saved_bytes) + " that the backward pass uses, are stored on the SSD";
  }

  // By op: of the last `keep` modules of its forward pass, or after them. A forward pass, of a micro-batch, ends where
  // a backward pass begins.
  std::vector<bool> find_kept(const Trace& trace) const {
    std::vector<bool> kept(trace.ops.size(), false);
    std::vector<OpIndex> modules, blocks;  // the first op of each visit
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].device != Device::gpu || trace.ops[op].phase == Phase::optimizer) continue;
      if (trace.ops[op].phase == Phase::backward) {
        const std::vector<OpIndex>& counted = blocks.empty() ? modules : blocks;
        if (keep_ != 0 && !counted.empty()) {
          const OpIndex first = counted[counted.size() - std::min<std::size_t>(keep_, counted.size())];
          std::fill(kept.begin() + first, kept.begin() + op, true);
        }
        modules.clear();
        blocks.clear();
        continue;
      }
      if (trace.ops[op].module == 0 || (op > 0 && layers_.of_op[op] == layers_.of_op[op - 1] && !modules.empty())) {
        continue;
      }
      modules.push_back(op);
      const std::string_view layer = layer_of_module(trace.names[trace.ops[op].module]);
      if (layer.back() >= '0' && layer.back() <= '9') blocks.push_back(op);
    }
    return kept;
  }

  void done(OpIndex op, const View& view, Actions& actions) {
    for (const Use& use : view.schedule->uses(op)) {
      Activation& activation = activations_[use.tensor];
      const TensorId id = activation.made_by == none ? none : view.memory_tensor(use.tensor);
      if (id == none) continue;
      if (activation.made_by == op) {
        activation.room_may_go = false;
        actions.clean(id, ssd_);
      }
      if (activation.last_forward != op) continue;
      activation.room_may_go = true;
      const ChunkId begin = view.memory.first_chunk(id);
      for (std::uint32_t i = 0; i < view.memory.chunk_count(id); ++i) {
        if (view.memory.valid(begin + i, ssd_)) actions.push({.verb = Verb::drop, .tensor = id, .chunk = i});
      }
    }
  }

  void stored(const Event& event, const View& view, Actions& actions) const {
    const TensorId tensor = view.program_tensor(event.tensor);
    if (tensor == none || tensor >= activations_.size() || !activations_[tensor].room_may_go) return;
    const std::uint32_t chunk = event.chunk - view.memory.first_chunk(event.tensor);
    actions.push({.verb = Verb::drop, .tensor = event.tensor, .chunk = chunk});
  }

  // The activations of the layer that the op belongs to, and of those after it, are wanted from now on.
  void enter(OpIndex op, const View& view, Actions& actions) {
    const std::uint64_t ahead = std::min<std::uint64_t>(prefetch_, layers_.list.size());
    const std::uint64_t end = std::min<std::uint64_t>(layers_.of_op[op] + ahead + 1, layers_.list.size());
    for (entered_ = std::max<std::uint64_t>(entered_, layers_.of_op[op]); entered_ < end; ++entered_) {
      for (const TensorId tensor : wanted_in_[entered_]) {
        activations_[tensor].room_may_go = false;
        const TensorId id = view.memory_tensor(tensor);
        if (id != none && !view.dead(id) && !view.memory.resident(id, 0)) actions.fetch(id);
      }
    }
  }

  std::uint64_t minimum_ = 1 << 20, keep_ = 1, prefetch_ = 1;
  std::string overflow_ = "oom";
  Bytes chunk_bytes_ = 0;
  TierId ssd_ = no_tier;
  Layers layers_;
  std::vector<Activation> activations_;           // by tensor of the program; empty: no plan
  std::vector<std::vector<TensorId>> wanted_in_;  // by layer: what it uses first in the backward pass and is stored
  std::uint64_t entered_ = 0;                     // the layers before it have been asked for
  std::string plan_;
};

}  // namespace

TENCACHE_POLICY({"ssdtrain",
                 "activations are stored on the SSD as they are made and fetched back module by module",
                 "SSDTrain (DAC'25), arXiv 2408.10013",
                 make_policy_of<SsdTrain>,
                 180,
                 nullptr,
                 nullptr,
                 {.artifact = true}})

}  // namespace tencache
