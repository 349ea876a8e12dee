// accelerate: a device map. Weights live where the map says; those below the GPU are copied there when their kernel runs,
// which waits, and are gone after it. Hugging Face Accelerate (big_modeling.py, hooks.py: AlignDevicesHook; utils/
// modeling.py: infer_auto_device_map).
//
// 1. map=auto: modules fill the GPU in the model's order, less room for the largest that is still to come, then CPU
//    memory in the same way; the rest lies on storage. A layer is never split. map=offload: the layers lie below the
//    GPU, all else on it, as FlexGen's authors ran it (Sheng et al. 2023, section 6).
// 2. A hook before a module copies its weights, one after it frees them: nothing is fetched ahead, nothing is kept.
// 3. Nothing else moves. The KV cache stays on the GPU, and what does not fit there is out of memory.
//
// Its copies are from pageable memory (CopyMemory).
#include <string>
#include <vector>

#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

class Accelerate final : public Policy {
 public:
  explicit Accelerate(Options& options) {
    options
        .choice("map", map_, {"auto", "offload"},
                "auto: the GPU is filled in the model's order; offload: layers lie below it, all else on it")
        .fixed(Options::rules_of_a_system);
    options.bytes("gpu_weights", gpu_weights_, "max_memory of the map's GPU", "auto").only_with("map", "auto");
    options.bytes("cpu_weights", cpu_weights_, "max_memory of the map's CPU", "auto");
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }
  bool hears(EventKind kind) const override { return kind == EventKind::profile_ready || kind == EventKind::op_done; }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    layout.copy_memory.fill(CopyMemory::pageable);
    layout.staging_memory = CopyMemory::pageable;
    if (program == nullptr) return layout;
    layout.start = find_homes(machine, program->trace).start(program->trace, layout.chunk_bytes);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      homes_ = find_homes(view.machine, view.program->trace);
      return;
    }
    if (event.device != Device::gpu) return;
    for (const Use& use : event.uses) {
      const TensorId known = use.tensor == none ? none : view.program_tensor(use.tensor);
      const TierId home = known == none ? no_tier : homes_.of(known);
      if (home != no_tier && home != 0) actions.push({.verb = Verb::drop, .tensor = use.tensor});
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

 private:
  WeightHomes find_homes(const MachineSpec& machine, const Trace& trace) const {
    std::vector<Bytes> room;
    for (const Tier& tier : machine.tiers) {
      const bool told = tier.kind == TierKind::cpu && cpu_weights_ != 0;
      room.push_back(told ? cpu_weights_ : tier.capacity);
    }
    if (map_ == "offload") {
      room[0] = 0;
      return WeightHomes(trace, room, WeightHomes::Mapped::layers);
    }
    if (gpu_weights_ != 0) room[0] = gpu_weights_;
    return WeightHomes(trace, room);
  }

  std::string map_ = "auto", overflow_ = "oom";
  Bytes gpu_weights_ = 0, cpu_weights_ = 0;  // 0: as large as the tier
  WeightHomes homes_;
};

}  // namespace

TENCACHE_POLICY({"accelerate",
                 "weights live where a device map says; a kernel waits for its own, which are gone after it",
                 "Hugging Face Accelerate's device_map and hooks",
                 make_policy_of<Accelerate>,
                 180,
                 nullptr,
                 nullptr,
                 {.device_map = true}})

}  // namespace tencache
