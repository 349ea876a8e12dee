// belady: the tensor whose next use is farthest leaves (Belady 1966: with nothing fetched ahead, no rule misses less
// where tensors are of one size). No rule that cannot see the future has it; a recorded iteration can.
//
// prefetch=ordered adds Cao, Felten, Karlin, Li, "A study of integrated prefetching and caching strategies"
// (SIGMETRICS'95), its four rules:
//   optimal prefetching   the next missing tensor in trace order is fetched;
//   optimal replacement   what leaves for it is the one whose next use is farthest;
//   do no harm            but nothing that is needed before what is fetched, or with it;
//   first opportunity     as soon as the link from where it lies is idle and there is such a victim.
// A cursor goes through the accesses of the GPU's ops, at most one iteration ahead of the GPU, and stays before the
// next missing tensor: each access is looked at once. It goes back only where a tensor behind it leaves for an op, or
// is written by the CPU. A tensor that a CPU op still has to write is not fetched before.
// Whole tensors move, but those larger than all staging buffers pass them in parts (unit_of_whole_tensors).
#include <algorithm>

#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class Belady final : public Policy {
 public:
  explicit Belady(Options& options) {
    layout_.chunk_bytes = 0;
    options.choice("prefetch", prefetch_, {"none", "ordered"},
                   "ordered: the next missing tensor in trace order, whenever its link is idle");
    add_chunk_option(options, layout_.chunk_bytes);
    add_oracle_option(options, oracle_);
  }

  bool oracle() const override { return oracle_; }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = layout_;
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, layout.chunk_bytes);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (view.schedule == nullptr) return;
    switch (event.kind) {
      case EventKind::profile_ready:
        start(view);
        break;
      case EventKind::op_issued:
        if (event.device == Device::gpu && event.op != none) gpu_ = following(gpu_, event.op);
        break;
      case EventKind::op_done:
        if (event.device == Device::cpu && event.op != none) cpu_done_ = following(cpu_done_, event.op);
        for (const Use& use : event.uses) {
          if (use.tensor != none) used(use, event.device, view);
        }
        break;
      case EventKind::transfer_done:
        if (event.to == 0) ranking_.set(event.tensor, next_use(event.tensor, view));
        break;
      case EventKind::refused:
        if (event.tensor != none) go_back(next_use(event.tensor, view));
        return;  // not at once again
      default:
        return;
    }
    if (prefetch_ == "ordered") fetch_next(view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0 || view.schedule == nullptr) {
      coldest_victims(request, view, victims);
      return;
    }
    const Rank floor = request.prefetch ? next_use(view.memory.tensor_of(request.incoming), view) : Rank{};
    ranking_.choose(request, view.memory, victims, floor);
    for (const ChunkId chunk : victims) go_back(ranking_.of(view.memory.tensor_of(chunk)));
  }

  std::uint64_t fingerprint() const override {
    if (prefetch_ == "none") return 0;
    std::uint64_t hash = 0;
    const auto mix = [&hash](std::uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 32;
    };
    mix(cursor_.op - std::min(cursor_.op, gpu_));
    mix(cursor_.use);
    mix(cpu_done_ - std::min(cpu_done_, gpu_));  // how far behind it is does not matter: the cursor is before the GPU
    for (const std::uint8_t writes : cpu_writes_) mix(writes);
    return hash;
  }

 private:
  // Ops are numbered on from iteration to iteration: op i of the second is op_count + i.
  using Place = std::uint64_t;
  struct Cursor {
    Place op = 0;
    std::size_t use = 0;
  };

  Place following(Place place, OpIndex op) const {
    const OpIndex last = static_cast<OpIndex>(place % op_count_);
    return place + (op > last ? op - last : op + op_count_ - last);
  }

  void start(const View& view) {
    op_count_ = view.schedule->op_count();
    gpu_ = cpu_done_ = op_count_ - 1;  // before the first op
    cursor_ = {op_count_, 0};
    cpu_writes_.assign(view.schedule->tensor_count(), 0);
    ranking_.set_residents(view.memory, [&](TensorId tensor) { return next_use(tensor, view); });
  }

  // The place of the next use after the op that the GPU was issued last: what leaves first is the farthest.
  Rank next_use(TensorId tensor, const View& view) const {
    const TensorId id = view.program_tensor(tensor);
    const std::uint32_t distance =
        id == none ? none : view.schedule->distance_to_next_use(id, static_cast<OpIndex>(gpu_ % op_count_));
    return {distance == none ? ~Place{0} : gpu_ + distance, 0};
  }

  void used(const Use& use, Device device, const View& view) {
    const Rank next = next_use(use.tensor, view);
    ranking_.set(use.tensor, next);
    if (device == Device::gpu || !use.write) return;
    if (const TensorId id = view.program_tensor(use.tensor); id != none) cpu_writes_[id] = 0;
    go_back(next);
  }

  void go_back(Rank next_use) {
    if (next_use.first < cursor_.op) cursor_ = {next_use.first, 0};
  }

  void fetch_next(const View& view, Actions& actions) {
    if (cursor_.op <= gpu_) cursor_ = {gpu_ + 1, 0};
    for (; cursor_.op < gpu_ + op_count_; cursor_ = {cursor_.op + 1, 0}) {
      const OpIndex op = static_cast<OpIndex>(cursor_.op % op_count_);
      const auto uses = view.schedule->uses(op);
      if (view.program->trace.ops[op].device == Device::cpu) {
        for (const Use& use : uses) {
          if (use.write && cursor_.op > cpu_done_) cpu_writes_[use.tensor] = 1;
        }
        continue;
      }
      for (; cursor_.use < uses.size(); ++cursor_.use) {
        const Use& use = uses[cursor_.use];
        const TensorId tensor = view.memory_tensor(use.tensor);
        if (!use.read || tensor == none || view.dead(tensor) || cpu_writes_[use.tensor] != 0) continue;
        if (on_its_way_out(tensor, view)) return;
        const LinkId link = link_of_missing(tensor, view);
        if (link == no_link) continue;  // there already, or nowhere yet: an op makes it first
        if (view.transfers_on(link) > 0) return;
        fetch_missing(tensor, view, actions);
        ++cursor_.use;
        return;
      }
    }
  }

  static bool on_its_way_out(TensorId tensor, const View& view) {
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
      if (view.memory.valid(chunk, 0) && view.memory.copy(chunk, 0).evicting) return true;
    }
    return false;
  }

  // The link that the first missing chunk would take first.
  static LinkId link_of_missing(TensorId tensor, const View& view) {
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
      if (view.memory.copy(chunk, 0).state != CopyState::absent) continue;
      for (TierId tier = 1; tier < view.memory.tier_count(); ++tier) {
        if (!view.memory.valid(chunk, tier)) continue;
        const LinkId direct = view.machine.link_between(tier, 0);
        return direct != no_link ? direct : view.machine.link_between(tier, view.machine.staging.tier);
      }
    }
    return no_link;
  }

  bool oracle_ = false;
  std::string prefetch_ = "none";
  Layout layout_;
  Ranking ranking_;
  std::size_t op_count_ = 1;
  Place gpu_ = 0;                         // the op that the GPU was issued last
  Place cpu_done_ = 0;                    // the op that the CPU did last
  Cursor cursor_;                         // the next access to look at
  std::vector<std::uint8_t> cpu_writes_;  // by tensor of the program: a CPU op before the cursor has to write it yet
};

}  // namespace

TENCACHE_POLICY({"belady",
                 "the tensor whose next use is farthest leaves; prefetch=ordered fetches ahead in trace order",
                 "Belady (IBM Systems Journal 1966); ordered: Cao et al. (SIGMETRICS'95)", make_policy_of<Belady>, 70})

}  // namespace tencache
