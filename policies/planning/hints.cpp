#include "policies/planning/hints.h"

#include <algorithm>

namespace tencache {

void Hints::sort() {
  for (std::vector<Hint>* hints : {&evictions_, &prefetches_}) {
    std::stable_sort(hints->begin(), hints->end(), [](const Hint& a, const Hint& b) { return a.op < b.op; });
  }
}

void Hints::give(OpIndex issued, const View& view, Actions& actions) const {
  const auto at = [issued](const std::vector<Hint>& hints) {
    return std::equal_range(hints.begin(), hints.end(), Hint{issued, none, no_tier},
                            [](const Hint& a, const Hint& b) { return a.op < b.op; });
  };
  for (auto [hint, end] = at(evictions_); hint != end; ++hint) {
    if (const TensorId id = view.memory_tensor(hint->tensor); id != none) actions.evict(id, hint->destination);
  }
  for (auto [hint, end] = at(prefetches_); hint != end; ++hint) {
    if (const TensorId id = view.memory_tensor(hint->tensor); id != none) actions.fetch(id);
  }
}

void evict_coldest_for(const Event& issued, const View& view, TierId destination, Actions& actions) {
  const Residency& memory = view.memory;
  Bytes lacking = 0;
  for (const Use& use : issued.uses) {
    if (use.tensor == none) continue;
    const ChunkId first = memory.first_chunk(use.tensor);
    for (ChunkId chunk = first; chunk < first + memory.chunk_count(use.tensor); ++chunk) {
      if (memory.copy(chunk, 0).state == CopyState::absent) lacking += memory.footprint(chunk, 0);
    }
  }
  const Bytes coming = memory.free(0) + memory.leaving(0);
  if (lacking <= coming) return;
  lacking -= coming;
  for (ChunkId chunk = memory.coldest(0); chunk != none && lacking > 0; chunk = memory.warmer(chunk, 0)) {
    if (!memory.evictable(chunk, 0)) continue;
    const TensorId tensor = memory.tensor_of(chunk);
    actions.push({.verb = Verb::evict,
                  .tier = 0,
                  .destination = destination,
                  .urgent = true,
                  .tensor = tensor,
                  .chunk = chunk - memory.first_chunk(tensor)});
    lacking -= std::min(lacking, memory.footprint(chunk, 0));
  }
}

}  // namespace tencache
