// Step 3 of foresight.cpp: when each tensor's content is needed next, on which device, and what is born and dies with
// each op.
#pragma once

#include <cstdint>
#include <vector>

#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

// Ops until the tensor's present content is needed, from a certain op on; `none`: never, since the tensor dies, is
// overwritten first, or is used by no op of that device.
struct Needs {
  std::uint32_t gpu = none;    // by an op of the GPU that reads it
  std::uint32_t cpu = none;    // by an op of the CPU that reads it
  std::uint32_t touch = none;  // by an op of the GPU that uses the tensor at all
};

class Future {
 public:
  Future() = default;
  // `footprints`: what each tensor takes on the GPU. `forgets`: as Layout::forgets_overwritten. Linear in the program's
  // accesses.
  Future(const Trace& trace, const Schedule& schedule, const std::vector<Bytes>& footprints, bool forgets);

  std::size_t op_count() const { return devices_.size(); }
  Device device(OpIndex op) const { return devices_[op]; }
  // After the op; `use` is the index in Schedule::uses(op).
  const Needs& after(OpIndex op, std::size_t use) const { return after_[first_use_[op] + use]; }
  // From before the first op: distances count from the op before it. Only persistent tensors have content there.
  const Needs& at_start(TensorId tensor) const { return at_start_[tensor]; }
  // Whether the tensor, or its value, dies with the op's use.
  bool dies(OpIndex op, std::size_t use) const { return dies_[first_use_[op] + use] != 0; }
  std::size_t use_index(OpIndex op, std::size_t use) const { return first_use_[op] + use; }
  Bytes born(OpIndex op) const { return born_[op]; }  // on the GPU, of tensors that are not persistent
  Bytes died(OpIndex op) const { return died_[op]; }  // on the GPU
  // What ops up to that place, which it is while it runs, add to the GPU's memory by what is born and dies, against
  // place 0. OpPlaces go on from iteration to iteration.
  std::int64_t alive(std::uint64_t place) const {
    return alive_[place % devices_.size()] + static_cast<std::int64_t>(place / devices_.size()) * alive_each_;
  }

 private:
  std::vector<Device> devices_;
  std::vector<std::uint64_t> first_use_;
  std::vector<Needs> after_, at_start_;
  std::vector<std::uint8_t> dies_;
  std::vector<Bytes> born_, died_;
  std::vector<std::int64_t> alive_;
  std::int64_t alive_each_ = 0;  // left over by an iteration
};

}  // namespace tencache
