// zero-inference: all weights live in CPU memory, or on storage, and stream through the GPU layer by layer, a bounded
// number of bytes ahead. DeepSpeed's ZeRO-Inference (Aminabadi et al., SC'22, "DeepSpeed Inference", section 5;
// DeepSpeedExamples, inference/huggingface/zero_inference).
//
// 1. weights=cpu: all in CPU memory. weights=nvme: all on storage, read through CPU memory.
// 2. When a kernel is issued, the weights of those behind it are fetched in their order, as long as what is on its way
//    or waits on the GPU is less than `bucket`. What a kernel still lacks it waits for.
// 3. A kernel's weights are freed after it, as no other of the same pass reads them.
// 4. cache=gpu: the KV cache stays on the GPU. cache=cpu: it lives in CPU memory, where new tokens attend to it (tencache
//    generate --placeable attention, or --attention-on cpu); what the prompts wrote goes there when it is written. Since
//    DeepSpeed 0.10.3.
// 5. Nothing else moves, and what does not fit is out of memory. CPU memory is pageable, unless pinned=true.
//
// `bucket` is DeepSpeed's stage3_prefetch_bucket_size, two matrices of the model's width in its examples: by default as
// large as the largest weight of a layer.
#include <algorithm>
#include <string>
#include <vector>

#include "policies/block_slots.h"
#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/storage.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

class ZeroInference final : public Policy {
 public:
  explicit ZeroInference(Options& options) {
    options.choice("weights", weights_, {"cpu", "nvme"}, "where all weights live").fixed(Options::rules_of_a_system);
    options.choice("cache", cache_, {"gpu", "cpu"}, "where the KV cache lives").fixed(Options::rules_of_a_system);
    options.flag("pinned", pinned_, "weights in CPU memory are page-locked");
    options.bytes("bucket", bucket_, "of weights that are fetched ahead", "auto");
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }
  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::op_issued || kind == EventKind::op_done;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    if (cache_ == "cpu") attend_on_cpu(trace, "zero-inference", devices);
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    if (!pinned_) layout.copy_memory.fill(CopyMemory::pageable);
    const TierId home = weights_ == "nvme" ? require_ssd(machine, "zero-inference") : machine.tier_of(Device::cpu);
    for (const Role role : {Role::parameter, Role::expert}) layout.initial[static_cast<std::size_t>(role)] = home;
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) learn(view);
    if (event.device != Device::gpu || event.op == none || view.schedule == nullptr) return;
    if (event.kind == EventKind::op_issued) fetch_ahead(event.op, view, actions);
    if (event.kind == EventKind::op_done) {
      for (const Use& use : event.uses) {
        if (use.tensor == none) continue;
        const Role role = view.memory.role(use.tensor);
        if (is_weight(role)) actions.push({.verb = Verb::drop, .tensor = use.tensor});
        if (role == Role::kv_cache && cache_ == "cpu") actions.evict(use.tensor, view.machine.tier_of(Device::cpu));
      }
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

 private:
  void learn(const View& view) {
    ahead_ = bucket_;
    const Trace& trace = view.program->trace;
    if (ahead_ == 0) ahead_ = largest_layer_weight(trace);
    reading_.clear();
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].device != Device::gpu) continue;
      const auto is_read = [&trace](TensorId tensor) { return is_weight(trace.tensors[tensor].role); };
      if (std::ranges::any_of(trace.reads(trace.ops[op]), is_read)) reading_.push_back(op);
    }
  }

  void fetch_ahead(OpIndex issued, const View& view, Actions& actions) const {
    const auto after = std::ranges::upper_bound(reading_, issued);
    Bytes bytes = 0;
    for (std::size_t i = 0, at = static_cast<std::size_t>(after - reading_.begin()); i < reading_.size(); ++i, ++at) {
      if (at == reading_.size()) at = 0;
      if (reading_[at] == issued) return;  // once round
      for (const Use& use : view.schedule->uses(reading_[at])) {
        const TensorId tensor = use.read ? view.memory_tensor(use.tensor) : none;
        if (tensor == none || !is_weight(view.memory.role(tensor))) continue;
        bytes += view.memory.bytes(tensor);
        if (bytes > ahead_) return;
        fetch_missing(tensor, view, actions);
      }
    }
  }

  std::string weights_ = "cpu", cache_ = "gpu", overflow_ = "oom";
  bool pinned_ = false;
  Bytes bucket_ = 0, ahead_ = 0;
  std::vector<OpIndex> reading_;  // ops of the GPU that read weights
};

}  // namespace

TENCACHE_POLICY({"zero-inference",
                 "weights stream through the GPU from CPU memory or storage, some bytes ahead",
                 "DeepSpeed ZeRO-Inference (SC'22)",
                 make_policy_of<ZeroInference>,
                 185,
                 nullptr,
                 nullptr,
                 {.zero_inference = true}})

}  // namespace tencache
