// What the textbook policies have in common: tensors come in on demand or through a prefetch window, and a rule of one
// line chooses who leaves. Beside it the ranking that rules other than "the coldest" choose from.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "core/policy.h"
#include "policies/options.h"

namespace tencache {

// Asks for those chunks of the tensor that are not on the GPU, nor reserved there, and can be read from elsewhere.
// Returns whether there are any. `tensor` is an id of the memory.
bool fetch_missing(TensorId tensor, const View& view, Actions& actions);

// A *row* is one tensor access of a GPU op in execution order, each tensor of an op once. Whenever a GPU op is issued,
// the missing tensors of the next `window` rows after it are fetched, in their order; the iteration's end is followed
// by its beginning. Rows that only write need no content. No state: the window is looked through at each op, O(window).
class ClassicPolicy : public Policy {
 public:
  explicit ClassicPolicy(Options& options);
  Layout layout(const MachineSpec& machine, const Program* program) const override;
  void on(const Event& event, const View& view, Actions& actions) override;
  bool hears(EventKind kind) const override { return window_ > 0 && kind == EventKind::op_issued; }

 protected:
  Layout layout_;  // whole tensors by default, the classic unit, but for those larger than all staging buffers

 private:
  void prefetch(OpIndex issued, const View& view, Actions& actions) const;
  std::uint64_t window_ = 0;
};

// The higher, the sooner it leaves; compared in order.
struct Rank {
  std::uint64_t first = 0, second = 0;
  auto operator<=>(const Rank&) const = default;
};

// The tensors on the GPU by rank: the highest leaves first; of equal ones the lowest id.
class Ranking {
 public:
  // Whenever the rank changes, and whenever the tensor may have come to the GPU. O(log tensors on the GPU).
  void set(TensorId tensor, Rank rank);
  // Sets all tensors that are on the GPU, by rank_of(tensor).
  template <typename RankOf>
  void set_residents(const Residency& memory, RankOf rank_of) {
    for (TensorId tensor = 0; tensor < memory.tensor_count(); ++tensor) {
      if (present(memory, tensor)) set(tensor, rank_of(tensor));
    }
  }
  Rank of(TensorId tensor) const { return ranks_[tensor]; }  // of a tensor that was set
  // The evictable chunks of the first tensors, until the request's bytes are reached, of those that rank above `floor`
  // and below `ceiling`. Tensors that have left the GPU are forgotten on the way, so a victim costs O(log tensors on
  // the GPU), amortised.
  void choose(const RoomRequest& request, const Residency& memory, std::vector<ChunkId>& victims, Rank floor = {},
              Rank ceiling = {.first = ~std::uint64_t{0}, .second = ~std::uint64_t{0}});

 private:
  struct Entry {
    Rank rank;
    TensorId tensor;
    bool operator<(const Entry& other) const { return rank != other.rank ? rank > other.rank : tensor < other.tensor; }
  };
  static bool present(const Residency& memory, TensorId tensor);

  std::set<Entry> order_;
  std::vector<Rank> ranks_;  // by tensor, as in `order_`
  std::vector<bool> ranked_;
};

}  // namespace tencache
