// vllm-prefetch: of every group of layers the last ones live in page-locked CPU memory, and come to the GPU a fixed
// number of such layers ahead. vLLM's prefetch offloader (vllm/model_executor/offloader/prefetch.py;
// --offload-group-size, --offload-num-in-group, --offload-prefetch-step).
//
// 1. Layer n is offloaded if n mod group_size >= group_size - num_in_group. Embedding, head and all other layers stay
//    on the GPU.
// 2. Before the first pass the first prefetch_step offloaded layers are copied to the GPU.
// 3. When an offloaded layer is done, its buffer is free, and the copy of the one prefetch_step offloaded layers on
//    begins, from the last to the first of the next pass. A layer waits for its own weights.
// 4. Nothing else moves, and what does not fit is out of memory.
// experts=true: of an offloaded layer only the experts (--offload-params experts). SGLang's offloader of the same
// options (python/sglang/srt/utils/offloader.py, OffloaderV2) moves nothing else.
//
// The look-ahead counts offloaded layers: where they are neighbours (num_in_group > 1), a step of 1 begins the copy of
// a layer when the one before it has just ended.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/layers.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

class VllmPrefetch final : public Policy {
 public:
  explicit VllmPrefetch(Options& options) {
    options.number("group_size", group_size_, "layers", "of a group");
    options.number("num_in_group", in_group_, "layers", "the last ones of each group are offloaded; all at most");
    options.flag("experts", experts_, "only the experts of offloaded layers live in CPU memory")
        .fixed(Options::rules_of_a_system);
    options.number("prefetch_step", step_, "offloaded layers", "that a copy begins ahead");
    add_overflow_option(options, overflow_);
    if (group_size_ == 0 || in_group_ == 0 || step_ == 0) {
      throw Error("vllm-prefetch: group_size, num_in_group and prefetch_step are at least 1");
    }
    in_group_ = std::min(in_group_, group_size_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }
  bool hears(EventKind kind) const override { return kind == EventKind::profile_ready || kind == EventKind::op_done; }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    if (program == nullptr) return layout;
    const Trace& trace = program->trace;
    std::vector<bool> away(trace.tensors.size(), false);
    for (const std::vector<TensorId>& layer : offloaded_layers(trace)) {
      for (const TensorId id : layer) away[id] = true;
    }
    layout.start = start_of_weights(trace, away, machine.tier_of(Device::cpu), layout.chunk_bytes);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      learn(view);
      for (std::size_t i = 0; i < std::min<std::size_t>(step_, offloaded_.size()); ++i) fetch(i, view, actions);
      return;
    }
    if (event.op == none || event.op >= ends_.size() || ends_[event.op] == none) return;
    const std::size_t done = ends_[event.op], next = (done + step_) % offloaded_.size();
    for (const TensorId tensor : offloaded_[done]) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none) continue;
      actions.drop(id);
      if (next == done) actions.fetch(id);
    }
    if (next != done) fetch(next, view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

 private:
  // The weights of each, in the order of the model.
  std::vector<std::vector<TensorId>> offloaded_layers(const Trace& trace) const {
    std::vector<std::vector<TensorId>> layers;
    std::string_view last;
    std::uint64_t number = 0;
    bool is_offloaded = false, begun = false;
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      if (!is_weight(trace.tensors[id].role)) continue;
      const std::string_view name = trace.name(trace.tensors[id]), layer = layer_of_module(name);
      if (layer.size() == name.size()) continue;  // of no layer
      if (layer != last) {
        is_offloaded = number % group_size_ >= group_size_ - in_group_;
        begun = false;
        ++number;
        last = layer;
      }
      if (!is_offloaded || (experts_ && trace.tensors[id].role != Role::expert)) continue;
      if (!std::exchange(begun, true)) layers.emplace_back();
      layers.back().push_back(id);
    }
    return layers;
  }

  void learn(const View& view) {
    const Trace& trace = view.program->trace;
    offloaded_ = offloaded_layers(trace);
    std::vector<std::uint32_t> layer_of(trace.tensors.size(), none);
    for (std::uint32_t i = 0; i < offloaded_.size(); ++i) {
      for (const TensorId id : offloaded_[i]) layer_of[id] = i;
    }
    ends_.assign(trace.ops.size(), none);
    const Layers runs = find_layers(*view.program, *view.schedule);
    OpIndex last = none;  // of the run, on the GPU
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].device == Device::gpu) last = op;
      const bool is_end = op + 1 == trace.ops.size() || runs.of_op[op + 1] != runs.of_op[op];
      if (!is_end) continue;
      for (const TensorId id : runs.list[runs.of_op[op]].parameters) {
        if (layer_of[id] != none && last != none) ends_[last] = layer_of[id];
      }
      last = none;
    }
  }

  void fetch(std::size_t layer, const View& view, Actions& actions) const {
    for (const TensorId tensor : offloaded_[layer]) {
      const TensorId id = view.memory_tensor(tensor);
      if (id != none) fetch_missing(id, view, actions);
    }
  }

  std::uint64_t group_size_ = 4, in_group_ = 1, step_ = 1;
  bool experts_ = false;
  std::string overflow_ = "oom";
  std::vector<std::vector<TensorId>> offloaded_;  // weights of the offloaded layers
  std::vector<std::uint32_t> ends_;               // by op: the offloaded layer that is done with it
};

}  // namespace

TENCACHE_POLICY({"vllm-prefetch",
                 "the last layers of each group live in CPU memory and come a fixed number of them ahead",
                 "vLLM's prefetch offloader",
                 make_policy_of<VllmPrefetch>,
                 187,
                 nullptr,
                 nullptr,
                 {.vllm = true, .sglang = true}})

}  // namespace tencache
