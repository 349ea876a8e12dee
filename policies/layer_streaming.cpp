// layer-streaming: host memory is every parameter's home. When a layer begins, its own parameters and those of the next
// layers, as many as there are buffers, are fetched; when it ends, they leave and the gradients it made stream out. The
// schedule of layer-streaming trainers (MegaTrain, Horizon-LM); activations move only when room is short.
//
// What a layer is: layers.h. Ops without a module (the optimizer's, say) are served on demand.
#include <algorithm>

#include "policies/common_options.h"
#include "policies/layers.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class LayerStreaming final : public Policy {
 public:
  explicit LayerStreaming(Options& options) {
    options.number("buffers", buffers_, "layers",
                   "layers whose parameters may be on the GPU at once: the running one and those streaming in");
    add_chunk_option(options, chunk_bytes_);
  }

  Layout layout(const MachineSpec& machine, const Program*) const override {
    Layout layout;
    layout.chunk_bytes = chunk_bytes_;
    layout.initial.fill(machine.tier_of(Device::cpu));
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) layers_ = find_layers(*view.program, *view.schedule);
    if (event.kind == EventKind::schedule_deviated) current_ = none;
    if (event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none || layers_.list.empty())
      return;
    const std::uint32_t layer = layers_.of_op[event.op];
    if (layer == current_) return;
    const std::uint32_t left = current_;
    current_ = layer;
    if (left != none) leave(left, view, actions);
    for (std::uint64_t ahead = 0; ahead < std::max<std::uint64_t>(buffers_, 1); ++ahead) {
      for (const TensorId tensor : layers_.list[(layer + ahead) % layers_.list.size()].parameters) {
        const TensorId id = view.memory_tensor(tensor);
        if (id != none && !view.memory.resident(id, 0)) actions.fetch(id);
      }
    }
  }

  std::uint64_t fingerprint() const override { return current_; }

 private:
  bool kept(TensorId tensor) const {  // by the layers whose buffers are in use now
    for (std::uint64_t ahead = 0; ahead < std::max<std::uint64_t>(buffers_, 1); ++ahead) {
      const auto& list = layers_.list[(current_ + ahead) % layers_.list.size()].parameters;
      if (std::ranges::find(list, tensor) != list.end()) return true;
    }
    return false;
  }

  void leave(std::uint32_t left, const View& view, Actions& actions) const {
    for (const TensorId tensor : layers_.list[left].parameters) {
      if (!kept(tensor)) send_home(tensor, view, actions);
    }
    for (const TensorId tensor : layers_.list[left].gradients) send_home(tensor, view, actions);
  }

  std::uint64_t buffers_ = 2;
  Bytes chunk_bytes_ = 16 * MiB;
  Layers layers_;
  std::uint32_t current_ = none;
};

FsdpSettings fsdp_of_layer_streaming(const Settings& resolved, std::uint64_t, const LayerShape&) {
  return {.prefetched = std::max<std::uint64_t>(1, std::stoull(resolved.at("buffers"))) - 1};
}

}  // namespace

TENCACHE_POLICY({"layer-streaming",
                 "host memory is home; the next layer streams in while this one runs, gradients stream out",
                 "the schedule of layer-streaming trainers (MegaTrain, Horizon-LM)",
                 make_policy_of<LayerStreaming>,
                 130,
                 nullptr,
                 nullptr,
                 {.fsdp = fsdp_of_layer_streaming}})

}  // namespace tencache
