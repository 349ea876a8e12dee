#include "traces/generate/parallel.h"

#include <algorithm>
#include <cmath>

namespace tencache::generator {

Count Collectives::size(Group group) const {
  const GenerateOptions& options = step_.options;
  switch (group) {
    case Group::tensor:
      return options.tensor_parallel;
    case Group::data:
      return options.data_parallel;
    case Group::embedding:
      return options.pipeline_parallel > 1 ? 2 : 1;
    case Group::world:
      break;
  }
  return options.tensor_parallel * options.data_parallel * options.pipeline_parallel;
}

// Names the group by what its ranks have in common.
std::string Collectives::key(Group group) {
  const auto text = [](Count number) { return std::to_string(number); };
  std::string key;
  switch (group) {
    case Group::tensor:
      key = "tensor " + text(position_.data) + "," + text(position_.stage);
      break;
    case Group::data:
      key = "data " + text(position_.tensor) + "," + text(position_.stage);
      break;
    case Group::embedding:
      key = "embedding " + text(position_.tensor) + "," + text(position_.data);
      break;
    case Group::world:
      key = "all";
      break;
  }
  return key + " #" + text(counts_[static_cast<std::size_t>(group)]++);
}

Op Collectives::collective_op(std::string_view name, const Module& module, Count ranks, Bytes moved) {
  Op op = step_.kernel(name, module, {.kernel = {.kind = KernelKind::collective, .shape = {ranks}}, .bytes = moved});
  op.duration_ns = step_.model().collective_ns(ranks, moved, step_.options.interconnect);
  return op;
}

void Collectives::collective(Group group, std::string_view name, const Module& module, std::span<const TensorId> reads,
                             std::span<const TensorId> writes, Bytes moved, Overlap overlap) {
  Op op = collective_op(name, module, size(group), moved);
  op.rendezvous = step_.intern(key(group));
  const double share = overlap == Overlap::kernels ? exposed() : 1;
  if (share == 0) {
    op.stream = OpStream::communication;
    step_.op(op, reads, writes);
    return;
  }
  const Nanoseconds duration_ns = op.duration_ns;
  op.duration_ns = std::llround(share * static_cast<double>(duration_ns));
  step_.op(op, reads, writes);
  if (op.duration_ns == duration_ns) return;
  op.duration_ns = duration_ns - op.duration_ns;
  beside(op, reads, writes);
}

// All ranks have come to the first part.
void Collectives::beside(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes) {
  op.stream = OpStream::communication;
  op.rendezvous = 0;
  op.gap_before_ns = 0;
  op.bytes = 0;  // the first part has them
  std::vector<TensorId> touched(reads.begin(), reads.end());
  for (const TensorId tensor : writes) {
    if (std::ranges::find(touched, tensor) == touched.end()) touched.push_back(tensor);
  }
  step_.op(op, touched, writes);
}

double Collectives::exposed() const {
  return step_.options.stack_figures.exposed[static_cast<std::size_t>(*step_.options.communication)];
}

void Collectives::all_reduce(Group group, const Module& module, TensorId tensor) {
  all_reduce(group, module, std::span<const TensorId>(&tensor, 1), step_.bytes(tensor));
}

void Collectives::all_reduce(Group group, const Module& module, std::span<const TensorId> tensors, Bytes bytes,
                             Overlap overlap) {
  const Count n = size(group);
  if (n == 1) return;
  collective(group, "all_reduce", module, tensors, tensors, 2 * (n - 1) * bytes / n, overlap);
}

void Collectives::all_gather(Group group, const Module& module, std::span<const TensorId> shards,
                             std::span<const TensorId> whole, Bytes bytes, Overlap overlap) {
  const Count n = size(group);
  if (n == 1) return;
  collective(group, "all_gather", module, shards, whole, (n - 1) * bytes / n, overlap);
}

void Collectives::reduce_scatter(Group group, const Module& module, std::span<const TensorId> whole,
                                 std::span<const TensorId> shards, std::span<const TensorId> accumulated, Bytes bytes,
                                 Overlap overlap) {
  const Count n = size(group);
  if (n == 1) return;
  reads_.assign(whole.begin(), whole.end());
  reads_.insert(reads_.end(), accumulated.begin(), accumulated.end());
  const bool all = step_.options.gradient_reduction == GradientReduction::all_reduce;
  collective(group, all ? "all_reduce" : "reduce_scatter", module, reads_, shards, (all ? 2 : 1) * (n - 1) * bytes / n,
             overlap);
}

void Collectives::exchange(Count peer, const std::string& occurrence, std::string_view name, const Module& module,
                           TensorId out, TensorId in) {
  const Bytes moved = std::max(step_.bytes(out), step_.bytes(in));  // both directions at once
  Op op = collective_op(name, module, 2, moved);
  op.rendezvous = step_.intern("pipeline " + std::to_string(position_.tensor) + "," + std::to_string(position_.data) +
                               " " + std::to_string(std::min(peer, position_.stage)) + "-" +
                               std::to_string(std::max(peer, position_.stage)) + " " + occurrence);
  const TensorId outs[] = {out}, ins[] = {in};
  step_.op(op, std::span<const TensorId>(outs, out == none ? 0 : 1),
           std::span<const TensorId>(ins, in == none ? 0 : 1));
}

}  // namespace tencache::generator
