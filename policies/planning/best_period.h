// What a greedy planner takes next, of very many inactive periods.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"

namespace tencache {

// Each period has the kernels for which its tensor could be away, and a benefit: bytes x the time in there above the
// limit of `counted`. It is out where none of them is above the limit of `needed`. While a plan takes memory and
// bandwidth, those kernels become fewer and less is above the limits, never more.
//
// A change mostly lowers a great many benefits at once, so none is looked at until it may be the greatest. A tree over
// periods of like sizes and places knows of each node a bound: what it was worth before, less what kernels lost that
// all of its periods have; and not more than a period would be worth that begins as the first of them, ends as the last
// and is as large as the largest. The search goes where the bound is greatest, and back only to what could be better.
class BestPeriod {
 public:
  struct Range {
    KernelIndex from = 0, to = 0;
    bool empty() const { return to <= from; }
  };
  // Those of any period, real or not: one that begins earlier, ends later or has fewer bytes has no fewer.
  using Away = std::function<Range(const InactivePeriod&)>;

  BestPeriod(std::span<const InactivePeriod> periods, KernelIndex kernels, const MemoryProfile& counted,
             const MemoryProfile& needed, Away away);

  // The one with the greatest benefit; of equal ones the greatest bytes x length, then the first. Each is taken once.
  std::optional<std::size_t> take();

 private:
  struct Worth {
    uint128 benefit = 0, area = 0;
    std::size_t period = none_left;
    bool operator<(const Worth& other) const;
  };
  static constexpr std::size_t none_left = static_cast<std::size_t>(-1), in_leaf = 4;

  struct Node {
    std::size_t begin = 0, end = 0;  // in order_
    std::size_t right = 0;           // its second child; the first is the next node; 0: a leaf
    std::uint64_t lowered_in = 0;    // the round of its bound
    Worth most = {};                 // of none more, each figure for itself; `period` is the first that is left
    // Of the periods that are left: the extremes, and the kernels of all when `most` was found, with their time above
    // the limit now.
    Bytes least_bytes = unlimited, most_bytes = 0;
    KernelIndex first_begin = 0, last_begin = 0, first_end = 0, last_end = 0;
    Range shared = {};
    Nanoseconds shared_ns = 0;
    bool empty() const { return most.period == none_left; }
  };

  std::optional<uint128> benefit_of(const InactivePeriod& period, Range range) const;
  Nanoseconds time_over(Range range) const { return counted_.time_over(range.from, range.to); }
  std::size_t build(std::size_t begin, std::size_t end, int level);
  void lower(Node& node);
  void find(std::size_t at, Worth& best);
  void look_at_each(Node& node, Worth& best);
  static void forget(Node& node);
  static void add(Node& node, const Node& part);

  std::span<const InactivePeriod> periods_;
  KernelIndex kernels_;
  const MemoryProfile &counted_, &needed_;
  Away away_;
  std::vector<std::size_t> order_;  // of the periods, by leaf
  std::vector<bool> left_;          // by period
  std::vector<Node> nodes_;         // the root is the first
  std::uint64_t round_ = 0;
};

}  // namespace tencache
