// vdnn: Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design"
// (MICRO'16), its static policies. Moves whether or not memory is short.
//
// A layer is a run of GPU ops of one module and one pass (loss counts as forward); an op without a module is one by
// itself. Its inputs are the intermediate results that it reads and an earlier layer wrote, if the backward pass uses
// them again and no later layer of the forward pass does.
//   1. offload=all: the inputs of each layer leave while its own forward pass runs; offload=conv: of convolutions only,
//      where names of modules or ops say so. Not what the layer that follows at once uses.
//   2. When the layer is over their room goes free; the next layer does not start before they have left
//      (`synchronise`).
//   3. A layer of the backward pass fetches the inputs of the nearest earlier layer that are away: those that are
//      needed first after it, none twice. The next layer does not start before they are there (`synchronise`).
// Weights and all else stay on the GPU. Demand is the fallback: the coldest leave.
#include <algorithm>

#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

bool names_convolution(std::string_view name) {
  constexpr std::string_view conv = "conv";
  const auto same = [](char a, char b) { return (a | 0x20) == b; };
  return std::search(name.begin(), name.end(), conv.begin(), conv.end(), same) != name.end();
}

class Vdnn final : public SwapPolicy {
 public:
  explicit Vdnn(Options& options) {
    options.choice("offload", offload_, {"all", "conv"}, "the inputs of all layers, or of convolutions");
    options.flag("synchronise", synchronise_, "a layer starts when the copies of the one before are over");
    add_chunk_option(options, layout_.chunk_bytes, true);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (layers_.empty()) return;
    if (event.kind == EventKind::transfer_done && event.from == 0) left(event, view, actions);
    if (event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none) return;
    const std::uint32_t layer = layer_of_[event.op];
    if (layer == none || layers_[layer].first != event.op) return;
    if (layer > 0) end(layers_[layer - 1], event.op, view, actions);
    begin(layers_[layer], view, actions);
  }

  void notes(std::vector<std::string>& notes) const override {
    if (offload_ == "conv" && !layers_.empty() && !convolutions_) {
      notes.push_back("no name of the trace says that a layer is a convolution: nothing is offloaded but on demand");
    }
  }

 private:
  struct Layer {
    OpIndex first = none, last = none;
    bool forward = true, convolution = false;
    std::vector<TensorId> inputs;   // that leave
    std::vector<TensorId> fetched;  // inputs of an earlier one
  };
  // Of a tensor that leaves: without room on the GPU from op `away` on, fetched when op `back` is issued.
  struct Journey {
    OpIndex away = none, back = none;
  };

  void make_plan(const View& view) {
    find_layers(view.program->trace);
    journeys_.assign(view.program->trace.tensors.size(), {});
    find_inputs(view);
    choose_prefetches();
  }

  void find_layers(const Trace& trace) {
    layers_.clear();
    layer_of_.assign(trace.ops.size(), none);
    convolutions_ = false;
    for (OpIndex i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      if (op.device != Device::gpu) continue;
      const bool forward = op.phase == Phase::forward || op.phase == Phase::loss;
      const bool same = !layers_.empty() && op.module != 0 && trace.ops[layers_.back().first].module == op.module &&
                        layers_.back().forward == forward;
      if (!same) {
        layers_.emplace_back();
        layers_.back().first = i;
        layers_.back().forward = forward;
      }
      Layer& layer = layers_.back();
      layer.last = i;
      layer.convolution |= names_convolution(trace.module(op)) || names_convolution(trace.name(op));
      convolutions_ |= layer.convolution;
      layer_of_[i] = static_cast<std::uint32_t>(layers_.size() - 1);
    }
  }

  void find_inputs(const View& view) {
    const Trace& trace = view.program->trace;
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      if (trace.tensors[tensor].persistent) continue;
      std::uint32_t made_by = none, owner = none;
      for (const OpIndex op : view.schedule->ops_of(tensor)) {
        const std::uint32_t layer = layer_of_[op];
        if (layer == none) break;
        if (made_by == none) made_by = layer;
        if (layers_[layer].forward) {
          owner = layer;
          continue;
        }
        if (owner == none || owner == made_by || layer <= owner + 1) break;
        if (offload_ == "conv" && !layers_[owner].convolution) break;
        layers_[owner].inputs.push_back(tensor);
        journeys_[tensor] = {.away = layers_[owner + 1].first, .back = op};
        break;
      }
    }
  }

  // The layers whose inputs are away, in the order in which these are needed.
  void choose_prefetches() {
    struct Away {
      OpIndex needed_by = none;
      std::uint32_t layer = none;
    };
    std::vector<Away> all;
    for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
      OpIndex needed_by = none;
      for (const TensorId tensor : layers_[layer].inputs) needed_by = std::min(needed_by, journeys_[tensor].back);
      if (needed_by != none) all.push_back({needed_by, layer});
    }
    std::ranges::stable_sort(all, {}, &Away::needed_by);
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      while (next < all.size() && all[next].needed_by <= layer.last) ++next;  // too late: demand
      if (layer.forward || next == all.size() || all[next].layer >= i) continue;
      layer.fetched = layers_[all[next].layer].inputs;
      for (const TensorId tensor : layer.fetched) journeys_[tensor].back = layer.first;
      ++next;
    }
  }

  void begin(const Layer& layer, const View& view, Actions& actions) const {
    for (const TensorId tensor : layer.inputs) {
      if (const TensorId id = view.memory_tensor(tensor); id != none) actions.clean(id);
    }
    for (const TensorId tensor : layer.fetched) {
      if (const TensorId id = view.memory_tensor(tensor); id != none) actions.fetch(id);
    }
  }

  void end(const Layer& layer, OpIndex next, const View& view, Actions& actions) const {
    for (const TensorId tensor : layer.inputs) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none) continue;
      actions.drop(id);
      for (TierId tier = 1; synchronise_ && tier < view.memory.tier_count(); ++tier) actions.hold(next, id, tier);
    }
    for (const TensorId tensor : layer.fetched) {
      if (const TensorId id = view.memory_tensor(tensor); id != none && synchronise_) actions.hold(next, id);
    }
  }

  // What has left after its layer was over, and is not wanted back yet.
  void left(const Event& event, const View& view, Actions& actions) const {
    const TensorId tensor = view.program_tensor(event.tensor);
    if (tensor == none || view.op == none) return;
    const Journey& journey = journeys_[tensor];
    if (journey.away == none || view.op < journey.away || view.op >= journey.back) return;
    if (!view.memory.evictable(event.chunk, 0)) return;
    actions.push({.verb = Verb::drop,
                  .tier = 0,
                  .tensor = event.tensor,
                  .chunk = event.chunk - view.memory.first_chunk(event.tensor)});
  }

  std::string offload_ = "all";
  bool synchronise_ = true;
  bool convolutions_ = false;
  std::vector<Layer> layers_;            // in program order
  std::vector<std::uint32_t> layer_of_;  // by op; none: on the CPU
  std::vector<Journey> journeys_;        // by tensor
};

}  // namespace

TENCACHE_POLICY({"vdnn",
                 "layer inputs leave during their layer's forward pass and return one layer ahead in the backward pass",
                 "vDNN (MICRO'16), its static policies", make_policy_of<Vdnn>, 220})

}  // namespace tencache
