// zero-offload: ZeRO-Offload (Ren et al., USENIX ATC'21). Parameters stay on the GPU; gradients go to CPU memory as the
// backward pass produces them; master parameters and optimizer states live in CPU memory and the CPU runs the optimizer
// after the backward pass; updated parameters are copied back as each update is done.
//
// It does not offload activations, so running out of GPU memory is a legal outcome; overflow=evict lets the engine move
// the coldest tensors instead.
#include "policies/common_options.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class ZeroOffload final : public Policy {
 public:
  explicit ZeroOffload(Options& options) {
    add_overflow_option(options, overflow_);
    add_chunk_option(options, chunk_bytes_);
  }

  Requirements requirements() const override { return govern_model_states(false); }

  Layout layout(const MachineSpec& machine, const Program*) const override {
    return states_with_optimizer(machine.tier_of(Device::cpu), chunk_bytes_, overflow_ == "evict");
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    place_updates_on_cpu(trace, devices);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    victims_.on(event, view);
    if (event.kind != EventKind::op_done) return;
    for (const Use& use : event.uses) {
      if (use.tensor == none) continue;
      const Role role = view.memory.role(use.tensor);
      if (event.device == Device::gpu && role == Role::gradient && next_used_by_cpu(use.tensor, event.op, view)) {
        actions.evict(use.tensor, view.machine.tier_of(Device::cpu));
      }
      if (event.device == Device::cpu && use.write && role == Role::parameter) actions.fetch(use.tensor);
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    victims_.find_with_optimizer(overflow_ == "evict", request, view, victims);
  }

 private:
  std::string overflow_ = "oom";
  Bytes chunk_bytes_ = 16 * MiB;
  ColdestVictims victims_;
};

DeepSpeedDevices deepspeed_of_zero_offload(const Settings& resolved) {
  return {.remarks = {"chunk=" + resolved.at("chunk") + " has no key: DeepSpeed copies gradients one by one"}};
}

DeepSpeedMemory memory_of_zero_offload(const Settings&, const ModelShape& model) {
  constexpr Bytes fp32 = 4, adam_states = 8;
  DeepSpeedMemory memory;
  memory.pageable = model.trained * adam_states;
  for (const Bytes bytes : {fp32, fp32, model.element_bytes}) memory.add_if_asked(model.trained * bytes);
  return memory;
}

}  // namespace

TENCACHE_POLICY({"zero-offload",
                 "parameters stay on the GPU, gradients go to the CPU, which keeps the states and runs the optimizer",
                 "ZeRO-Offload (USENIX ATC'21)",
                 make_policy_of<ZeroOffload>,
                 240,
                 nullptr,
                 nullptr,
                 {.zero_stage = 2, .deepspeed = deepspeed_of_zero_offload, .deepspeed_memory = memory_of_zero_offload}})

}  // namespace tencache
