#include "python/trace_rows.h"

#include <algorithm>
#include <array>

namespace tencache {

void check_below(std::uint64_t value, std::uint64_t count, const char* what, std::size_t row) {
  if (value < count) return;
  throw Error("row " + std::to_string(row) + ": " + what + " " + std::to_string(value) + " does not exist; there are " +
              std::to_string(count));
}

TensorRow row_of(const Tensor& tensor) {
  return {tensor.bytes, tensor.stored_bytes, tensor.name, static_cast<std::uint8_t>(tensor.role), tensor.persistent};
}

OpRow row_of(const Op& op) {
  return {op.duration_ns,
          op.gap_before_ns,
          op.flops,
          op.bytes,
          op.name,
          op.module,
          op.rendezvous,
          op.kernel,
          op.detail,
          op.group,
          op.rank,
          static_cast<std::uint8_t>(op.phase),
          static_cast<std::uint8_t>(op.device),
          static_cast<std::uint8_t>(op.duration_source),
          static_cast<std::uint8_t>(op.stream),
          op.placeable,
          op.reorderable};
}

KernelRow row_of(const Kernel& kernel) {
  KernelRow row{{},
                kernel.launches,
                static_cast<std::uint8_t>(kernel.kind),
                static_cast<std::uint8_t>(kernel.attention),
                kernel.causal,
                kernel.unaligned,
                kernel.fp8};
  std::ranges::copy(kernel.shape, row.shape);
  return row;
}

DetailRow row_of(const OpDetail& detail) { return {detail.cpu_duration_ns, detail.step, detail.revealed_by}; }

Tensor tensor_of(const TensorRow& row, const NamePool& names, std::size_t index) {
  check_below(row.name, names.size(), "name", index);
  check_below(row.role, role_count, "role", index);
  return {row.name, static_cast<Role>(row.role), row.persistent, row.bytes, row.stored_bytes};
}

Op op_of(const OpRow& row, const Trace& trace, std::size_t index) {
  const NamePool& names = trace.names;
  check_below(row.name, names.size(), "name", index);
  check_below(row.module, names.size(), "module", index);
  check_below(row.rendezvous, names.size(), "rendezvous", index);
  check_below(row.kernel, trace.kernels.size(), "kernel", index);
  check_below(row.detail, trace.details.size(), "detail", index);
  check_below(row.phase, phase_count, "phase", index);
  check_below(row.device, device_count, "device", index);
  check_below(row.duration_source, duration_source_count, "duration_source", index);
  check_below(row.stream, op_stream_count, "stream", index);
  Op op;
  op.name = row.name;
  op.module = row.module;
  op.rendezvous = row.rendezvous;
  op.kernel = row.kernel;
  op.detail = row.detail;
  op.group = row.group;
  op.phase = static_cast<Phase>(row.phase);
  op.device = static_cast<Device>(row.device);
  op.duration_source = static_cast<DurationSource>(row.duration_source);
  op.stream = static_cast<OpStream>(row.stream);
  op.placeable = row.placeable;
  op.reorderable = row.reorderable;
  op.rank = row.rank;
  op.duration_ns = row.duration_ns;
  op.gap_before_ns = row.gap_before_ns;
  op.flops = row.flops;
  op.bytes = row.bytes;
  return op;
}

void take_kernels(Trace& trace, const ArrayColumn<KernelRow>& rows) {
  check_line(rows, "kernels");
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.size()); ++i) {
    const KernelRow& row = rows.data()[i];
    check_below(row.kind, kernel_kind_count, "kind", i);
    check_below(row.attention, attention_kernel_count, "attention", i);
    Kernel kernel{static_cast<KernelKind>(row.kind),
                  static_cast<AttentionKernel>(row.attention),
                  row.causal,
                  row.unaligned,
                  row.fp8,
                  row.launches,
                  std::to_array(row.shape)};
    if (trace.kernels.intern(kernel) == i) continue;
    throw Error("kernels: row " + std::to_string(i) +
                (i == 0 ? " is for ops without a kernel: unknown, launched once" : " came before"));
  }
}

void take_details(Trace& trace, const ArrayColumn<DetailRow>& rows) {
  check_line(rows, "details");
  trace.details.clear();
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.size()); ++i) {
    const DetailRow& row = rows.data()[i];
    trace.details.push_back({row.step, row.revealed_by, row.cpu_duration_ns});
  }
  if (trace.details.empty() || trace.details.front() != OpDetail{}) {
    throw Error("details: row 0 is for ops without a detail: step 0, revealed_by NONE, cpu_duration_ns 0");
  }
}

}  // namespace tencache
