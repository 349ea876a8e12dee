// l2l: layer to layer. Host memory is every parameter's home; only the running layer's are on the GPU. They are fetched
// when the layer starts, which waits for all of them, and dropped when it ends: copies and compute never overlap. The
// execution of L2L (Pudipeddi et al., "Training Large Neural Networks with Constant Memory using a New Execution
// Algorithm", 2020), and 10Cache's slowest baseline. Gradients go to the host when their layer ends ("eager"), where
// the optimizer runs; optimizer states never leave it. Activations move only when room is short.
//
// What a layer is: layers.h. Ops without a module are served on demand. Tensors larger than all staging buffers pass
// them in parts (unit_of_whole_tensors).
#include <algorithm>

#include "policies/common_options.h"
#include "policies/layers.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class LayerToLayer final : public Policy {
 public:
  explicit LayerToLayer(Options& options) {
    options
        .choice("optimizer", optimizer_, {"cpu", "recorded"},
                "cpu: the host updates the parameters, as L2L does; recorded: where the trace has it")
        .fixed(Options::rules_of_a_system);
    options
        .choice("buffers", buffers_, {"reuse", "allocate"},
                "allocate: what goes to the host takes fresh memory, and nothing stays behind on either side")
        .fixed(Options::rules_of_a_system);
    add_chunk_option(options, chunk_bytes_);
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, chunk_bytes_);
    layout.initial.fill(machine.tier_of(Device::cpu));
    if (buffers_ == "allocate" && machine.tier_of(Device::cpu) != no_tier) {
      layout.exclusive_copies = true;
      layout.blocking_step = true;  // the host, which does all of this, ends the step first
      layout.allocate_each[machine.tier_of(Device::cpu)] = true;
    }
    return layout;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    if (optimizer_ != "recorded") place_updates_on_cpu(trace, devices);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) layers_ = find_layers(*view.program, *view.schedule);
    if (event.kind == EventKind::schedule_deviated) running_ = none;
    if (event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none || layers_.list.empty())
      return;
    const std::uint32_t layer = layers_.of_op[event.op];
    if (layer == running_) return;
    const std::uint32_t left = running_;
    running_ = layer;
    if (left != none) leave_layer(left, view, actions);
    for (const TensorId tensor : layers_.list[layer].parameters) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none || view.memory.resident(id, 0)) continue;
      actions.fetch(id);
      actions.hold(event.op, id);
    }
  }

  std::uint64_t fingerprint() const override { return running_; }

 private:
  void leave_layer(std::uint32_t left, const View& view, Actions& actions) const {
    const std::vector<TensorId>& needed = layers_.list[running_].parameters;
    for (const TensorId tensor : layers_.list[left].parameters) {
      if (std::ranges::find(needed, tensor) == needed.end()) leave(tensor, view, actions);
    }
    for (const TensorId tensor : layers_.list[left].gradients) leave(tensor, view, actions);
  }

  void leave(TensorId tensor, const View& view, Actions& actions) const {
    send_home(tensor, view, actions);
    const TensorId id = view.memory_tensor(tensor);
    if (buffers_ != "allocate" || id == none) return;
    actions.hold(view.op, id, view.machine.tier_of(Device::cpu));  // the host is busy with fresh memory meanwhile
  }

  std::string optimizer_ = "cpu", buffers_ = "reuse";
  Bytes chunk_bytes_ = 0;
  Layers layers_;
  std::uint32_t running_ = none;
};

}  // namespace

TENCACHE_POLICY({"l2l",
                 "only the running layer's parameters are on the GPU: fetched at its start, dropped at its end",
                 "L2L (Pudipeddi et al. 2020), 10Cache's slowest baseline",
                 make_policy_of<LayerToLayer>,
                 80,
                 nullptr,
                 nullptr,
                 {.fsdp = [](const Settings&, std::uint64_t, const LayerShape&) { return FsdpSettings(); }}})

}  // namespace tencache
