// deepum: Jung, Kim, Lee, "DeepUM: Tensor Migration and Prefetching in Unified Memory" (ASPLOS'23), as the baseline of
// G10 (MICRO'23, section 7 and its public simulator) has it. Unified memory whose driver has learned which blocks each
// kernel uses:
//   1. When kernel i is issued, what kernel i + `lookahead` reads and the GPU lacks is queued to be fetched, and room
//      is made for what the kernels up to there write.
//   2. What misses all the same is fetched on demand, before the queue.
//   3. Who leaves for any of these is the least recently used of those that neither this kernel nor the next
//      `lookahead` use. If nobody is left, a prefetch waits; for a demand the coldest leaves.
//   4. What is dead is dropped without being written.
// Kernels are the GPU's ops; the iteration's end is followed by its beginning. Until the iteration is known it is
// `on-demand`.
//
// mode=g10-simulator repeats more of that simulator, to compare with its published times. Differences:
// docs/policies.md.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class DeepUm final : public Policy {
 public:
  explicit DeepUm(Options& options) {
    std::string mode = "ours", victim = "lru", free_dead = "now", copies = "inclusive";
    options
        .choice("mode", mode, {"ours", "g10-simulator"},
                "g10-simulator: as G10's baseline; unless set, victim=fifo, free_dead=when_victim, "
                "copies=exclusive, promote=false, overlap_faults=true")
        .fixed(Options::rules_of_a_system);
    const bool simulator = mode == "g10-simulator";
    if (simulator) victim = "fifo", free_dead = "when_victim", copies = "exclusive";
    layout_.promote = !simulator;
    layout_.overlap_faults = simulator;
    options.number("lookahead", lookahead_, "kernels", "how far ahead a kernel's tensors are fetched and kept");
    options.choice("victim", victim, {"lru", "fifo"},
                   "lru: the least recently used leaves; fifo: the first to have arrived");
    options
        .choice("free_dead", free_dead, {"now", "when_victim"},
                "when the room of a tensor that is dead goes free; it is never written")
        .fixed(Options::rules_of_a_system);
    options
        .choice("copies", copies, {"inclusive", "exclusive"},
                "inclusive: a fetched chunk's copy below stays valid until it is written")
        .fixed(Options::rules_of_a_system);
    options.flag("pre_evict", pre_evict_, "room for what those kernels write is made ahead as well");
    add_promote_option(options, layout_.promote);
    add_overlap_faults_option(options, layout_.overlap_faults);
    add_chunk_option(options, layout_.chunk_bytes);
    if (lookahead_ == 0) throw Error("policy 'deepum': lookahead must be 1 at least; on-demand looks at no kernel");
    layout_.use_touches = victim == "lru";
    layout_.free_dead = free_dead == "now" ? FreeDead::now : FreeDead::when_victim;
    layout_.exclusive_copies = copies == "exclusive";
  }

  Layout layout(const MachineSpec&, const Program*) const override { return layout_; }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) start(view);
    if (event.kind == EventKind::schedule_deviated) kernels_.clear();
    if (kernels_.empty() || event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none) {
      return;
    }
    // Normally the next one; after a live program was lost and found it may be another.
    const std::uint64_t slot = kernel_of_[event.op];
    running_ += (slot + kernels_.size() - running_ % kernels_.size()) % kernels_.size();
    for (; seen_ <= running_ + reach_; ++seen_) {
      const bool fetch = seen_ == running_ + reach_;
      for (const Use& use : view.schedule->uses(kernels_[seen_ % kernels_.size()])) {
        needed_until_[use.tensor] = seen_;
        const TensorId id = use.read && fetch ? view.memory_tensor(use.tensor) : none;
        if (id != none && !view.dead(id)) fetch_missing(id, view, actions);
      }
    }
    if (pre_evict_) evict_ahead(view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0 || kernels_.empty()) {
      coldest_victims(request, view, victims);
      return;
    }
    choose_victims(request.bytes, view, victims);
  }

 private:
  void choose_victims(Bytes bytes, const View& view, std::vector<ChunkId>& victims) const {
    const Residency& memory = view.memory;
    Bytes found = 0;
    for (ChunkId chunk = memory.coldest(0); chunk != none && found < bytes; chunk = memory.warmer(chunk, 0)) {
      if (!memory.evictable(chunk, 0) || kept(memory.tensor_of(chunk), view)) continue;
      victims.push_back(chunk);
      found += memory.footprint(chunk, 0);
    }
  }

  // What the kernels looked at will write and has no place yet finds room when its kernel is issued.
  void evict_ahead(const View& view, Actions& actions) {
    const Residency& memory = view.memory;
    Bytes needed = 0;
    for (std::uint64_t kernel = running_; kernel < seen_; ++kernel) {
      for (const Use& use : view.schedule->uses(kernels_[kernel % kernels_.size()])) {
        const TensorId id = use.read ? none : view.memory_tensor(use.tensor);
        if (id == none || std::exchange(counted_at_[use.tensor], running_) == running_) continue;
        const ChunkId begin = memory.first_chunk(id);
        for (ChunkId chunk = begin; chunk < begin + memory.chunk_count(id); ++chunk) {
          if (memory.copy(chunk, 0).state == CopyState::absent) needed += memory.footprint(chunk, 0);
        }
      }
    }
    const Bytes have = memory.free(0) + memory.leaving(0);
    if (needed <= have) return;
    std::vector<ChunkId> victims;
    choose_victims(needed - have, view, victims);
    for (const ChunkId chunk : victims) {
      const TensorId tensor = memory.tensor_of(chunk);
      actions.push({.verb = Verb::evict, .tensor = tensor, .chunk = chunk - memory.first_chunk(tensor)});
    }
  }

  void start(const View& view) {
    kernels_.clear();
    kernel_of_.assign(view.schedule->op_count(), 0);
    for (OpIndex op = 0; op < view.schedule->op_count(); ++op) {
      if (view.program->trace.ops[op].device != Device::gpu) continue;
      kernel_of_[op] = static_cast<std::uint32_t>(kernels_.size());
      kernels_.push_back(op);
    }
    reach_ = std::min<std::uint64_t>(lookahead_, kernels_.size());  // once round is everything
    // Numbers start one iteration late, so that 0 means never.
    running_ = seen_ = kernels_.size();
    needed_until_.assign(view.schedule->tensor_count(), 0);
    counted_at_.assign(view.schedule->tensor_count(), 0);
  }

  bool kept(TensorId tensor, const View& view) const {
    const TensorId id = view.program_tensor(tensor);
    return id != none && !view.dead(tensor) && needed_until_[id] >= running_;
  }

  std::uint64_t lookahead_ = 8, reach_ = 8;
  bool pre_evict_ = true;
  Layout layout_;
  std::vector<OpIndex> kernels_;             // ops of the GPU; empty: not known
  std::vector<std::uint32_t> kernel_of_;     // by op
  std::uint64_t running_ = 0;                // the kernel issued last, counted on from iteration to iteration
  std::uint64_t seen_ = 0;                   // the first kernel that was not looked at yet
  std::vector<std::uint64_t> needed_until_;  // by tensor of the program: the last kernel seen that uses it
  std::vector<std::uint64_t> counted_at_;    // by tensor: the kernel at which its room was last counted
};

}  // namespace

TENCACHE_POLICY({"deepum",
                 "unified memory that fetches what the kernel 8 further on reads and keeps what comes before it",
                 "DeepUM (ASPLOS'23); comparison mode: G10's baseline (MICRO'23)", make_policy_of<DeepUm>, 110})

}  // namespace tencache
