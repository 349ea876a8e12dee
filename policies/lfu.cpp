// lfu: the least frequently used tensor leaves, of equals the least recently used (the textbook rule; Coffman, Denning
// 1973), with a prefetch window. A use is an op that reads or writes the tensor, on either device. Counts stay when a
// tensor leaves and go on from iteration to iteration: after k of them a tensor used c times in each has k x c.
//
// Steady state. The counts grow for ever; what decides is their order, and that settles: of two tensors with c < d uses
// an iteration the first, never more than c ahead within one, stays below the other once k x (d - c) > c. From the
// largest k that the trace's counts ask for decisions repeat; until then the number of the iteration is part of the
// fingerprint.
#include <algorithm>

#include "policies/classic.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class Lfu final : public ClassicPolicy {
 public:
  explicit Lfu(Options& options) : ClassicPolicy(options) {}

  bool hears(EventKind) const override { return true; }
  void on(const Event& event, const View& view, Actions& actions) override {
    switch (event.kind) {
      case EventKind::profile_ready:
        settle_after(*view.schedule);
        ranking_.set_residents(view.memory, [this](TensorId tensor) { return rank_of(tensor); });
        break;
      case EventKind::op_done:
        ++clock_;
        for (const Use& use : event.uses) {
          if (use.tensor != none) count(use.tensor);
        }
        break;
      case EventKind::transfer_done:
        if (event.to == 0) ranking_.set(event.tensor, rank_of(event.tensor));
        break;
      case EventKind::tensor_created:  // the id may have been another tensor's
        uses_of(event.tensor) = {};
        break;
      case EventKind::iteration_end:
        iterations_ = std::min(iterations_ + 1, settled_);
        break;
      default:
        break;
    }
    ClassicPolicy::on(event, view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier == 0) {
      ranking_.choose(request, view.memory, victims);
    } else {
      coldest_victims(request, view, victims);
    }
  }

  std::uint64_t fingerprint() const override { return iterations_; }

 private:
  struct Uses {
    std::uint64_t count = 0;
    std::uint64_t last = 0;  // op, in the order of their ends
  };

  Uses& uses_of(TensorId tensor) {
    if (tensor >= uses_.size()) uses_.resize(tensor + 1);
    return uses_[tensor];
  }
  Rank rank_of(TensorId tensor) {  // few uses, long ago: leaves first
    const Uses& uses = uses_of(tensor);
    return {~uses.count, ~uses.last};
  }
  void count(TensorId tensor) {
    Uses& uses = uses_of(tensor);
    ++uses.count;
    uses.last = clock_;
    ranking_.set(tensor, rank_of(tensor));
  }

  void settle_after(const Schedule& schedule) {
    std::vector<std::uint64_t> counts;
    for (TensorId tensor = 0; tensor < schedule.tensor_count(); ++tensor) {
      counts.push_back(schedule.ops_of(tensor).size());
    }
    std::ranges::sort(counts);
    settled_ = 1;
    for (std::size_t i = 1; i < counts.size(); ++i) {
      if (counts[i] == counts[i - 1]) continue;
      settled_ = std::max(settled_, counts[i - 1] / (counts[i] - counts[i - 1]) + 1);
    }
  }

  Ranking ranking_;
  std::vector<Uses> uses_;  // by tensor of the memory
  std::uint64_t clock_ = 0;
  std::uint64_t iterations_ = 0, settled_ = 1;
};

}  // namespace

TENCACHE_POLICY({"lfu", "the least frequently used tensor leaves; prefetch window of w accesses", "textbook",
                 make_policy_of<Lfu>, 60})

}  // namespace tencache
