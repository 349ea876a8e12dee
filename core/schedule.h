// When each tensor is used: the recorded order, made ready for questions in constant time.
//
// The ops of each tensor are sorted when somebody asks for them first: a run under a policy that does not look ahead
// does without them. Any number of threads may ask at once.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/trace.h"

namespace tencache {

class Schedule {
 public:
  // Linear in the trace's accesses, of which it takes less than 2^32. Nothing of the trace is kept.
  explicit Schedule(const Trace& trace);

  // The op's tensors, each once, in order of first mention (reads, then writes).
  std::span<const Use> uses(OpIndex op) const {
    return {uses_.data() + first_use_of_op_[op], uses_.data() + first_use_of_op_[op + 1]};
  }
  // The ops that use the tensor, ascending.
  std::span<const OpIndex> ops_of(TensorId tensor) const {
    std::call_once(sorted_, [this] { sort_by_tensor(); });
    return {ops_.data() + first_op_of_tensor_[tensor], ops_.data() + first_op_of_tensor_[tensor + 1]};
  }
  std::size_t op_count() const { return first_use_of_op_.size() - 1; }
  std::size_t tensor_count() const { return tensor_count_; }

  // Ops until the next use strictly after `op`, wrapping around the iteration; `none` if the tensor is never used.
  // O(log uses of the tensor).
  std::uint32_t distance_to_next_use(TensorId tensor, OpIndex op) const;

 private:
  void sort_by_tensor() const;

  std::size_t tensor_count_;
  std::vector<Use> uses_;
  std::vector<std::uint32_t> first_use_of_op_;
  mutable std::once_flag sorted_;
  mutable std::vector<OpIndex> ops_;                       // of one tensor after the other
  mutable std::vector<std::uint32_t> first_op_of_tensor_;  // in ops_; and the end of the last
};

}  // namespace tencache
