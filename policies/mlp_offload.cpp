// mlp-offload: MLP-Offload (Maurya et al., SC'25, arXiv 2509.02480; built on DeepSpeed's stage 3). Parameters stay on
// the GPU, the CPU runs the optimizer sub-group by sub-group, and what the optimizer keeps lives on several storage
// tiers and, in part, in CPU memory:
//   1. Multi-path. With two storage tiers sub-group i lives in the second if i mod ratio = 0, else in the first; with
//      more, i mod ratio = k names the tier k + 2nd, as far as there are any. Ratio 0: all in the first.
//   2. Cache-friendly order. CPU memory has room for `buffers` sub-groups. All but the `in_flight` ones that are being
//      read, updated or written are kept there, and those that were updated last in one iteration come first in the
//      next. The system turns the order round in each iteration: it reads and writes N - K of N sub-groups, K being
//      kept, and the kept ones come first. Here the order of an iteration is fixed, the recorded one reversed, and the
//      first K of it are kept for good. So N - K are read and written as well, the same number behind the kept ones,
//      and the steady state is the same but for which K they are; only the last sub-group's write trails into the next
//      iteration, where the system's last one is kept.
//   3. While sub-group x is updated, (in_flight - 1) / 2 of those that are not kept are read ahead; its update waits
//      for its own reads and for the write of the sub-group (in_flight - 1) / 2 + 1 before it.
//   4. No gradient flush. Gradients go to CPU memory in the precision that the backward pass gives them and stay there
//      until their update, which converts them, and storage sees none. No op of the backward pass waits for them; the
//      step begins when all are there. (Generate the trace with 16-bit gradients.)
//   5. Parameters are copied back as each update is done. The next iteration begins when the step is over.
//
// Left out: one writer a device at a time. Copies of all ranks share a storage tier's bandwidth evenly and nothing is
// lost where they interleave; in the system's logs for 70B the lock is worth 1.4 %.
//
// In the first iteration all states come from the first storage tier. Where the CPU reaches none all are kept. Running
// out of GPU memory is a legal outcome; overflow=evict lets the engine move the coldest tensors instead.
#include <algorithm>
#include <string>

#include "policies/common_options.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class MlpOffload final : public Policy {
 public:
  explicit MlpOffload(Options& options) {
    options.number("ratio", ratio_, "sub-groups",
                   "with two storage tiers every so manieth sub-group lives in the second (the artifact's runs: 3)");
    options.number("buffers", buffers_, "sub-groups",
                   "of which CPU memory holds the states at once, kept ones and those in flight; 0: as many as fit");
    options.number("in_flight", in_flight_, "sub-groups",
                   "that are being read, updated or written at once (in the artifact's logs 9 of 25 buffers)");
    add_overflow_option(options, overflow_);
    in_flight_ = std::max<std::uint64_t>(in_flight_, 1);
  }

  Requirements requirements() const override { return govern_model_states(true); }  // module hooks: DeepSpeed's

  Layout layout(const MachineSpec& machine, const Program*) const override {
    const std::vector<TierId> storage = storage_of(machine);
    const TierId home = storage.empty() ? machine.tier_of(Device::cpu) : storage.front();
    return states_with_optimizer(home, 0, overflow_ == "evict");
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    place_updates_on_cpu(trace, devices);
  }

  void order(const Trace&, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    std::ranges::reverse(groups);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    victims_.on(event, view);
    switch (event.kind) {
      case EventKind::profile_ready:
        learn(view);
        break;
      case EventKind::schedule_deviated:
        groups_.clear();
        group_of_.clear();
        step_ = none;
        break;
      case EventKind::iteration_begin:
        read_ = 0;
        break;
      case EventKind::op_issued:
        if (const std::uint32_t group = group_at(event); group != none && groups_[group].first_op == event.op) {
          begin(group, event.op, view, actions);
        }
        break;
      case EventKind::op_done:
        event.device == Device::cpu ? cpu_done(event, view, actions) : gpu_done(event, view, actions);
        break;
      default:
        break;
    }
  }

  // The engine may drive out what is offloaded, from the GPU all else only with overflow=evict.
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    victims_.find_with_optimizer(overflow_ == "evict", request, view, victims);
  }

  std::uint64_t fingerprint() const override { return read_; }

  void notes(std::vector<std::string>& notes) const override {
    if (groups_.empty()) return;
    Bytes bytes = 0;
    for (std::size_t i = 0; i < kept_; ++i) bytes += groups_[i].bytes;
    notes.push_back(std::to_string(kept_) + " of " + std::to_string(groups_.size()) + " sub-groups, " +
                    format_bytes(bytes) + " of states, stay in CPU memory");
  }

 private:
  // Of kind nvme, in the machine's order; the CPU must be able to read and write it.
  static std::vector<TierId> storage_of(const MachineSpec& machine) {
    const TierId cpu = machine.tier_of(Device::cpu);
    std::vector<TierId> storage;
    for (TierId tier = 0; tier < machine.tiers.size() && cpu != no_tier; ++tier) {
      const bool joined = !machine.path_between(tier, cpu).empty() && !machine.path_between(cpu, tier).empty();
      if (machine.tiers[tier].kind == TierKind::nvme && joined) storage.push_back(tier);
    }
    return storage;
  }

  void learn(const View& view) {
    const Trace& trace = view.program->trace;
    groups_ = sub_groups_of(trace);
    std::erase_if(groups_, [](const SubGroup& group) { return group.device != Device::cpu; });
    group_of_.assign(trace.ops.size(), none);
    homes_.clear();
    const std::vector<TierId> storage = storage_of(view.machine);
    for (std::uint32_t i = 0; i < groups_.size(); ++i) {
      for (OpIndex op = groups_[i].first_op; op <= groups_[i].last_op; ++op) group_of_[op] = i;
      std::size_t home = 0;
      if (ratio_ > 0) home = static_cast<std::size_t>(static_cast<std::uint64_t>(groups_[i].number) % ratio_) + 1;
      if (storage.empty()) {
        homes_.push_back(no_tier);
      } else {
        homes_.push_back(home < storage.size() ? storage[home] : storage.front());
      }
    }
    kept_ = storage.empty() || groups_.empty() ? groups_.size() : kept_of(trace, view.machine);
    step_ = first_of_step(trace);
    read_ = 0;
  }

  // How many sub-groups stay: the buffers without those in flight or, where that is not said, what CPU memory holds
  // beside the gradients, the parameters that the CPU writes, and as many of the largest sub-groups as are in flight.
  std::size_t kept_of(const Trace& trace, const MachineSpec& machine) const {
    if (buffers_ > 0) {
      return static_cast<std::size_t>(
          std::min<std::uint64_t>(buffers_ - std::min(in_flight_, buffers_), groups_.size()));
    }
    Bytes taken = 0, largest = 0;
    for (const Tensor& tensor : trace.tensors) {
      if (tensor.role == Role::gradient || tensor.role == Role::parameter) taken += tensor.bytes;
    }
    for (const SubGroup& group : groups_) largest = std::max(largest, group.bytes);
    taken += in_flight_ * largest;
    const Bytes capacity = machine.tiers[machine.tier_of(Device::cpu)].capacity;
    std::size_t kept = 0;
    for (; kept < groups_.size() && taken + groups_[kept].bytes <= capacity; ++kept) taken += groups_[kept].bytes;
    return kept;
  }

  std::uint32_t group_at(const Event& event) const {
    const bool known = event.device == Device::cpu && event.op < group_of_.size();
    return known ? group_of_[event.op] : none;
  }
  std::size_t apart() const { return static_cast<std::size_t>((in_flight_ - 1) / 2); }

  // Its own states, which the update waits for, then those of the next ones that are not kept.
  void begin(std::uint32_t group, OpIndex op, const View& view, Actions& actions) {
    const TierId cpu = view.machine.tier_of(Device::cpu);
    const std::size_t until = std::min(groups_.size(), std::max<std::size_t>(group + 1, kept_) + apart());
    for (std::size_t i = std::max<std::size_t>(read_, group); i < until; ++i) {
      for (const TensorId tensor : groups_[i].states) {
        const TensorId id = view.memory_tensor(tensor);
        if (id != none && !view.memory.resident(id, cpu)) actions.fetch(id, cpu);
      }
    }
    read_ = std::max(read_, until);
    for (const TensorId tensor : groups_[group].states) {
      if (const TensorId id = view.memory_tensor(tensor); id != none) actions.hold(op, id, cpu);
    }
  }

  void cpu_done(const Event& event, const View& view, Actions& actions) {
    for (const Use& use : event.uses) {
      if (use.tensor != none && use.write && view.memory.role(use.tensor) == Role::parameter) actions.fetch(use.tensor);
    }
    const std::uint32_t group = group_at(event);
    if (group == none || groups_[group].last_op != event.op || group < kept_ || homes_[group] == no_tier) return;
    const std::size_t waits = group + apart() + 1;
    for (const TensorId tensor : groups_[group].states) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none) continue;
      actions.evict(id, homes_[group], view.machine.tier_of(Device::cpu));
      if (waits < groups_.size()) actions.hold(groups_[waits].first_op, id, homes_[group]);
    }
  }

  void gpu_done(const Event& event, const View& view, Actions& actions) const {
    const TierId cpu = view.machine.tier_of(Device::cpu);
    for (const Use& use : event.uses) {
      if (use.tensor == none || view.memory.role(use.tensor) != Role::gradient) continue;
      if (!next_used_by_cpu(use.tensor, event.op, view)) continue;
      actions.evict(use.tensor, cpu);
      if (step_ != none) actions.hold(step_, use.tensor, cpu);
    }
  }

  std::uint64_t ratio_ = 3, buffers_ = 0, in_flight_ = 9;
  std::string overflow_ = "oom";
  ColdestVictims victims_;

  std::vector<SubGroup> groups_;         // in the order in which the CPU updates them
  std::vector<TierId> homes_;            // of each
  std::vector<std::uint32_t> group_of_;  // by op
  OpIndex step_ = none;                  // its first op
  std::size_t kept_ = 0;                 // the first so many stay in CPU memory
  std::size_t read_ = 0;                 // read, or being read, in this iteration
};

}  // namespace

TENCACHE_POLICY(
    {"mlp-offload",
     "the CPU updates sub-groups whose states are spread over several storage tiers; the last ones stay in memory",
     "MLP-Offload (SC'25), arXiv 2509.02480",
     make_policy_of<MlpOffload>,
     210,
     nullptr,
     nullptr,
     {.artifact = true}})

}  // namespace tencache
