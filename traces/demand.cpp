#include "traces/demand.h"

#include <algorithm>

namespace tencache {
namespace {

struct Lifetimes {
  std::vector<OpIndex> first, last;  // by tensor; none: unused
};

template <typename Visit>
void each_tensor(const Trace& trace, const Op& op, Visit visit) {
  for (const TensorId tensor : trace.reads(op)) visit(tensor);
  for (const TensorId tensor : trace.writes(op)) visit(tensor);
}

Lifetimes lifetimes_of(const Trace& trace) {
  Lifetimes result{std::vector<OpIndex>(trace.tensors.size(), none), std::vector<OpIndex>(trace.tensors.size(), none)};
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    each_tensor(trace, trace.ops[index], [&](TensorId tensor) {
      OpIndex& first = result.first[tensor];
      if (first == none) first = index;
      if (trace.ops[first].rank == trace.ops[index].rank) result.last[tensor] = index;
    });
    for (const TensorId tensor : trace.frees(trace.ops[index])) result.last[tensor] = index;
  }
  return result;
}

std::uint16_t rank_of(const Trace& trace, OpIndex first_use) {
  return first_use == none ? std::uint16_t{0} : trace.ops[first_use].rank;
}

Bytes rounded(Bytes bytes, Bytes granularity) { return (bytes + granularity - 1) / granularity * granularity; }

void add(BytesAtOp& total, const Tensor& tensor, Bytes granularity) {
  const Bytes bytes = rounded(tensor.bytes, granularity);
  total.bytes += bytes;
  total.by_role[static_cast<std::size_t>(tensor.role)] += bytes;
}

BytesAtOp alive_at(const Trace& trace, const Lifetimes& lifetimes, OpIndex op, Bytes granularity) {
  BytesAtOp result;
  result.op = op;
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    const Tensor& tensor = trace.tensors[id];
    const OpIndex first = lifetimes.first[id];
    if (rank_of(trace, first) != trace.ops[op].rank) continue;
    if (tensor.persistent || (first != none && first <= op && op <= lifetimes.last[id])) {
      add(result, tensor, granularity);
    }
  }
  return result;
}

}  // namespace

OpIndex Demand::first_above(Bytes capacity) const {
  const auto found = std::find_if(alive.begin(), alive.end(), [capacity](Bytes bytes) { return bytes > capacity; });
  return found == alive.end() ? none : ops[static_cast<std::size_t>(found - alive.begin())];
}

std::vector<Demand> demands_of(const Trace& trace, Bytes granularity) {
  const Lifetimes lifetimes = lifetimes_of(trace);
  std::uint16_t last_rank = 0;
  for (const Op& op : trace.ops) last_rank = std::max(last_rank, op.rank);
  std::vector<Demand> demands(last_rank + std::size_t{1});
  std::vector<Bytes> born(trace.ops.size(), 0), dead(trace.ops.size(), 0);
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    const Tensor& tensor = trace.tensors[id];
    const OpIndex first = lifetimes.first[id];
    if (tensor.persistent) {
      add(demands[rank_of(trace, first)].persistent, tensor, granularity);
    } else if (first != none) {
      born[first] += rounded(tensor.bytes, granularity);
      dead[lifetimes.last[id]] += rounded(tensor.bytes, granularity);
    }
  }
  std::vector<Bytes> now(demands.size(), 0);  // beside what is persistent
  std::vector<OpIndex> seen(trace.tensors.size(), none);
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    Demand& demand = demands[op.rank];
    Bytes& alive = now[op.rank];
    alive += born[index];
    demand.ops.push_back(index);
    demand.alive.push_back(demand.persistent.bytes + alive);
    if (demand.peak.op == none || demand.alive.back() > demand.peak.bytes) {
      demand.peak.op = index;
      demand.peak.bytes = demand.alive.back();
    }
    alive -= dead[index];
    if (op.device != Device::gpu) continue;
    BytesAtOp touched;
    touched.op = index;
    each_tensor(trace, op, [&](TensorId tensor) {
      if (seen[tensor] == index) return;
      seen[tensor] = index;
      add(touched, trace.tensors[tensor], granularity);
    });
    demand.largest_placed_op = std::max(demand.largest_placed_op, touched.bytes);
    if (op.placeable) continue;
    if (demand.largest_gpu_op.op == none || touched.bytes > demand.largest_gpu_op.bytes)
      demand.largest_gpu_op = touched;
  }
  for (Demand& demand : demands) {
    if (demand.peak.op != none) demand.peak = alive_at(trace, lifetimes, demand.peak.op, granularity);
  }
  return demands;
}

BytesAtOp alive_at(const Trace& trace, OpIndex op) { return alive_at(trace, lifetimes_of(trace), op, 1); }

}  // namespace tencache
