// When each tensor is used: the recorded order, made ready for questions in constant time.
//
// Lists are made when somebody asks for them first: a run under a policy that does not look ahead does without them.
// Any number of threads may ask at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_annotations.h"
#include "core/trace.h"

namespace tencache {

// Lists the tensors of ops, each once an op. Not thread safe.
class UseLister {
 public:
  // The trace must outlive this object; it has less than 2^32 accesses.
  explicit UseLister(const Trace& trace) : trace_(trace), places_(trace.tensors.size(), 0) {}
  // Appends the op's tensors in order of first mention (reads, then writes).
  void append(const Op& op, std::vector<Use>& uses);

 private:
  const Trace& trace_;
  std::vector<std::uint32_t> places_;  // by tensor: its last in a list, which may be another list
};

class Schedule {
 public:
  // The trace, of less than 2^32 accesses, must outlive this object, and stay as it is. What is asked first takes
  // time linear in its accesses.
  explicit Schedule(const Trace& trace);
  explicit Schedule(Trace&&) = delete;

  // The op's tensors, each once, in order of first mention (reads, then writes).
  std::span<const Use> uses(OpIndex op) const {
    if (!listed_.load(std::memory_order_acquire)) list_uses();
    return {uses_.data() + first_use_of_op_[op], uses_.data() + first_use_of_op_[op + std::size_t{1}]};
  }
  // The ops that use the tensor, ascending.
  std::span<const OpIndex> ops_of(TensorId tensor) const {
    if (!sorted_.load(std::memory_order_acquire)) sort_by_tensor();
    return {ops_.data() + first_op_of_tensor_[tensor], ops_.data() + first_op_of_tensor_[tensor + 1]};
  }
  std::size_t op_count() const { return trace_.ops.size(); }
  std::size_t tensor_count() const { return trace_.tensors.size(); }

  // Ops until the next use strictly after `op`, wrapping around the iteration; `none` if the tensor is never used.
  // O(log uses of the tensor).
  std::uint32_t distance_to_next_use(TensorId tensor, OpIndex op) const;

 private:
  void list_uses() const;
  void sort_by_tensor() const;

  const Trace& trace_;
  mutable Mutex making_;                                       // held by who makes lists
  mutable std::atomic<bool> listed_ = false, sorted_ = false;  // they are made, and stay as they are
  mutable std::vector<Use> uses_;                              // of one op after the other
  mutable std::vector<std::uint32_t> first_use_of_op_;         // in uses_; and the end of the last
  mutable std::vector<OpIndex> ops_;                           // of one tensor after the other
  mutable std::vector<std::uint32_t> first_op_of_tensor_;      // in ops_; and the end of the last
};

}  // namespace tencache
