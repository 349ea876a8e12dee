// patrickstar: Fang et al., "PatrickStar: Parallel Training of Pre-trained Models via Chunk-based Memory Management"
// (arXiv 2108.05818, IEEE TPDS 2023) and its public code. Model data (parameters, gradients, master parameters,
// optimizer states) lies in chunks that move as a whole between GPU and CPU memory; all other data stays on the GPU.
//   1. Tensors of one role are put into chunks of `chunk_size` in the order of their first use; a larger tensor is a
//      chunk of its own.
//   2. An op waits until the chunks of its tensors are on its device. Nothing is fetched ahead. A chunk is in one place
//      only: a fetch frees its source, an eviction writes.
//   3. When room is short on the GPU, the chunk whose next use there is the farthest leaves (Belady). In the first
//      iteration, which the system only records, the least recently used does.
//   4. The CPU runs the optimizer when the trace lets it, and an iteration begins when the step before is over. With
//      updates=margin the first updates stay on the GPU: as many as there is margin for their states beside all
//      parameters and the peak of what is not persistent.
// What is not in chunks never leaves: where it does not fit that is out of memory (overflow=evict: the coldest leave).
// Until the iteration is known a tensor is a chunk by itself. One larger than all staging buffers, on its way from or
// to storage, which the system does not use, passes them in parts (unit_of_whole_tensors).
#include <algorithm>
#include <map>

#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/footprint.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class PatrickStar final : public Policy {
 public:
  explicit PatrickStar(Options& options) {
    options.bytes("chunk_size", chunk_size_, "of the chunks that tensors are put into", "tensor");
    options.choice(
        "updates", updates_, {"margin", "cpu", "recorded"},
        "margin: on the GPU as far as their states fit beside the rest, else on the CPU; recorded: where the "
        "trace has them");
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override {
    Requirements r =
        Requirements::governing({Role::parameter, Role::gradient, Role::master_parameter, Role::optimizer_state});
    r.module_hooks = true;
    return r;
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    layout.exclusive_copies = true;
    layout.blocking_step = true;
    layout.fallback_eviction = overflow_ == "evict";
    for (const Role role : {Role::parameter, Role::master_parameter, Role::optimizer_state}) {
      layout.initial[static_cast<std::size_t>(role)] = machine.tier_of(Device::cpu);
    }
    return layout;
  }

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    if (updates_ == "recorded") return;
    Bytes taken = updates_ == "margin" ? peak_of_intermediates(trace, Schedule(trace), true) : unlimited;
    for (const Tensor& tensor : trace.tensors) {
      const bool stays =
          tensor.persistent && tensor.role != Role::master_parameter && tensor.role != Role::optimizer_state;
      if (stays && taken != unlimited) taken += tensor.bytes;
    }
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (!is_update(trace, trace.ops[op])) continue;
      Bytes states = 0;
      for (const TensorId tensor : trace.writes(trace.ops[op])) {
        const Role role = trace.tensors[tensor].role;
        if (role == Role::master_parameter || role == Role::optimizer_state) states += trace.tensors[tensor].bytes;
      }
      if (taken < machine.tiers[0].capacity && states <= machine.tiers[0].capacity - taken) {
        taken += states;
      } else {
        devices[op] = Device::cpu;
        taken = unlimited;  // those that stay are the first ones
      }
    }
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    coldest_.on(event, view);
    if (event.kind == EventKind::profile_ready) make_chunks(view);
    if (event.kind == EventKind::schedule_deviated) chunks_.clear();
    recording_ = view.iteration == 0;
    if (chunks_.empty()) return;
    if (event.kind == EventKind::transfer_done && event.to == 0) {
      const TensorId tensor = view.program_tensor(event.tensor);
      if (tensor != none && chunk_of_[tensor] != none) ranking_.set(event.tensor, rank_of(chunk_of_[tensor]));
    }
    if (event.op == none) return;
    if (event.kind == EventKind::op_issued) {
      if (event.device == Device::gpu) gpu_ += (event.op + op_count_ - gpu_ % op_count_) % op_count_;
      fetch_chunks(event, view, actions);
    }
    if (event.kind != EventKind::op_done || event.device != Device::gpu) return;
    for (const Use& use : view.schedule->uses(event.op)) {
      if (chunk_of_[use.tensor] == none) continue;
      const Rank rank = rank_of(chunk_of_[use.tensor]);
      for (const TensorId tensor : chunks_[chunk_of_[use.tensor]].tensors) {
        const TensorId id = view.memory_tensor(tensor);
        if (id != none && view.memory.resident(id, 0)) ranking_.set(id, rank);
      }
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0 || chunks_.empty()) {
      coldest_victims(request, view, victims);
      return;
    }
    if (recording_) {
      coldest_.find(is_model_state, request, view, victims);
    } else {
      ranking_.choose(request, view.memory, victims);
    }
    // Chunks leave as a whole.
    for (std::size_t i = 0, chosen = victims.size(); i < chosen; ++i) {
      const TensorId tensor = view.program_tensor(view.memory.tensor_of(victims[i]));
      if (tensor == none || chunk_of_[tensor] == none) continue;
      for (const TensorId member : chunks_[chunk_of_[tensor]].tensors) {
        const TensorId id = view.memory_tensor(member);
        if (id == none || id == view.memory.tensor_of(victims[i])) continue;
        for (std::uint32_t part = 0; part < view.memory.chunk_count(id); ++part) {
          const ChunkId chunk = view.memory.first_chunk(id) + part;
          if (view.memory.evictable(chunk, 0)) victims.push_back(chunk);
        }
      }
    }
  }

  std::uint64_t fingerprint() const override { return recording_ ? 1 : 0; }

  void notes(std::vector<std::string>& notes) const override {
    if (!plan_.empty()) notes.push_back(plan_);
  }

 private:
  struct Chunk {
    std::vector<TensorId> tensors;  // of the program
    Bytes bytes = 0;
    std::vector<OpIndex> gpu_ops;  // that use it, ascending
  };

  void make_chunks(const View& view) {
    const Trace& trace = view.program->trace;
    op_count_ = trace.ops.size();
    gpu_ = op_count_ - 1;  // before the first op
    chunks_.clear();
    ranking_ = {};
    chunk_of_.assign(trace.tensors.size(), none);
    std::map<Role, std::uint32_t> open;  // the chunk that is being filled
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      for (const Use& use : view.schedule->uses(op)) {
        const Tensor& tensor = trace.tensors[use.tensor];
        if (!is_model_state(tensor.role)) continue;
        std::uint32_t& chunk = chunk_of_[use.tensor];
        if (chunk == none) {
          const auto filling = open.find(tensor.role);
          const bool fits = filling != open.end() && chunks_[filling->second].bytes + tensor.bytes <= chunk_size_;
          chunk = fits ? filling->second : static_cast<std::uint32_t>(chunks_.size());
          if (!fits) {
            chunks_.emplace_back();
            if (tensor.bytes < chunk_size_) open[tensor.role] = chunk;
          }
          chunks_[chunk].tensors.push_back(use.tensor);
          chunks_[chunk].bytes += tensor.bytes;
        }
        std::vector<OpIndex>& ops = chunks_[chunk].gpu_ops;
        if (trace.ops[op].device == Device::gpu && (ops.empty() || ops.back() != op)) ops.push_back(op);
      }
    }
    for (TensorId tensor = 0; tensor < chunk_of_.size(); ++tensor) {
      const TensorId id = chunk_of_[tensor] == none ? none : view.memory_tensor(tensor);
      if (id != none && view.memory.resident(id, 0)) ranking_.set(id, rank_of(chunk_of_[tensor]));
    }
    plan_ = std::to_string(chunks_.size()) + " chunks of model data";
  }

  // Of the next use on the GPU, ops being numbered on from iteration to iteration.
  Rank rank_of(std::uint32_t chunk) const {
    const std::vector<OpIndex>& ops = chunks_[chunk].gpu_ops;
    if (ops.empty()) return {~std::uint64_t{0}, chunk};
    const OpIndex running = static_cast<OpIndex>(gpu_ % op_count_);
    const auto next = std::ranges::upper_bound(ops, running);
    const std::uint64_t distance = next != ops.end() ? *next - running : op_count_ + ops.front() - running;
    return {gpu_ + distance, chunk};
  }

  // Rule 2: with the op's tensors the others of their chunks come, but for those that the other device uses now or
  // next.
  void fetch_chunks(const Event& event, const View& view, Actions& actions) const {
    const TierId tier = view.machine.tier_of(event.device);
    for (const Use& use : view.schedule->uses(event.op)) {
      if (chunk_of_[use.tensor] == none) continue;
      for (const TensorId tensor : chunks_[chunk_of_[use.tensor]].tensors) {
        const TensorId id = tensor == use.tensor ? none : view.memory_tensor(tensor);
        if (id == none || view.dead(id) || view.memory.resident(id, tier)) continue;
        if (next_device(tensor, event.op, view) != event.device || in_use(id, view)) continue;
        actions.push({.verb = Verb::fetch, .tier = tier, .urgent = true, .tensor = id});
        actions.hold(event.op, id, tier);
      }
    }
  }

  static Device next_device(TensorId tensor, OpIndex op, const View& view) {
    const std::uint32_t distance = view.schedule->distance_to_next_use(tensor, op);
    const std::size_t next = distance == none ? op : (op + distance) % view.schedule->op_count();
    return view.program->trace.ops[next].device;
  }

  static bool in_use(TensorId id, const View& view) {
    const ChunkId begin = view.memory.first_chunk(id);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(id); ++chunk) {
      for (TierId tier = 0; tier < view.memory.tier_count(); ++tier) {
        if (view.memory.copy(chunk, tier).pins > 0) return true;
      }
    }
    return false;
  }

  Bytes chunk_size_ = 64 * MiB;
  std::string updates_ = "margin", overflow_ = "oom";
  std::vector<Chunk> chunks_;            // empty: not known
  std::vector<std::uint32_t> chunk_of_;  // by tensor of the program; none: not model data
  Ranking ranking_;
  ColdestVictims coldest_;
  std::uint64_t op_count_ = 1;
  std::uint64_t gpu_ = 0;  // the op that the GPU was issued last, counted on from iteration to iteration
  bool recording_ = true;
  std::string plan_;
};

}  // namespace

TENCACHE_POLICY({"patrickstar",
                 "model data moves in chunks of 64 MiB; the chunk whose next use is farthest leaves the GPU",
                 "PatrickStar (IEEE TPDS 2023), arXiv 2108.05818",
                 make_policy_of<PatrickStar>,
                 170,
                 nullptr,
                 nullptr,
                 {.artifact = true}})

}  // namespace tencache
