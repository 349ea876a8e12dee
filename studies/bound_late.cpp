#include "studies/bound_late.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "core/cpu_op.h"

namespace tencache {
namespace {

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
  Nanoseconds time_of(const Op& op) const { return bound_time_of(op, machine_); }

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
        const OpKind kind = bound_kind_of(trace_, trace_.ops[index], machine_);
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
          op.cpu_ns = static_cast<double>(bound_gap_of(trace_.ops[index], machine_) +
                                          *duration_on_cpu(trace_, trace_.ops[index], machine_));
          least_ns = std::min(op.cpu_ns, static_cast<double>(movable[op.movable].gpu_ns));
        }
        for (const Use& use : schedule_.uses(index)) {
          if (use.read) op.ready_ns = std::max(op.ready_ns, done[use.tensor].write);
          if (use.write && bound_waits_to_write(machine_)) op.ready_ns = std::max(op.ready_ns, done[use.tensor].use);
        }
        late_.push_back(op);
        done_ns_.push_back(op.ready_ns + (with_late ? least_ns : 0));
      }
      std::size_t at = first_of_unit;
      for (OpIndex index = unit.first; index < unit.end; ++index) {
        if (bound_kind_of(trace_, trace_.ops[index], machine_) == OpKind::gpu) {
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
      if (bound_kind_of(trace_, trace_.ops[index], machine_) != OpKind::gpu) continue;
      need(index, gpu_ns);
      gpu_ns += static_cast<double>(time_of(trace_.ops[index]));
    }
    std::size_t end = late_.size();
    for (std::size_t unit = units_.size(); unit-- > 0;) {
      std::vector<OpIndex> ops;
      for (OpIndex index = units_[unit].first; index < units_[unit].end; ++index) {
        if (bound_kind_of(trace_, trace_.ops[index], machine_) != OpKind::gpu) ops.push_back(index);
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

namespace {

// The places of the iteration, cuts before a unit, from which on a tensor counts.
struct Stretch {
  TensorId tensor = none;
  std::size_t begin = 0, end = 0;
};

class Rounds {
 public:
  Rounds(const BoundTrace& of, const MachineSpec& machine)
      : of_(of), trace_(*of.trace), schedule_(trace_), tensors_(trace_.tensors.size()) {
    double gpu_ns = 0;
    for (std::size_t unit = 0; unit < of.units.size(); ++unit) {
      begins_ns_.push_back(gpu_ns);
      for (OpIndex index = of.units[unit].first; index < of.units[unit].end; ++index) {
        const Op& op = trace_.ops[index];
        if (bound_kind_of(trace_, op, machine) == OpKind::gpu)
          gpu_ns += static_cast<double>(bound_time_of(op, machine));
      }
      for (const Touch& touch : of.touches(unit)) mark(touch, unit);
    }
    for (const LateOp& op : of.late) {
      for (const Use& use : schedule_.uses(op.op)) tensors_[use.tensor].late_writes += use.write ? 1 : 0;
    }
  }

  LateDemand demand() const {
    std::vector<Stretch> in, out, round_in, round_out;
    const auto add = [](std::vector<Stretch>& spans, TensorId tensor, std::size_t begin, std::size_t end) {
      if (begin < end) spans.push_back({.tensor = tensor, .begin = begin, .end = end});
    };
    const std::size_t units = of_.units.size();
    for (const LateOp& op : of_.late) {
      const std::size_t begin = place_after(op.needed_ns), end = place_at(op.after_ns);
      for (const Use& use : schedule_.uses(op.op)) {
        const Tensor& tensor = tensors_[use.tensor];
        if (tensor.made_late) {
          // Of the iteration before, and made anew behind the place: while the GPU uses it behind the place.
          if (!use.write) continue;
          add(in, use.tensor, begin, std::min(end, tensor.uses_end));
          add(round_in, use.tensor, begin, std::min(end, tensor.uses_end));
          add(round_out, use.tensor, begin, std::min(end, tensor.uses_end));
          continue;
        }
        const bool writes = use.write || tensor.makers > 0;
        add(in, use.tensor, begin, end);
        add(round_in, use.tensor, begin, end);
        if (use.write) add(out, use.tensor, begin, end);
        if (writes) add(round_out, use.tensor, begin, end);
      }
    }
    for (TensorId id = 0; id < tensors_.size(); ++id) {
      const Tensor& tensor = tensors_[id];
      if (tensor.made_late) continue;
      add(in, id, 0, tensor.uses_end);
      if (tensor.makers > 0) {
        add(round_in, id, 0, tensor.uses_end);
        add(round_out, id, 0, tensor.uses_end);
      } else {
        add(out, id, 0, tensor.writes_end);
        add(round_in, id, 0, tensor.uses_end > 0 ? units : 0);
        add(round_out, id, 0, tensor.writes_end > 0 ? units : 0);
      }
    }
    return {.in = bytes(in), .out = bytes(out), .round_in = bytes(round_in), .round_out = bytes(round_out)};
  }

 private:
  struct Tensor {
    std::uint32_t late_writes = 0;                 // ops
    std::uint32_t makers = 0;                      // units that write it without reading it
    std::size_t made_end = 0;                      // behind the last of them
    std::size_t uses_end = 0, writes_end = 0;      // behind the last fixed GPU op of these
    bool made_late = false, updated_late = false;  // on the CPU's lane, or maybe there
    bool used_later = false;                       // by the GPU, in the unit of a late maker or behind it
  };

  void mark(const Touch& touch, std::size_t unit) {
    Tensor& tensor = tensors_[touch.tensor];
    if (touch.output()) {
      ++tensor.makers;
      tensor.made_end = unit + 1;
      tensor.made_late |= touch.movable_output || touch.cpu_output;
    } else {
      tensor.updated_late |= touch.asynchronous_write();
    }
    if (!touch.gpu()) return;
    tensor.uses_end = unit + 1;
    if (touch.gpu_write) tensor.writes_end = unit + 1;
    tensor.used_later |= tensor.made_late;
  }
  // What the GPU makes; what a single late op makes for the GPU ops of the next iteration; what is only updated.
  bool counts(TensorId id) const {
    const Tensor& tensor = tensors_[id];
    if (tensor.makers == 0) return trace_.tensors[id].persistent;
    if (tensor.updated_late) return false;
    return !tensor.made_late ||
           (tensor.makers == 1 && tensor.late_writes == 1 && !tensor.used_later && tensor.writes_end == 0);
  }

  // The first place later than this time, or not earlier.
  std::size_t place_after(double ns) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(begins_ns_, ns) - begins_ns_.begin());
  }
  std::size_t place_at(double ns) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(begins_ns_, ns) - begins_ns_.begin());
  }

  // By place: of each tensor once, however many spans it has there.
  std::vector<double> bytes(std::vector<Stretch>& spans) const {
    std::ranges::sort(spans, [](const Stretch& a, const Stretch& b) {
      return std::tie(a.tensor, a.begin) < std::tie(b.tensor, b.begin);
    });
    std::vector<double> result(of_.units.size() + 1, 0);
    TensorId tensor = none;
    std::size_t covered = 0;
    for (const Stretch& span : spans) {
      if (!counts(span.tensor)) continue;
      if (span.tensor != tensor) covered = tensors_[span.tensor].made_late ? 0 : tensors_[span.tensor].made_end;
      tensor = span.tensor;
      const std::size_t begin = std::max(span.begin, covered);
      if (begin >= span.end) continue;
      result[begin] += static_cast<double>(trace_.tensors[tensor].bytes);
      result[span.end] -= static_cast<double>(trace_.tensors[tensor].bytes);
      covered = span.end;
    }
    for (std::size_t place = 1; place < result.size(); ++place) result[place] += result[place - 1];
    result.pop_back();
    return result;
  }

  const BoundTrace& of_;
  const Trace& trace_;
  const Schedule schedule_;
  std::vector<double> begins_ns_;  // of the units, in time of the fixed GPU ops
  std::vector<Tensor> tensors_;
};

}  // namespace

LateDemand late_demand(const BoundTrace& trace, const MachineSpec& machine) { return Rounds(trace, machine).demand(); }

}  // namespace tencache
