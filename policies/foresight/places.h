// Ops numbered on from iteration to iteration, and where the two devices are among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/trace.h"

namespace tencache {

using OpPlace = std::uint64_t;  // of n ops, op i of the second iteration is n + i
inline constexpr OpPlace no_place = ~OpPlace{0};

// A chunk of a use of an op.
struct UseCursor {
  OpPlace op = 0;
  std::size_t use = 0;
  std::uint32_t chunk = 0;
  bool operator<(const UseCursor& other) const {
    return op != other.op ? op < other.op : use != other.use ? use < other.use : chunk < other.chunk;
  }
};
// Cursors that have passed the place go back to it.
inline void go_back(UseCursor& cursor, OpPlace place) {
  if (place <= cursor.op) cursor = {place, 0, 0};
}

class OpPlaces {
 public:
  OpPlaces() = default;
  // Nothing has begun or, live, the GPU is at the op in the midst of an iteration; `none`: not begun.
  OpPlaces(const Trace& trace, OpIndex at);

  std::size_t op_count() const { return op_count_; }
  OpIndex index(OpPlace place) const { return static_cast<OpIndex>(place % op_count_); }
  // As a shelf has it: the op, or op_count() for none.
  std::uint32_t shelf_op(OpPlace place) const {
    return place == no_place ? static_cast<std::uint32_t>(op_count_) : index(place);
  }

  // The op that was issued to the GPU last, and the one that the CPU did last.
  OpPlace gpu() const { return gpu_; }
  OpPlace cpu() const { return cpu_; }
  // The place before the first op that one of the devices has to do yet, as of find_slower().
  OpPlace slower() const { return slower_; }
  bool begun() const { return gpu_ >= op_count_; }

  // The next time that the op comes after what the GPU, or the slower device, has come to.
  OpPlace after_gpu(OpIndex op) const { return following(gpu_, op); }
  OpPlace after_slower(OpIndex op) const { return following(slower_, op); }

  void issued_to_gpu(OpIndex op) { gpu_ = following(gpu_, op); }
  void done_by_cpu(OpIndex op) { cpu_ = following(cpu_, op); }
  void find_slower();

 private:
  OpPlace following(OpPlace place, OpIndex op) const {
    const OpIndex last = index(place);
    return place + (op > last ? op - last : op + op_count_ - last);
  }

  std::size_t op_count_ = 1;
  std::vector<OpIndex> cpu_ops_;
  OpPlace gpu_ = 0, cpu_ = 0, slower_ = 0;
};

}  // namespace tencache
