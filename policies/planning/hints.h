// A plan as what to do when an op is issued.
#pragma once

#include <vector>

#include "core/policy.h"

namespace tencache {

// Evictions first, then prefetches, each in the order in which they were
// put in.
class Hints {
 public:
  // Tensors are ids of the program.
  void evict(OpIndex at, TensorId tensor, TierId destination) { evictions_.push_back({at, tensor, destination}); }
  void fetch(OpIndex at, TensorId tensor) { prefetches_.push_back({at, tensor, 0}); }
  void sort();  // when all are put in
  bool empty() const { return evictions_.empty() && prefetches_.empty(); }
  void give(OpIndex issued, const View& view, Actions& actions) const;

 private:
  struct Hint {
    OpIndex op = none;
    TensorId tensor = none;
    TierId destination = no_tier;
  };
  std::vector<Hint> evictions_, prefetches_;  // by op
};

// For policies whose plan says which tier evicted tensors go to, when an op is issued (on the GPU): what it lacks room
// for is made room for by the coldest, which leave for `destination`. Without it the engine chooses the tier.
void evict_coldest_for(const Event& issued, const View& view, TierId destination, Actions& actions);

}  // namespace tencache
