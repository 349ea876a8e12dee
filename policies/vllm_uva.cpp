// vllm-uva: the first weights of the layers live in page-locked CPU memory, where the GPU's kernels read them over the
// link; nothing is copied. vLLM's --cpu-offload-gb (vllm/model_executor/offloader/uva.py; unified virtual addressing).
//
// 1. Layer by layer, and in each in the model's order, weights are offloaded whole until they are `cpu_offload` bytes or
//    more. Embedding, head, final norm and all other weights stay on the GPU.
// 2. A kernel that reads offloaded weights takes as long as the link needs for them, or as long as ever, whichever is
//    longer.
// 3. Nothing moves, and what does not fit is out of memory.
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
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }
  bool hears(EventKind kind) const override { return kind == EventKind::profile_ready; }
  void on(const Event&, const View& view, Actions&) override { live_ = view.to_memory != nullptr; }
  void notes(std::vector<std::string>& notes) const override {
    if (live_) notes.push_back("kernels of a live program do not read CPU memory: nothing is offloaded");
  }

  void read_in_place(const Trace& trace, const MachineSpec&, std::vector<bool>& tensors) const override {
    tensors = offloaded(trace);
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

  Bytes cpu_offload_ = 0;
  bool live_ = false;
  std::string overflow_ = "oom";
};

}  // namespace

TENCACHE_POLICY({"vllm-uva",
                 "the first weights of the layers live in CPU memory, where kernels read them over the link",
                 "vLLM's --cpu-offload-gb",
                 make_policy_of<VllmUva>,
                 188,
                 nullptr,
                 nullptr,
                 {.vllm = true}})

}  // namespace tencache
