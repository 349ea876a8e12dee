#include "sim/bound_late.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "traces/lower.h"

namespace tencache {
namespace {

constexpr double forever = std::numeric_limits<double>::infinity();
constexpr std::size_t places = 64;

// When ops that may run on the CPU's lane are ready and needed, also by way of each other. Conflicts within a unit do
// not count: a policy may choose the order there.
class LateOps {
 public:
  LateOps(const Trace& trace, const MachineSpec& machine, const Schedule& schedule, std::span<const BoundUnit> units)
      : trace_(trace), machine_(machine), schedule_(schedule), units_(units) {}

  std::vector<LateOp> find(std::span<const MovableOp> movable) {
    find_ready(movable, true);
    std::vector<LateOp> alone = std::move(late_);
    late_.clear();
    done_ns_.clear();
    find_ready(movable, false);
    for (std::size_t i = 0; i < late_.size(); ++i) {
      std::swap(late_[i].ready_ns, alone[i].ready_ns);
      late_[i].after_ns = alone[i].ready_ns;
    }
    find_needed();
    return std::move(late_);
  }

 private:
  struct Times {
    double use, write;
  };
  Nanoseconds time_of(const Op& op) const { return op.duration_ns + op.gap_before_ns; }

  // `with_late`: ops that may run on the CPU's lane take their time, too.
  void find_ready(std::span<const MovableOp> movable, bool with_late) {
    std::vector<Times> done(trace_.tensors.size(), {-forever, -forever});
    const auto finish = [&](OpIndex index, double ns) {
      for (const Use& use : schedule_.uses(index)) {
        Times& times = done[use.tensor];
        times.use = std::max(times.use, ns);
        if (use.write) times.write = std::max(times.write, ns);
      }
    };
    double gpu_ns = 0;
    std::uint32_t next_movable = 0;
    for (const BoundUnit& unit : units_) {
      const std::size_t first_of_unit = late_.size();
      for (OpIndex index = unit.first; index < unit.end; ++index) {
        const OpKind kind = bound_kind_of(trace_.ops[index], machine_);
        if (kind == OpKind::gpu) continue;
        LateOp op{.ready_ns = -forever,
                  .needed_ns = forever,
                  .after_ns = -forever,
                  .cpu_ns = static_cast<double>(time_of(trace_.ops[index])),
                  .op = index,
                  .movable = none};
        double least_ns = op.cpu_ns;
        if (kind == OpKind::movable) {
          op.movable = next_movable++;
          op.cpu_ns = static_cast<double>(trace_.ops[index].gap_before_ns +
                                          duration_on_cpu(trace_, trace_.ops[index], machine_));
          least_ns = std::min(op.cpu_ns, static_cast<double>(movable[op.movable].gpu_ns));
        }
        for (const Use& use : schedule_.uses(index)) {
          op.ready_ns = std::max(op.ready_ns, use.write ? done[use.tensor].use : done[use.tensor].write);
        }
        late_.push_back(op);
        done_ns_.push_back(op.ready_ns + (with_late ? least_ns : 0));
      }
      std::size_t at = first_of_unit;
      for (OpIndex index = unit.first; index < unit.end; ++index) {
        if (bound_kind_of(trace_.ops[index], machine_) == OpKind::gpu) {
          gpu_ns += static_cast<double>(time_of(trace_.ops[index]));
          finish(index, gpu_ns);
        } else {
          finish(index, done_ns_[at++]);
        }
      }
    }
  }

  void find_needed() {
    std::vector<Times> needed(trace_.tensors.size(), {forever, forever});
    const auto need = [&](OpIndex index, double ns) {
      for (const Use& use : schedule_.uses(index)) {
        Times& times = needed[use.tensor];
        times.use = std::min(times.use, ns);
        if (use.write) times.write = std::min(times.write, ns);
      }
    };
    double gpu_ns = 0;
    for (OpIndex index = 0; index < trace_.ops.size(); ++index) {  // of the next iteration
      if (bound_kind_of(trace_.ops[index], machine_) != OpKind::gpu) continue;
      need(index, gpu_ns);
      gpu_ns += static_cast<double>(time_of(trace_.ops[index]));
    }
    std::size_t end = late_.size();
    for (std::size_t unit = units_.size(); unit-- > 0;) {
      std::vector<OpIndex> ops;
      for (OpIndex index = units_[unit].first; index < units_[unit].end; ++index) {
        if (bound_kind_of(trace_.ops[index], machine_) != OpKind::gpu) ops.push_back(index);
      }
      const std::size_t begin = end - ops.size();
      for (std::size_t i = 0; i < ops.size(); ++i) {
        for (const Use& use : schedule_.uses(ops[i])) {
          double& ns = late_[begin + i].needed_ns;
          ns = std::min(ns, use.write ? needed[use.tensor].use : needed[use.tensor].write);
        }
      }
      for (std::size_t i = 0; i < ops.size(); ++i) need(ops[i], late_[begin + i].needed_ns);
      end = begin;
    }
  }

  const Trace& trace_;
  const MachineSpec& machine_;
  const Schedule& schedule_;
  std::span<const BoundUnit> units_;
  std::vector<LateOp> late_;
  std::vector<double> done_ns_;  // at least, by late op
};

}  // namespace

std::vector<LateOp> late_ops(const BoundTrace& trace, const MachineSpec& machine, const Schedule& schedule) {
  return LateOps(*trace.trace, machine, schedule, trace.units).find(trace.movable);
}

LateDemand late_demand(const BoundTrace& of, const MachineSpec& machine) {
  LateDemand demand;
  const Trace& trace = *of.trace;
  const Schedule schedule(trace);
  std::vector<OpIndex> gpu_ops;
  std::vector<double> ends_ns;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (bound_kind_of(op, machine) != OpKind::gpu) continue;
    gpu_ops.push_back(index);
    ends_ns.push_back((ends_ns.empty() ? 0 : ends_ns.back()) + static_cast<double>(op.duration_ns + op.gap_before_ns));
  }
  if (of.late.empty() || gpu_ops.empty()) return demand;
  const auto belongs = [](const LateOp& op, double place_ns) {
    return op.needed_ns < place_ns && place_ns < op.after_ns;
  };
  double most = 0, place_ns = -1;
  for (std::size_t i = 1; i < places; ++i) {
    const double candidate_ns = ends_ns[(ends_ns.size() - 1) * i / places];
    double bytes = 0;
    for (const LateOp& op : of.late) {
      if (!belongs(op, candidate_ns)) continue;
      for (const Use& use : schedule.uses(op.op)) {
        if (trace.tensors[use.tensor].persistent) bytes += static_cast<double>(trace.tensors[use.tensor].bytes);
      }
    }
    if (bytes <= most) continue;
    most = bytes;
    place_ns = candidate_ns;
  }
  if (most == 0) return demand;

  std::vector<std::uint8_t> read(trace.tensors.size(), 0), written(trace.tensors.size(), 0);
  const auto use = [&](OpIndex index) {
    for (const Use& one : schedule.uses(index)) {
      read[one.tensor] = 1;
      if (one.write) written[one.tensor] = 1;
    }
  };
  demand.first = none;
  for (std::size_t i = 0; i < gpu_ops.size(); ++i) {
    if ((i == 0 ? 0 : ends_ns[i - 1]) < place_ns) continue;
    demand.first = std::min(demand.first, gpu_ops[i]);
    use(gpu_ops[i]);
  }
  for (const LateOp& op : of.late) {
    if (belongs(op, place_ns)) use(op.op);
  }
  for (const Touch& touch : of.all_touches) {
    if (touch.output()) read[touch.tensor] = written[touch.tensor] = 0;
  }
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (!trace.tensors[tensor].persistent) continue;
    const double bytes = static_cast<double>(trace.tensors[tensor].bytes);
    demand.in += read[tensor] != 0 ? bytes : 0;
    demand.out += written[tensor] != 0 ? bytes : 0;
  }
  return demand;
}

}  // namespace tencache
