// When each tensor is used: the recorded order, made ready for questions in constant time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/trace.h"

namespace tencache {

class Schedule {
 public:
  // Linear in the trace's accesses. Nothing of the trace is kept.
  explicit Schedule(const Trace& trace);

  // The op's tensors, each once, in order of first mention (reads, then writes).
  std::span<const Use> uses(OpIndex op) const {
    return {uses_.data() + first_use_of_op_[op], uses_.data() + first_use_of_op_[op + 1]};
  }
  // The ops that use the tensor, ascending.
  std::span<const OpIndex> ops_of(TensorId tensor) const {
    return {ops_.data() + first_op_of_tensor_[tensor], ops_.data() + first_op_of_tensor_[tensor + 1]};
  }
  std::size_t op_count() const { return first_use_of_op_.size() - 1; }
  std::size_t tensor_count() const { return first_op_of_tensor_.size() - 1; }

  // Ops until the next use strictly after `op`, wrapping around the iteration; `none` if the tensor is never used.
  // O(log uses of the tensor).
  std::uint32_t distance_to_next_use(TensorId tensor, OpIndex op) const;

 private:
  std::vector<Use> uses_;
  std::vector<std::uint64_t> first_use_of_op_;
  std::vector<OpIndex> ops_;
  std::vector<std::uint64_t> first_op_of_tensor_;
};

}  // namespace tencache
