// deep-optimizer-states: Deep Optimizer States (Maurya et al., Middleware'24, arXiv 2410.21316; built on DeepSpeed's
// stage 3). Parameters stay on the GPU, master parameters and optimizer states live in CPU memory, and CPU and GPU
// share the updates:
//   1. With a gap of g, sub-group x is updated on the GPU if (x + 1) mod g = 0, the others by the CPU's Adam, both at
//      once. Gap 0: none on the GPU; 1: all.
//   2. The GPU's sub-groups come in one ahead: the first one's states when the step begins, each next one's when the
//      update of the one before is issued. (The system asks for them as its loop passes x mod g = 0. That loop starts
//      the updates of both devices in order; here each device takes its own at its own pace, so that the copies, not
//      the CPU, set the GPU's.) States go back to CPU memory as each update is done.
//   3. Gradients of the CPU's sub-groups leave as the backward pass produces them; no op of it waits for them, but the
//      step begins when all are there. Those of the GPU's stay.
//      gradient_copies=artifact does what the artifact's code does instead: each gradient is copied to CPU memory, back
//      for its norm and, for the CPU's sub-groups, out again in fp32, one copy after the other on one stream.
//   4. Parameters that the CPU has updated are copied back as each update is done. The next iteration begins when the
//      step is over.
//
// Running out of GPU memory is a legal outcome, as with zero-offload; overflow=evict lets the engine move the coldest
// tensors instead.
#include "policies/common_options.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class DeepOptimizerStates final : public Policy {
 public:
  explicit DeepOptimizerStates(Options& options) {
    options.number("gap", gap_, "sub-groups",
                   "every gap-th sub-group is updated on the GPU (the artifact's runs: 2); 0: none, 1: all");
    options
        .choice("gradient_copies", gradient_copies_, {"once", "artifact"},
                "once: the CPU's leave; artifact: all go out, back for their norm and, the CPU's, out again in fp32")
        .fixed(Options::rules_of_a_system);
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return govern_model_states(true); }  // module hooks: DeepSpeed's

  Layout layout(const MachineSpec& machine, const Program*) const override {
    return states_with_optimizer(machine.tier_of(Device::cpu), 0, overflow_ == "evict");
  }

  // Norms of gradients go with their sub-group, the coefficient that all updates wait for is the CPU's. An update of no
  // recorded sub-group counts as one of its own.
  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    std::uint64_t counted = 0;
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      if (!is_update(trace, op) || trace.writes(op).empty()) continue;
      const bool whole_step = op.group < 0 && !trace.tensors[trace.writes(op).front()].persistent;
      if (whole_step) {
        devices[index] = Device::cpu;
        continue;
      }
      const std::uint64_t number = op.group >= 0 ? static_cast<std::uint64_t>(op.group) : counted++;
      if (gap_ == 0 || (number + 1) % gap_ != 0) devices[index] = Device::cpu;
    }
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    victims_.on(event, view);
    switch (event.kind) {
      case EventKind::profile_ready:
        learn(*view.program);
        break;
      case EventKind::schedule_deviated:
        groups_.clear();
        step_ = none;
        travelling_ = none;
        waiting_.clear();
        break;
      case EventKind::iteration_begin:
        travelling_ = none;
        waiting_.clear();
        break;
      case EventKind::transfer_done:
        if (event.tensor == travelling_ && travelling_ != none) next_leg(event, view, actions);
        break;
      case EventKind::refused:  // an op has it in use: it is where it is needed
        if (event.tensor == travelling_ && travelling_ != none) next_gradient(view, actions);
        break;
      case EventKind::tensor_freed:
        std::erase(waiting_, event.tensor);
        if (event.tensor == travelling_ && travelling_ != none) next_gradient(view, actions);
        break;
      case EventKind::op_issued:
        if (event.device == Device::gpu) fetch_ahead(event.op, view, actions);
        break;
      case EventKind::op_done:
        if (event.device == Device::cpu) {
          cpu_done(event, view, actions);
        } else {
          gpu_done(event, view, actions);
        }
        break;
      default:
        break;
    }
  }

  std::uint64_t fingerprint() const override {
    return travelling_ == none ? 0 : (std::uint64_t{travelling_} << 24) + waiting_.size() * 4 + leg_;
  }

  // The engine may drive out what is offloaded, the rest only with overflow=evict.
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    victims_.find_with_optimizer(overflow_ == "evict", request, view, victims);
  }

 private:
  void learn(const Program& program) {
    groups_.clear();
    for (SubGroup& group : sub_groups_of(program.trace)) {
      if (group.device == Device::gpu) groups_.push_back(std::move(group));
    }
    last_backward_ = none;
    for (OpIndex op = 0; op < program.trace.ops.size(); ++op) {
      if (program.trace.ops[op].phase == Phase::backward) last_backward_ = op;
    }
    step_ = first_of_step(program.trace);
    next_ = 0;
  }

  // `next_`: the sub-group whose first op comes next on the GPU.
  void fetch_ahead(OpIndex op, const View& view, Actions& actions) {
    if (next_ < groups_.size() && groups_[next_].first_op == op) {
      ++next_;
      if (next_ < groups_.size()) fetch(groups_[next_], view, actions);
    }
  }

  static void fetch(const SubGroup& group, const View& view, Actions& actions) {
    for (const TensorId tensor : group.states) {
      const TensorId id = view.memory_tensor(tensor);
      if (id != none && !view.memory.resident(id, 0)) actions.fetch(id);
    }
  }

  void gpu_done(const Event& event, const View& view, Actions& actions) {
    const TierId cpu = view.machine.tier_of(Device::cpu);
    for (const Use& use : event.uses) {
      if (use.tensor == none || cpu == no_tier) continue;
      const Role role = view.memory.role(use.tensor);
      if (role != Role::gradient) {
        if (use.write && goes_with_optimizer(role)) actions.evict(use.tensor, cpu);
      } else if (gradient_copies_ == "once") {
        if (!next_used_by_cpu(use.tensor, event.op, view)) continue;
        actions.evict(use.tensor, cpu);
        if (step_ != none) actions.hold(step_, use.tensor, cpu);
      } else if (next_used_by_step(use.tensor, event.op, view)) {
        waiting_.push_back(use.tensor);
        if (travelling_ == none) next_gradient(view, actions);
      }
    }
    if (event.op != none && event.op == last_backward_) {
      next_ = 0;
      if (!groups_.empty()) fetch(groups_.front(), view, actions);
    }
  }

  static bool next_used_by_step(TensorId gradient, OpIndex op, const View& view) {
    const TensorId id = view.program_tensor(gradient);
    if (view.schedule == nullptr || id == none || op == none || view.program->trace.ops[op].phase == Phase::optimizer)
      return false;
    const std::uint32_t distance = view.schedule->distance_to_next_use(id, op);
    if (distance == none) return false;
    return view.program->trace.ops[(op + distance) % view.schedule->op_count()].phase == Phase::optimizer;
  }

  // gradient_copies=artifact: a gradient's ways out, back and out again. The step waits for each of them.
  void next_gradient(const View& view, Actions& actions) {
    travelling_ = none;
    if (waiting_.empty()) return;
    travelling_ = waiting_.front();
    waiting_.erase(waiting_.begin());
    leg_ = 0;
    const TierId cpu = view.machine.tier_of(Device::cpu);
    actions.clean(travelling_, cpu);
    wait_for(cpu, actions);
  }

  void next_leg(const Event& event, const View& view, Actions& actions) {
    const TierId cpu = view.machine.tier_of(Device::cpu);
    const bool arrived = view.memory.resident(travelling_, leg_ == 1 ? TierId{0} : cpu);
    if (!arrived || event.to != (leg_ == 1 ? TierId{0} : cpu)) return;
    ++leg_;
    if (leg_ == 1) {
      actions.drop(travelling_, 0);
      actions.fetch(travelling_, 0);
      wait_for(0, actions);
    } else if (leg_ == 2 && next_used_by_cpu(travelling_, last_backward_, view)) {
      actions.drop(travelling_, cpu);
      // In fp32: a gradient of 16 bits goes twice.
      if (view.program->trace.header.element_bytes() == 2) {
        actions.clean(travelling_, cpu);
      } else {
        ++leg_;
        actions.evict(travelling_, cpu);
      }
      wait_for(cpu, actions);
    } else if (leg_ == 3) {
      actions.drop(travelling_, cpu);
      actions.evict(travelling_, cpu);
      wait_for(cpu, actions);
    } else {
      next_gradient(view, actions);
    }
  }

  void wait_for(TierId tier, Actions& actions) const {
    if (step_ != none) actions.hold(step_, travelling_, tier);
  }

  static void cpu_done(const Event& event, const View& view, Actions& actions) {
    for (const Use& use : event.uses) {
      if (use.tensor != none && use.write && view.memory.role(use.tensor) == Role::parameter) actions.fetch(use.tensor);
    }
  }

  std::uint64_t gap_ = 2;
  std::string gradient_copies_ = "once", overflow_ = "oom";
  ColdestVictims victims_;

  std::vector<SubGroup> groups_;  // the GPU's
  OpIndex last_backward_ = none, step_ = none;
  std::size_t next_ = 0;
  TensorId travelling_ = none;     // a gradient (ids of the memory) …
  std::uint32_t leg_ = 0;          // … and its copies done
  std::vector<TensorId> waiting_;  // complete, behind it
};

}  // namespace

TENCACHE_POLICY({"deep-optimizer-states",
                 "as zero-offload, but every second sub-group of the optimizer is updated on the GPU, beside the CPU's",
                 "Deep Optimizer States (Middleware'24), arXiv 2410.21316",
                 make_policy_of<DeepOptimizerStates>,
                 200,
                 nullptr,
                 nullptr,
                 {.artifact = true}})

}  // namespace tencache
