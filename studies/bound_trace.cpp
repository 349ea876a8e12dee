#include "studies/bound_trace.h"

#include <algorithm>

#include "core/cpu_op.h"
#include "core/schedule.h"
#include "studies/bound_late.h"

namespace tencache {

OpKind bound_kind_of(const Trace& trace, const Op& op, const MachineSpec& machine) {
  if (op.device == Device::cpu) return OpKind::cpu;
  return duration_on_cpu(trace, op, machine) ? OpKind::movable : OpKind::gpu;
}

Nanoseconds bound_time_of(const Op& op, const MachineSpec& machine) {
  return op.occupied_ns() - op.gap_before_ns + bound_gap_of(op, machine);
}

namespace {

void mark(Touch& touch, OpKind kind, const Use& use) {
  const bool output = use.write && !use.read;
  if (kind == OpKind::gpu) {
    touch.gpu_read |= use.read, touch.gpu_write |= use.write, touch.gpu_output |= output;
  } else if (kind == OpKind::movable) {
    touch.movable_read |= use.read, touch.movable_write |= use.write, touch.movable_output |= output;
  } else {
    touch.cpu_read |= use.read, touch.cpu_write |= use.write, touch.cpu_output |= output;
  }
}

// For each tensor, which fixed GPU ops of earlier units of the iteration used it.
struct GpuUse {
  bool read = false, written = false;
};

bool waits_for_gpu(std::span<const Use> uses, const std::vector<GpuUse>& by_gpu, bool waits_to_write) {
  return std::ranges::any_of(uses, [&](const Use& use) {
    const GpuUse& before = by_gpu[use.tensor];
    return (use.read && before.written) || (waits_to_write && use.write && (before.read || before.written));
  });
}

// The longest chain that leads round the iteration once: fixed GPU ops from f to g, then fixed CPU ops from c, which
// waits for g, to u, for which f of the next iteration waits. Where a policy chooses the order of a unit's ops the
// chain is the shortest over all orders. Units come in order; times are those of one lane from the iteration's begin.
class Chains {
 public:
  Chains(const Trace& trace, const MachineSpec& machine, const Schedule& schedule)
      : trace_(trace),
        machine_(machine),
        schedule_(schedule),
        first_(trace.tensors.size()),
        last_(trace.tensors.size()) {
    double before = 0;
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      if (bound_kind_of(trace, op, machine) != OpKind::gpu) continue;
      for (const Use& use : schedule.uses(index)) {
        Times& first = first_[use.tensor];
        first.use = std::min(first.use, before);
        if (use.write) first.write = std::min(first.write, before);
      }
      before += duration_of(index);
    }
  }

  void cpu_ops(std::span<const OpIndex> ops) {
    if (ops.empty()) return;
    const double before = cpu_ns_;
    double ready_first = forever, needed_last = 0;
    for (const OpIndex index : ops) {
      const double duration = duration_of(index);
      const double ready = ready_ns(index), needed = needed_ns(index);
      ready_first = std::min(ready_first, ready);
      needed_last = std::max(needed_last, needed);
      longest_ = std::max(longest_, std::max(ready, chain_ + before) + duration - needed);
      cpu_ns_ += duration;
    }
    chain_ = std::max(chain_, ready_first - before);
    longest_ = std::max(longest_, chain_ + cpu_ns_ - needed_last);
  }
  void gpu_op(OpIndex index) {
    gpu_ns_ += duration_of(index);
    for (const Use& use : schedule_.uses(index)) {
      last_[use.tensor].use = gpu_ns_;
      if (use.write) last_[use.tensor].write = gpu_ns_;
    }
  }
  double longest() const { return longest_; }

 private:
  struct Times {
    double use = forever, write = forever;
  };
  double duration_of(OpIndex index) const { return static_cast<double>(bound_time_of(trace_.ops[index], machine_)); }
  // GPU time that has passed when the CPU op can begin; -forever: it waits for nothing of this iteration.
  double ready_ns(OpIndex index) const {
    double ready = -forever;
    for (const Use& use : schedule_.uses(index)) {
      const Times& last = last_[use.tensor];
      if (use.read && last.write < forever) ready = std::max(ready, last.write);
      if (use.write && last.use < forever && bound_waits_to_write(machine_)) ready = std::max(ready, last.use);
    }
    return ready;
  }
  // GPU time of the next iteration before the first op that waits for the CPU op; forever: there is none.
  double needed_ns(OpIndex index) const {
    double needed = forever;
    for (const Use& use : schedule_.uses(index)) {
      needed = std::min(needed, use.write ? first_[use.tensor].use : first_[use.tensor].write);
    }
    return needed;
  }

  const Trace& trace_;
  const MachineSpec& machine_;
  const Schedule& schedule_;
  std::vector<Times> first_, last_;  // by tensor, of fixed GPU ops: the first of the iteration, the last so far
  double gpu_ns_ = 0, cpu_ns_ = 0;
  double chain_ = -forever;  // the most GPU time before a CPU op less the CPU time before it
  double longest_ = 0;
};

// What movable ops must have in GPU memory, if they stay there, that no other op uses.
void find_own_bytes(BoundTrace& result, const Trace& trace, const Schedule& schedule,
                    const std::vector<OpIndex>& op_of_movable) {
  for (std::size_t i = 0; i < op_of_movable.size(); ++i) {
    for (const Use& use : schedule.uses(op_of_movable[i])) {
      if (!trace.tensors[use.tensor].persistent || !use.read || schedule.ops_of(use.tensor).size() != 1) continue;
      result.movable[i].bytes_in += trace.tensors[use.tensor].least_bytes();
      if (use.write) result.movable[i].bytes_out += trace.tensors[use.tensor].least_bytes();
    }
  }
}

}  // namespace

BoundTrace::BoundTrace(const Trace& of, const MachineSpec& machine) : trace(&of) {
  const Schedule schedule(of);
  Chains chains(of, machine, schedule);
  std::vector<GpuUse> by_gpu(of.tensors.size());
  std::vector<std::size_t> place(of.tensors.size(), 0);  // one more than the tensor's place in all_touches
  std::vector<OpIndex> op_of_movable, cpu_ops;
  bool cpu_lane_waits = false;  // an op of the CPU's lane has waited for this iteration: all after it come later
  for (OpIndex begin = 0; begin < of.ops.size();) {
    BoundUnit unit;
    unit.first = begin;
    unit.end = begin + 1;
    while (of.ops[begin].reorderable && unit.end < of.ops.size() && of.ops[unit.end].reorderable) ++unit.end;
    const std::size_t touches_begin = all_touches.size();
    bool waits_here = false;
    cpu_ops.clear();
    for (OpIndex index = unit.first; index < unit.end; ++index) {
      const Op& op = of.ops[index];
      const OpKind kind = bound_kind_of(of, op, machine);
      const Nanoseconds time_ns = bound_time_of(op, machine);
      const bool waits =
          kind != OpKind::gpu && waits_for_gpu(schedule.uses(index), by_gpu, bound_waits_to_write(machine));
      if (kind == OpKind::gpu) unit.gpu_ns += time_ns;
      if (kind == OpKind::movable) {
        const Nanoseconds cpu = bound_gap_of(op, machine) + *duration_on_cpu(of, op, machine);
        movable.push_back({.unit = static_cast<std::uint32_t>(units.size()),
                           .gpu_ns = time_ns,
                           .cpu_ns = waits || cpu_lane_waits ? cpu : 0});
        op_of_movable.push_back(index);
      }
      if (kind == OpKind::cpu) {
        cpu_ops.push_back(index);
        if (waits || cpu_lane_waits) unit.cpu_ns += time_ns;
        waits_here |= waits;
      }
      for (const Use& use : schedule.uses(index)) {
        if (place[use.tensor] <= touches_begin) {
          all_touches.push_back({.tensor = use.tensor});
          place[use.tensor] = all_touches.size();
        }
        mark(all_touches[place[use.tensor] - 1], kind, use);
      }
    }
    cpu_lane_waits |= waits_here;
    unit.touches_end = all_touches.size();
    chains.cpu_ops(cpu_ops);
    for (OpIndex index = unit.first; index < unit.end; ++index) {
      if (bound_kind_of(of, of.ops[index], machine) != OpKind::gpu) continue;
      chains.gpu_op(index);
      for (const Use& use : schedule.uses(index)) {
        by_gpu[use.tensor].read |= use.read;
        by_gpu[use.tensor].written |= use.write;
      }
    }
    gpu_ns += unit.gpu_ns;
    cpu_ns += unit.cpu_ns;
    units.push_back(unit);
    begin = unit.end;
  }
  dependencies_ns = static_cast<Nanoseconds>(std::max(0.0, chains.longest()));
  find_own_bytes(*this, of, schedule, op_of_movable);
  late = late_ops(*this, machine, schedule);
}

}  // namespace tencache
