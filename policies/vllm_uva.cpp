// vllm-uva: the first weights of the layers live in page-locked CPU memory, where the GPU's kernels read them over the
// link; nothing is copied. vLLM's --cpu-offload-gb (vllm/model_executor/offloader/uva.py; unified virtual addressing).
//
// 1. Layer by layer, and in each in the model's order, weights are offloaded whole until they are `cpu_offload` bytes
// or
//    more. Embedding, head, final norm and all other weights stay on the GPU.
// 2. A kernel that reads offloaded weights takes as long as the link needs for them, or as long as ever, whichever is
//    longer.
// 3. Nothing moves, and what does not fit is out of memory.
//
// copied=true: SGLang's --cpu-offload-gb (python/sglang/srt/utils/offloader.py, OffloaderV1), which chooses by rule 1,
// and copies what of a layer is offloaded, with all of its experts, before the layer runs. The layer waits for it, and
// it is gone after the layer; nothing is copied ahead.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "policies/common_options.h"
#include "policies/layers.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

class VllmUva final : public Policy {
 public:
  explicit VllmUva(Options& options) {
    options.bytes("cpu_offload", cpu_offload_, "of weights in CPU memory, the first ones", "none");
    options
        .flag("copied", copied_, "each layer copies them before it runs, as in SGLang, instead of reading them there")
        .fixed(Options::rules_of_a_system);
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }
  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready ||
           (copied_ && (kind == EventKind::op_issued || kind == EventKind::op_done));
  }
  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      live_ = view.to_memory != nullptr;
      if (copied_) learn(view);
    }
    if (!copied_ || event.op == none || event.op >= at_.size()) return;
    const auto each = [&](std::uint32_t layer, auto act) {
      if (layer == none) return;
      for (const TensorId tensor : layers_[layer]) {
        if (const TensorId id = view.memory_tensor(tensor); id != none) act(id);
      }
    };
    const Moment& at = at_[event.op];
    if (event.kind == EventKind::op_issued) {
      each(at.next, [&](TensorId id) { actions.hold(at.next_op, id, 0); });
    } else {
      each(at.ended, [&](TensorId id) { actions.drop(id); });
      each(at.next, [&](TensorId id) { actions.fetch(id); });
    }
  }
  void notes(std::vector<std::string>& notes) const override {
    if (live_ && !copied_) notes.push_back("kernels of a live program do not read CPU memory: nothing is offloaded");
  }

  void read_in_place(const Trace& trace, const MachineSpec&, std::vector<bool>& tensors) const override {
    if (!copied_) tensors = offloaded(trace);
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    if (program == nullptr) return layout;
    const Trace& trace = program->trace;
    layout.start = start_of_weights(trace, offloaded(trace), machine.tier_of(Device::cpu), layout.chunk_bytes);
    return layout;
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

 private:
  std::vector<bool> offloaded(const Trace& trace) const {
    std::vector<bool> tensors(trace.tensors.size(), false);
    Bytes bytes = 0;
    for (TensorId id = 0; id < trace.tensors.size() && bytes < cpu_offload_; ++id) {
      const Tensor& tensor = trace.tensors[id];
      const std::string_view name = trace.name(tensor);
      if (!is_weight(tensor.role) || layer_of_module(name).size() == name.size()) continue;  // of no layer
      tensors[id] = true;
      bytes += tensor.bytes;
    }
    return tensors;
  }

  // With a GPU op: the layer that it ends, and the one that begins with the GPU op after it.
  struct Moment {
    std::uint32_t ended = none, next = none;
    OpIndex next_op = none;
  };

  void learn(const View& view) {
    const Trace& trace = view.program->trace;
    const std::vector<bool> away = offloaded(trace);
    std::map<std::string_view, std::uint32_t> layer_of_name;
    std::vector<std::uint32_t> layer_of(trace.tensors.size(), none);
    layers_.clear();
    for (TensorId id = 0; id < away.size(); ++id) {
      if (!away[id]) continue;
      const auto layer =
          layer_of_name.try_emplace(layer_of_module(trace.name(trace.tensors[id])), layers_.size()).first;
      layer_of[id] = layer->second;
      layers_.resize(layer_of_name.size());
      layers_[layer->second].push_back(id);
    }
    at_.assign(trace.ops.size(), {});
    const Layers runs = find_layers(*view.program, *view.schedule);
    OpIndex last = none;  // on the GPU
    for (OpIndex op = static_cast<OpIndex>(trace.ops.size()); op-- > 0 && last == none;) {
      if (trace.ops[op].device == Device::gpu) last = op;  // the first layer comes at the end of the iteration before
    }
    OpIndex op = 0;
    while (op < trace.ops.size()) {
      const std::uint32_t run = runs.of_op[op];
      std::uint32_t layer = none;
      for (const TensorId id : runs.list[run].parameters) layer = std::min(layer, layer_of[id]);
      bool begun = false;
      for (; op < trace.ops.size() && runs.of_op[op] == run; ++op) {
        if (trace.ops[op].device != Device::gpu) continue;
        if (!begun && layer != none) {
          at_[last].next = layer;
          at_[last].next_op = op;
        }
        begun = true;
        last = op;
      }
      if (begun) at_[last].ended = layer;
    }
  }

  Bytes cpu_offload_ = 0;
  bool copied_ = false, live_ = false;
  std::string overflow_ = "oom";
  std::vector<std::vector<TensorId>> layers_;  // what of each is offloaded, if it is copied
  std::vector<Moment> at_;                     // by op
};

}  // namespace

TENCACHE_POLICY({"vllm-uva",
                 "the first weights of the layers live in CPU memory, where kernels read them over the link",
                 "vLLM's --cpu-offload-gb",
                 make_policy_of<VllmUva>,
                 188,
                 nullptr,
                 nullptr,
                 {.vllm = true, .sglang = true}})

}  // namespace tencache
