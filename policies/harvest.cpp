// harvest: spare memory of another GPU as a tier between this GPU and CPU memory, which its owner may take back at any
// time. "Harvest" (arXiv 2602.00328): experts and blocks of the KV cache that do not fit on the GPU are copied from the
// other GPU where it holds them, else from CPU memory. No code is published.
//
// 1. Of the experts a share of `experts_away`, spread evenly, lives in CPU memory; with cache=away the KV cache does, too.
//    All other weights and caches stay on the GPU.
// 2. The other GPU (the first tier of kind gpu behind the first one) holds second copies: experts, those that most ops read
//    first (where gates choose them: those that were chosen most so far), and what room is left goes to blocks of the
//    cache when they leave the GPU. It is filled at the start, whenever its capacity has grown, and between iterations.
//    Where it shrinks, copies of experts that fewest ops read go first.
//    CPU memory has a copy of all of it, so nothing is written back and nothing is lost (the engine's rule).
// 3. What kernels read next, as far as it is known, is fetched in their order, at most `ahead` bytes, from the faster
//    source. Experts are dropped after their kernel, blocks of the cache leave after the micro-batch's pass through the
//    layer.
// 4. peer=false leaves the other GPU out: what the paper compares with.
//
// The paper places blocks best-fit and has an application's own priorities; ours is the number of reads. A block of the
// cache is always written to CPU memory as well: where Harvest has none there, it computes the block again.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/block_slots.h"
#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

// "layers.0.experts.3" of "layers.0.experts.3.w1.weight".
std::string_view expert_of(std::string_view name) {
  constexpr std::string_view experts = "experts.";
  const std::size_t at = name.find(experts);
  return at == name.npos ? name : name.substr(0, name.find('.', at + experts.size()));
}

class Harvest final : public Policy {
 public:
  explicit Harvest(Options& options) {
    options.share("experts_away", experts_away_, "of the experts live in CPU memory");
    options.choice("cache", cache_, {"gpu", "away"}, "where the KV cache lives").fixed(Options::rules_of_a_system);
    options.flag("peer", uses_peer_, "the other GPU holds second copies").fixed(Options::ablation);
    options.bytes("ahead", ahead_, "that is fetched before its kernel is issued", "auto");
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::expert, Role::kv_cache}); }
  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::iteration_begin || kind == EventKind::op_issued ||
           kind == EventKind::op_done || kind == EventKind::revealed || kind == EventKind::capacity_changed;
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    if (program == nullptr) return layout;
    const Trace& trace = program->trace;
    layout.start = start_of_weights(trace, experts_away(trace), machine.tier_of(Device::cpu), layout.chunk_bytes);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    switch (event.kind) {
      case EventKind::profile_ready:
        learn(view);
        [[fallthrough]];
      case EventKind::iteration_begin:
      case EventKind::capacity_changed:
        fill_peer(view, actions);
        break;
      case EventKind::op_issued:
        std::erase_if(chosen_, [&event](const auto& one) { return one.first == event.op; });
        if (event.device == Device::gpu && event.op != none) fetch_ahead(event.op, view, actions);
        break;
      case EventKind::revealed:
        learn_chosen(event, view);
        if (view.op != none) fetch_ahead(view.op, view, actions);
        break;
      case EventKind::op_done:
        if (event.op < leaving_.size()) leave(event, view, actions);
        break;
      default:
        break;
    }
  }

  void notes(std::vector<std::string>& notes) const override {
    if (!lacks_peer_) return;
    notes.push_back(
        "the machine has no other GPU, a second tier of kind gpu (docs/machine-format.md): what is away comes from CPU "
        "memory alone");
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier == 0) return;
    if (request.tier != peer_of(view.machine)) {
      coldest_victims(request, view, victims);
    } else if (!request.prefetch) {
      for (auto tensor = by_reads_.rbegin(); tensor != by_reads_.rend(); ++tensor) {
        const TensorId id = view.memory_tensor(*tensor);
        if (id == none) continue;
        for (const ChunkId chunk : view.memory.chunks_of(id)) victims.push_back(chunk);
      }
    }
  }

 private:
  static TierId peer_of(const MachineSpec& machine) {
    for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
      if (machine.tiers[tier].kind == TierKind::gpu) return tier;
    }
    return no_tier;
  }

  // By tensor.
  std::vector<bool> experts_away(const Trace& trace) const {
    std::vector<bool> away(trace.tensors.size(), false);
    std::string_view last;
    double number = 0;
    bool is_away = false;
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      if (trace.tensors[id].role != Role::expert) continue;
      const std::string_view expert = expert_of(trace.name(trace.tensors[id]));
      if (expert != last) {
        is_away = static_cast<std::uint64_t>((number + 1) * experts_away_) >
                  static_cast<std::uint64_t>(number * experts_away_);
        ++number;
        last = expert;
      }
      away[id] = is_away;
    }
    return away;
  }

  void learn(const View& view) {
    const Trace& trace = view.program->trace;
    away_ = experts_away(trace);
    lacks_peer_ = uses_peer_ && peer_of(view.machine) == no_tier;
    by_reads_.clear();
    chosen_.clear();
    read_.assign(trace.tensors.size(), 0);
    Bytes largest = 0;
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      if (away_[id]) by_reads_.push_back(id);
      if (cache_ == "away" && trace.tensors[id].role == Role::kv_cache) away_[id] = true;
      if (away_[id]) largest = std::max(largest, trace.tensors[id].bytes);
      read_[id] = view.schedule->ops_of(id).size();
    }
    window_ = ahead_ != 0 ? ahead_ : 4 * largest;
    leaving_.assign(trace.ops.size(), {});
    if (cache_ == "away") leaving_ = leaving_caches(trace, *view.schedule, BlockSlots(trace, *view.schedule));
    reads_.clear();
    decided_.assign(trace.ops.size(), {});
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (const OpIndex gate = trace.detail(trace.ops[op]).revealed_by; gate != none) decided_[gate].push_back(op);
      if (trace.ops[op].device != Device::gpu) continue;
      for (const TensorId id : trace.reads(trace.ops[op])) {
        if (away_[id]) reads_.emplace_back(op, id);
      }
    }
  }

  // Replayed programs: ids of the program and of the memory are the same.
  void learn_chosen(const Event& event, const View& view) {
    for (const OpIndex op : decided_[event.op]) {
      for (const Use& use : view.revealed_uses(op)) {
        if (!away_[use.tensor]) continue;
        ++read_[use.tensor];
        if (view.program->trace.ops[op].device == Device::gpu) chosen_.emplace_back(op, use.tensor);
      }
    }
  }

  // What gates have chosen is read before all that the program says.
  void fetch_ahead(OpIndex issued, const View& view, Actions& actions) const {
    const auto after = std::ranges::upper_bound(reads_, issued, {}, &std::pair<OpIndex, TensorId>::first);
    Bytes bytes = 0;
    for (const auto& [op, tensor] : chosen_) {
      bytes += view.memory.bytes(tensor);
      if (bytes > window_) return;
      fetch_missing(tensor, view, actions);
    }
    std::size_t at = static_cast<std::size_t>(after - reads_.begin());
    for (std::size_t i = 0; i < reads_.size(); ++i, ++at) {
      if (at == reads_.size()) at = 0;
      const auto [op, tensor] = reads_[at];
      const TensorId id = op == issued ? none : view.memory_tensor(tensor);
      if (id == none) return;  // once round
      bytes += view.memory.bytes(id);
      if (bytes > window_) return;
      fetch_missing(id, view, actions);
    }
  }

  void leave(const Event& event, const View& view, Actions& actions) const {
    if (event.device == Device::gpu) {
      for (const Use& use : event.uses) {
        const TensorId tensor = use.tensor == none ? none : view.program_tensor(use.tensor);
        if (tensor != none && away_[tensor] && view.memory.role(use.tensor) == Role::expert) actions.drop(use.tensor);
      }
    }
    const TierId peer = uses_peer_ ? peer_of(view.machine) : no_tier;
    Bytes room = peer == no_tier ? 0 : view.memory.free(peer);
    for (const TensorId tensor : leaving_[event.op]) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none) continue;
      if (room >= view.memory.bytes(id) && is_absent(id, peer, view.memory)) {
        actions.clean(id, peer);
        room -= view.memory.bytes(id);
      }
      actions.evict(id, view.machine.tier_of(Device::cpu));
    }
  }

  static bool is_absent(TensorId tensor, TierId tier, const Residency& memory) {
    for (const ChunkId chunk : memory.chunks_of(tensor)) {
      if (memory.copy(chunk, tier).state != CopyState::absent) return false;
    }
    return true;
  }

  void fill_peer(const View& view, Actions& actions) {
    const TierId peer = uses_peer_ ? peer_of(view.machine) : no_tier;
    if (peer == no_tier) return;
    std::ranges::stable_sort(by_reads_, std::ranges::greater(), [this](TensorId id) { return read_[id]; });
    Bytes room = view.memory.free(peer);
    for (const TensorId tensor : by_reads_) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none || !is_absent(id, peer, view.memory) || view.memory.bytes(id) > room) continue;
      room -= view.memory.bytes(id);
      actions.fetch(id, peer);
    }
  }

  double experts_away_ = 1;
  std::string cache_ = "gpu", overflow_ = "oom";
  bool uses_peer_ = true, lacks_peer_ = false;
  Bytes ahead_ = 0, window_ = 0;
  std::vector<bool> away_;                            // by tensor: it lives in CPU memory
  std::vector<TensorId> by_reads_;                    // experts there, most read ones first
  std::vector<std::uint64_t> read_;                   // by tensor: by ops of the program, and so often chosen by gates
  std::vector<std::pair<OpIndex, TensorId>> reads_;   // of what is away, by ops of the GPU
  std::vector<std::vector<OpIndex>> decided_;         // by gate's op
  std::vector<std::pair<OpIndex, TensorId>> chosen_;  // the same, of what gates have chosen and is not issued
  std::vector<std::vector<TensorId>> leaving_;        // by op: caches that leave the GPU after it
};

}  // namespace

TENCACHE_POLICY({"harvest",
                 "experts and KV blocks in CPU memory, with second copies in another GPU's spare memory",
                 "Harvest (arXiv 2602.00328)",
                 make_policy_of<Harvest>,
                 189,
                 nullptr,
                 nullptr,
                 {}})

}  // namespace tencache
