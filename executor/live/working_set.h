// What the op that runs uses and has allocated, and the bytes of the largest such set of an op that has run. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

class WorkingSet {
 public:
  // Of another op, by its name. `part_bytes`: of the largest part of an op that would run in parts as well, else 0.
  void begin(NameId op, Bytes part_bytes = 0) {
    clear();
    op_ = op;
    part_bytes_ = part_bytes;
  }
  void add(TensorId tensor, Bytes room, bool written) {
    tensors_.push_back(tensor);
    if (written) written_.push_back(tensor);
    bytes_ += room;
    most_bytes_ = std::max(most_bytes_, bytes_);
  }
  void remove(TensorId tensor, Bytes room) {
    const auto found = std::ranges::find(tensors_, tensor);
    if (found == tensors_.end()) return;
    tensors_.erase(found);
    std::erase(written_, tensor);
    bytes_ -= room;
  }
  // The op has run.
  void clear() {
    const Bytes needed = part_bytes_ != 0 ? std::min(part_bytes_, most_bytes_) : most_bytes_;
    if (needed > largest_bytes_) {
      largest_bytes_ = needed;
      largest_op_ = op_;
    }
    tensors_.clear();
    written_.clear();
    bytes_ = most_bytes_ = part_bytes_ = 0;
  }
  // The op cannot run: how much it needed until now. It does not count as one that has run.
  Bytes give_up() { return std::exchange(most_bytes_, 0); }
  bool writes(TensorId tensor) const { return std::ranges::find(written_, tensor) != written_.end(); }
  NameId op() const { return op_; }
  Bytes largest_bytes() const { return largest_bytes_; }
  NameId largest_op() const { return largest_op_; }

 private:
  NameId op_ = 0;
  std::vector<TensorId> tensors_, written_;
  Bytes bytes_ = 0, most_bytes_ = 0, part_bytes_ = 0;
  Bytes largest_bytes_ = 0;
  NameId largest_op_ = 0;
};

}  // namespace tencache
