// A trace as the lower bound reads it: what no policy can change, unit by unit. studies/bound.h has the argument.
//
// A unit is an op, or a whole run of reorderable ops, whose order a policy chooses. Of an op it matters whether it is
// - fixed to the GPU: it runs there, in order, whatever the policy;
// - movable: recorded on the GPU, and a policy may move it to the CPU (core/cpu_op.h);
// - fixed to the CPU, whose lane runs beside the GPU's and may lag behind it or run ahead.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

inline constexpr double forever = std::numeric_limits<double>::infinity();  // ns

enum class OpKind : std::uint8_t { gpu, movable, cpu };
OpKind bound_kind_of(const Trace& trace, const Op& op, const MachineSpec& machine);
// The op's gap as far as it takes anything of its lane: with a host that runs ahead gaps pass while others work, those of
// the GPU's ops while the GPU does, those of the CPU's while the GPU makes what they read.
inline Nanoseconds bound_gap_of(const Op& op, const MachineSpec& machine) {
  return machine.run_ahead.ops > 0 ? 0 : op.gap_before_ns;
}
// Whether an op of the CPU's lane waits for GPU ops that only read what it writes, or wrote what it overwrites unread.
// Not behind a host that runs ahead: for it such a GPU op is done when it is launched, and the two touch different
// memory.
inline bool bound_waits_to_write(const MachineSpec& machine) { return machine.run_ahead.ops == 0; }
// What the op takes of its lane.
Nanoseconds bound_time_of(const Op& op, const MachineSpec& machine);

// What the ops of a unit do with a tensor. An output is written without being read by the same op.
struct Touch {
  TensorId tensor = none;
  bool gpu_read = false, gpu_write = false, gpu_output = false;
  bool movable_read = false, movable_write = false, movable_output = false;
  bool cpu_read = false, cpu_write = false, cpu_output = false;

  bool gpu() const { return gpu_read || gpu_write; }
  bool reads() const { return gpu_read || movable_read || cpu_read; }
  bool asynchronous_write() const { return movable_write || cpu_write; }
  bool output() const { return gpu_output || movable_output || cpu_output; }
};

struct BoundUnit {
  OpIndex first = 0, end = 0;  // ops
  std::uint64_t touches_end = 0;
  Nanoseconds gpu_ns = 0;  // of the fixed GPU ops: durations and gaps
  Nanoseconds cpu_ns = 0;  // of the fixed CPU ops that cannot run before the iteration has begun
};

struct MovableOp {
  std::uint32_t unit = 0;
  Nanoseconds gpu_ns = 0;
  Nanoseconds cpu_ns = 0;             // on the CPU; 0 if it could run there before the iteration has begun
  Bytes bytes_in = 0, bytes_out = 0;  // of tensors that no other op uses and that it reads, updates: on the GPU only
};

// An op that runs, or may run, on the CPU's lane: not before `ready_ns`, and done `needed_ns` after the next begin of
// the iteration. Both in time of the fixed GPU ops (and of what else must lie between) from an iteration's begin.
struct LateOp {
  double ready_ns = 0;   // -infinity: it waits for nothing of its iteration
  double needed_ns = 0;  // infinity: nothing waits for it
  double after_ns = 0;   // as ready_ns, but of fixed GPU ops alone: it begins after the last of them
  double cpu_ns = 0;
  OpIndex op = none;
  std::uint32_t movable = none;  // which; none: it is fixed to the CPU
};

class BoundTrace {
 public:
  // The trace of one rank, valid.
  BoundTrace(const Trace& trace, const MachineSpec& machine);

  std::span<const Touch> touches(std::size_t unit) const {
    const std::uint64_t begin = unit == 0 ? 0 : units[unit - 1].touches_end;
    return {all_touches.data() + begin, all_touches.data() + units[unit].touches_end};
  }

  const Trace* trace = nullptr;
  std::vector<BoundUnit> units;
  std::vector<Touch> all_touches;
  std::vector<MovableOp> movable;
  std::vector<LateOp> late;
  Nanoseconds gpu_ns = 0, cpu_ns = 0;  // sums
  Nanoseconds dependencies_ns = 0;     // the longest chain that leads round the iteration once
};

}  // namespace tencache
