// What the op that runs uses and has allocated, and the bytes of the largest such set so far. Not thread-safe.
#pragma once

#include <algorithm>
#include <vector>

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

class WorkingSet {
 public:
  // Of another op, by its name.
  void begin(NameId op) {
    clear();
    op_ = op;
  }
  void add(TensorId tensor, Bytes room, bool written) {
    tensors_.push_back(tensor);
    if (written) written_.push_back(tensor);
    bytes_ += room;
    if (bytes_ <= largest_bytes_) return;
    largest_bytes_ = bytes_;
    largest_op_ = op_;
  }
  void remove(TensorId tensor, Bytes room) {
    const auto found = std::ranges::find(tensors_, tensor);
    if (found == tensors_.end()) return;
    tensors_.erase(found);
    std::erase(written_, tensor);
    bytes_ -= room;
  }
  void clear() {
    tensors_.clear();
    written_.clear();
    bytes_ = 0;
  }
  bool writes(TensorId tensor) const { return std::ranges::find(written_, tensor) != written_.end(); }
  NameId op() const { return op_; }
  Bytes largest_bytes() const { return largest_bytes_; }
  NameId largest_op() const { return largest_op_; }

 private:
  NameId op_ = 0;
  std::vector<TensorId> tensors_, written_;
  Bytes bytes_ = 0;
  Bytes largest_bytes_ = 0;
  NameId largest_op_ = 0;
};

}  // namespace tencache
