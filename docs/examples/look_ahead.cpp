// look-ahead: fetches what the next ops read; what leaves is what is needed last.
#include <algorithm>

#include "policies/policy_library.h"

namespace {

using namespace tencache;

class LookAhead final : public Policy {
 public:
  explicit LookAhead(Options& options) { options.number("ahead", ahead_, "ops", "how far it looks"); }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind != EventKind::op_issued || view.program == nullptr || event.op == none) return;
    const Trace& trace = view.program->trace;
    for (std::uint64_t i = 1; i <= ahead_; ++i) {
      const Op& op = trace.ops[(event.op + i) % trace.ops.size()];
      if (op.device != Device::gpu) continue;
      for (const TensorId id : trace.reads(op)) {
        const TensorId tensor = view.memory_tensor(id);
        if (tensor != none) actions.fetch(tensor);
      }
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    coldest_victims({.tier = request.tier, .bytes = view.memory.capacity(request.tier)}, view, victims);
    const auto distance = [&](ChunkId chunk) { return view.distance_to_next_use(view.memory.tensor_of(chunk)); };
    if (request.prefetch) std::erase_if(victims, [&](ChunkId chunk) { return distance(chunk) <= ahead_; });
    std::stable_sort(victims.begin(), victims.end(), [&](ChunkId a, ChunkId b) { return distance(a) > distance(b); });
  }

 private:
  std::uint64_t ahead_ = 4;
};

}  // namespace

TENCACHE_POLICY({"look-ahead", "fetches what the next ops read; what leaves is what is needed last", "example",
                 tencache::make_policy_of<LookAhead>})
