#include "traces/summary.h"

#include <algorithm>
#include <vector>

namespace tencache {
namespace {

// The ops and the working set of each; fills first and last use of each tensor.
class Pass {
 public:
  explicit Pass(const Trace& trace)
      : trace_(trace),
        first_(trace.tensors.size(), none),
        last_(trace.tensors.size(), none),
        in_step_(trace.tensors.size(), false),
        module_seen_(trace.names.size(), false) {}

  TraceSummary run() {
    summary_.header = trace_.header;
    for (OpIndex index = 0; index < trace_.ops.size(); ++index) add_op(index);
    for (TensorId id = 0; id < trace_.tensors.size(); ++id) add_tensor(id);
    find_peak_demand();
    return summary_;
  }

 private:
  void add_op(OpIndex index) {
    const Op& op = trace_.ops[index];
    summary_.all_ops.add(op.duration_ns);
    summary_.ops[static_cast<std::size_t>(op.phase)][static_cast<std::size_t>(op.device)].add(op.duration_ns);
    summary_.kernels[static_cast<std::size_t>(trace_.kernel(op).kind)].add(op.duration_ns);
    if (const std::uint64_t step = trace_.detail(op).step; step > 0) {
      summary_.step_count = std::max(summary_.step_count, step + 1);
    }
    summary_.gap_ns += op.gap_before_ns;
    if (op.stream == OpStream::communication) summary_.beside_ns += op.duration_ns;
    if (op.duration_source == DurationSource::measured) summary_.measured_ns += op.duration_ns;
    summary_.flops += op.flops;
    summary_.traffic_bytes += op.bytes;
    summary_.rank_count = std::max<std::uint64_t>(summary_.rank_count, op.rank + 1u);
    if (op.module != 0 && !module_seen_[op.module]) {
      module_seen_[op.module] = true;
      ++summary_.module_count;
    }
    Bytes working_set = 0;
    const auto use = [&](TensorId id) {
      if (last_[id] == index) return;  // counted for this op
      if (first_[id] == none) first_[id] = index;
      last_[id] = index;
      working_set += trace_.tensors[id].bytes;
    };
    for (TensorId id : trace_.reads(op)) {
      use(id);
      if (op.phase == Phase::optimizer) in_step_[id] = true;
    }
    for (TensorId id : trace_.writes(op)) use(id);
    summary_.working_set.offer(working_set, index);
    if (op.device == Device::gpu) summary_.gpu_working_set.offer(working_set, index);
  }

  void add_tensor(TensorId id) {
    const Tensor& tensor = trace_.tensors[id];
    summary_.all_tensors.add(tensor.bytes);
    summary_.tensors[static_cast<std::size_t>(tensor.role)].add(tensor.bytes);
    if (tensor.persistent) summary_.persistent.add(tensor.bytes);
    if (tensor.role == Role::gradient && in_step_[id]) summary_.gradients_of_step.add(tensor.bytes);
    if (first_[id] == none) summary_.unused.add(tensor.bytes);
  }

  void find_peak_demand() {
    std::vector<Bytes> born(trace_.ops.size(), 0), dead(trace_.ops.size(), 0);
    for (TensorId id = 0; id < trace_.tensors.size(); ++id) {
      if (trace_.tensors[id].persistent || first_[id] == none) continue;
      born[first_[id]] += trace_.tensors[id].bytes;
      dead[last_[id]] += trace_.tensors[id].bytes;
    }
    Bytes alive = summary_.persistent.bytes;
    for (OpIndex index = 0; index < trace_.ops.size(); ++index) {
      alive += born[index];
      summary_.peak_demand.offer(alive, index);
      alive -= dead[index];
    }
  }

  const Trace& trace_;
  TraceSummary summary_;
  std::vector<OpIndex> first_, last_;
  std::vector<bool> in_step_;  // read by the optimizer
  std::vector<bool> module_seen_;
};

}  // namespace

TraceSummary summarize(const Trace& trace) { return Pass(trace).run(); }

}  // namespace tencache
