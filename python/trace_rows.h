// Tensors, ops, kernels and details of a trace as rows of NumPy arrays, and back with every number checked.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/trace.h"
#include "python/bindings.h"

namespace tencache {

inline constexpr std::size_t device_count = 2, duration_source_count = 2, op_stream_count = 2;

struct TensorRow {
  std::uint64_t bytes, stored_bytes;
  std::uint32_t name;
  std::uint8_t role;
  bool persistent;
};

struct OpRow {
  std::int64_t duration_ns, gap_before_ns;
  std::uint64_t flops, bytes;
  std::uint32_t name, module, rendezvous, kernel, detail;
  std::int32_t group;
  std::uint16_t rank;
  std::uint8_t phase, device, duration_source, stream;
  bool placeable, reorderable;
};

struct KernelRow {
  std::uint64_t shape[6];
  std::uint32_t launches;
  std::uint8_t kind, attention;
  bool causal, unaligned, fp8;
};

struct DetailRow {
  std::int64_t cpu_duration_ns;
  std::uint32_t step, revealed_by;
};

template <typename T>
using ArrayColumn = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Throws Error where the value is not below the count of what there is.
void check_below(std::uint64_t value, std::uint64_t count, const char* what, std::size_t row);

template <typename T>
void check_line(const ArrayColumn<T>& array, const char* name) {
  if (array.ndim() != 1) throw Error(std::string(name) + ": must have one dimension");
}

TensorRow row_of(const Tensor& tensor);
OpRow row_of(const Op& op);
KernelRow row_of(const Kernel& kernel);
DetailRow row_of(const OpDetail& detail);

Tensor tensor_of(const TensorRow& row, const NamePool& names, std::size_t index);
// All but the accesses. The names, kernels and details are the trace's.
Op op_of(const OpRow& row, const Trace& trace, std::size_t index);
// All of a trace that has none yet. Row 0 is that of ops of which nothing is known.
void take_kernels(Trace& trace, const ArrayColumn<KernelRow>& rows);
void take_details(Trace& trace, const ArrayColumn<DetailRow>& rows);

}  // namespace tencache
