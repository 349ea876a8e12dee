// What an op launches, as far as its time depends on it: the kind and shape of its kernel in a trace
// (docs/trace-format.md), from the op's name and its tensors.
//
// Depends on the standard library alone: the importers find with it what the observer finds.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/import/pytorch/op_flops.h"

namespace tencache {

// A tensor that an op is given.
struct OpTensor {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  // in elements; empty: one row after the other
  unsigned element_bytes = 0;         // 0: not known
};

struct OpKernel {
  std::string_view kind = "elementwise";
  std::array<std::uint64_t, 6> shape{};
  std::size_t numbers = 0;     // of the shape
  std::string_view attention;  // generation of the kernel; empty: not known
  bool causal = false, unaligned = false;
  std::uint32_t launches = 1;
  double more_bytes = 0;  // that its kernels move beyond what goes in and comes out, or less
};

namespace op_kernel {

inline std::int64_t size(const OpTensor& tensor, std::size_t from_end) {
  return tensor.sizes.size() <= from_end ? 1 : tensor.sizes[tensor.sizes.size() - 1 - from_end];
}

inline double elements(const OpTensor& tensor) {
  double count = 1;
  for (const std::int64_t size : tensor.sizes) count *= static_cast<double>(size);
  return count;
}

inline double bytes(const OpTensor& tensor) { return elements(tensor) * tensor.element_bytes; }

// Sizes and strides without dimensions of one element, and of the elements that a broadcast repeats.
inline std::vector<std::pair<std::int64_t, std::int64_t>> layout(const OpTensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;
  std::int64_t stride = 1;
  for (std::size_t i = tensor.sizes.size(); i-- > 0;) {
    const std::int64_t its = tensor.strides.empty() ? stride : tensor.strides[i];
    stride *= tensor.sizes[i];
    if (tensor.sizes[i] != 1) dimensions.emplace_back(tensor.sizes[i], its);
  }
  std::reverse(dimensions.begin(), dimensions.end());
  return dimensions;
}

// Whether its elements lie side by side, in whatever order.
inline bool dense(const OpTensor& tensor) {
  auto dimensions = layout(tensor);
  std::sort(dimensions.begin(), dimensions.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::int64_t expected = 1;
  for (const auto& [size, stride] : dimensions) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

inline bool same_layout(const OpTensor& a, const OpTensor& b) { return layout(a) == layout(b); }

// An operand that is repeated along other dimensions than the rows: a table over positions, for every head.
inline bool broadcast_table(const OpTensor& tensor, double whole) {
  const double count = elements(tensor);
  return count < whole && count > static_cast<double>(size(tensor, 0)) && size(tensor, 0) > 1;
}

// One after the other in memory, the operands of the op's full size are the same.
template <typename Tensors>
bool strided(const Tensors& tensors) {
  double whole = 0;
  for (const OpTensor& tensor : tensors) whole = std::max(whole, elements(tensor));
  const OpTensor* first = nullptr;
  for (const OpTensor& tensor : tensors) {
    if (broadcast_table(tensor, whole)) return true;
    if (elements(tensor) < whole) continue;
    if (!dense(tensor) || (first != nullptr && !same_layout(*first, tensor))) return true;
    first = &tensor;
  }
  return false;
}

// Tensor cores read rows that begin at multiples of 16 bytes.
inline bool rows_unaligned(const OpTensor& matrix) {
  if (matrix.element_bytes != 2) return false;
  std::int64_t row = size(matrix, 0);
  if (matrix.strides.size() >= 2 && matrix.strides.size() == matrix.sizes.size()) {
    const std::size_t last = matrix.strides.size() - 1;
    row = matrix.strides[last] == 1       ? matrix.strides[last - 1]
          : matrix.strides[last - 1] == 1 ? matrix.strides[last]
                                          : 8;
    if (size(matrix, 0) == 1 || size(matrix, 1) == 1) return false;
  }
  return row * 2 % 16 != 0;
}

// Of a shape; damaged recordings claim anything.
inline std::uint64_t shape_number(double value) {
  constexpr double most = 1.2e12;  // beyond what a trace may say
  return value > 0 && value < most ? static_cast<std::uint64_t>(value)
         : value > 0               ? static_cast<std::uint64_t>(most)
                                   : 0;
}

inline void make_matmul(OpKernel& kernel, const OpTensor& left, const OpTensor& right, bool transposed) {
  const bool batched = right.sizes.size() == 3 && left.sizes.size() == 3;
  const double batch = batched ? static_cast<double>(size(left, 2)) : 1;
  const auto k = static_cast<double>(size(left, 0));
  const double m = k * batch == 0 ? 0 : elements(left) / k / batch;
  const std::int64_t n = size(right, transposed ? 1 : 0);
  kernel.shape = {shape_number(batch), shape_number(m), shape_number(static_cast<double>(n)), shape_number(k)};
  const bool empty = std::find(kernel.shape.begin(), kernel.shape.begin() + 4, 0) != kernel.shape.begin() + 4;
  kernel.kind = empty ? "" : "matmul";
  kernel.numbers = empty ? 0 : 4;
  if (empty) return;
  kernel.unaligned = rows_unaligned(left) || rows_unaligned(right) ||
                     rows_unaligned({{static_cast<std::int64_t>(kernel.shape[1]), n}, {}, left.element_bytes});
}

// Of query and key, [batch, heads, tokens, dimension], or [batch, tokens, heads, dimension] below PyTorch's own op.
inline void make_attention(OpKernel& kernel, std::string_view op, const OpTensor& query, const OpTensor& key) {
  const auto has = [op](std::string_view part) { return op.find(part) != std::string_view::npos; };
  const bool backward = has("backward");
  kernel.kind = backward ? "attention_backward" : "attention";
  kernel.numbers = 6;
  if (has("cudnn")) {
    kernel.attention = "cudnn";
  } else if (has("flash_attn_3") || has("fa3")) {
    kernel.attention = "flash3";
  } else if (has("flash")) {
    kernel.attention = "flash2";
  } else if (has("efficient")) {
    kernel.attention = "flash1";  // CUTLASS' kernel, of that speed
  }
  if (backward) kernel.launches = 3;  // sums over each row, the products, the conversion of the query's gradient
  if (query.sizes.size() != 4 || key.sizes.size() != 4) return;
  const bool heads_first = has("scaled_dot_product");
  const auto number = [](std::int64_t value) { return shape_number(static_cast<double>(value)); };
  kernel.shape = {number(query.sizes[0]),
                  number(query.sizes[heads_first ? 1 : 2]),
                  number(key.sizes[heads_first ? 1 : 2]),
                  number(query.sizes[heads_first ? 2 : 1]),
                  number(key.sizes[heads_first ? 2 : 1]),
                  number(query.sizes[3])};
}

// Launches of an op on lists of tensors: 65536 elements a block of threads, so many blocks and tensors a launch.
inline std::uint32_t list_launches(std::size_t lists, const std::vector<OpTensor>& first_list) {
  constexpr double block = 65536, blocks = 320;
  constexpr std::array<std::size_t, 6> tensors{110, 110, 64, 48, 36, 30};
  double count = 0;
  for (const OpTensor& tensor : first_list) count += std::max(1.0, std::ceil(elements(tensor) / block));
  const std::size_t most = tensors[std::min(lists, tensors.size() - 1)];
  const std::size_t lists_of_most = (first_list.size() + most - 1) / most;
  const double launches = std::max(std::ceil(count / blocks), static_cast<double>(lists_of_most));
  return static_cast<std::uint32_t>(std::clamp(launches, 1.0, 1e9));
}

inline bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

}  // namespace op_kernel

// Of an op's name without its overload, "aten::mm", and the tensors that it is given, in their order, lists taken
// apart. Whether attention is causal its caller knows; the result's layout matters through finish_kernel.
inline OpKernel kernel_of(std::string_view op, const std::vector<OpTensor>& tensors) {
  using namespace op_kernel;
  const auto has = [op](std::string_view part) { return op.find(part) != std::string_view::npos; };
  OpKernel kernel;
  static const OpTensor no_tensor;
  const auto tensor = [&](std::size_t i) -> const OpTensor& { return i < tensors.size() ? tensors[i] : no_tensor; };
  const Arithmetic arithmetic = arithmetic_of(op);
  switch (arithmetic) {
    case Arithmetic::product:
      if (tensors.size() >= 2) make_matmul(kernel, tensor(0), tensor(1), false);
      return kernel;
    case Arithmetic::sum_product:
      if (tensors.size() >= 3) make_matmul(kernel, tensor(1), tensor(2), false);
      return kernel;
    case Arithmetic::linear:
      if (tensors.size() >= 2) make_matmul(kernel, tensor(0), tensor(1), true);
      return kernel;
    case Arithmetic::convolution:
    case Arithmetic::gradients:
      kernel.kind = "";  // a product whose shape is the library's affair
      return kernel;
    case Arithmetic::attention:
      make_attention(kernel, op, tensor(0), tensor(1));
      return kernel;
    case Arithmetic::attention_back:
      make_attention(kernel, op, tensor(1), tensor(2));
      return kernel;
    case Arithmetic::none:
      break;
  }
  // NOLINTBEGIN(bugprone-branch-clone): the first that applies decides
  if (op.substr(0, 6) == "c10d::" || op.substr(0, 18) == "_c10d_functional::" || has("nccl")) {
    kernel.kind = "";
  } else if (has("_foreach_") || has("_fused_adam") || has("_fused_sgd") || has("_fused_adagrad")) {
    kernel.kind = "optimizer";
  } else if (has("_norm_backward") || has("batch_norm") || has("layer_norm") || has("group_norm") || has("rms_norm") ||
             has("softmax")) {
    kernel.kind = "norm";
    if (has("norm") && has("backward") && tensors.size() >= 2) {
      // The input's gradient; the sums for weight and bias over all rows, in two steps, which read both again.
      kernel.launches = 3;
      kernel.more_bytes = bytes(tensor(0)) + bytes(tensor(1));
    }
  } else if (is_one_of(op, {"aten::nll_loss_forward", "aten::nll_loss2d_forward"})) {  // looks at a score a row
    kernel.more_bytes = -bytes(tensor(0)) + elements(tensor(1)) * tensor(0).element_bytes;
  } else if (is_one_of(op, {"aten::nll_loss_backward", "aten::nll_loss2d_backward"})) {
    kernel.launches = 2;  // clears the gradient, and sets a number a row
    kernel.more_bytes = -bytes(tensor(1));
  } else if (is_one_of(op, {"aten::sum", "aten::mean", "aten::norm", "aten::linalg_vector_norm", "aten::amax",
                            "aten::amin", "aten::max", "aten::min", "aten::argmax", "aten::argmin", "aten::var",
                            "aten::std", "aten::var_mean", "aten::cumsum", "aten::prod", "aten::any", "aten::all"})) {
    kernel.kind = "reduction";
  } else if (is_one_of(op,
                       {"aten::embedding", "aten::index_select", "aten::index", "aten::gather", "aten::scatter",
                        "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::index_put",
                        "aten::index_put_", "aten::_index_put_impl_", "aten::index_add", "aten::index_add_",
                        "aten::_embedding_bag", "aten::index_select_backward", "aten::take", "aten::take_along_dim"})) {
    kernel.kind = "gather";
    const bool looks_up = is_one_of(op, {"aten::embedding", "aten::index_select", "aten::index", "aten::gather"});
    // Of the table only the rows that come back are read.
    if (looks_up && tensors.size() >= 2) {
      const double rows = elements(tensor(1)) * (op == "aten::gather" ? 1.0 : static_cast<double>(size(tensor(0), 0)));
      kernel.more_bytes = std::min(0.0, rows * tensor(0).element_bytes - bytes(tensor(0)));
    }
  } else if (op == "aten::embedding_dense_backward") {
    kernel.kind = "gather";  // clears a gradient of the table's size first: finish_kernel
    kernel.launches = 2;
    kernel.more_bytes = bytes(tensor(0));
  } else if (is_one_of(op, {"aten::cat", "aten::stack", "aten::_cat", "aten::repeat", "aten::repeat_interleave",
                            "aten::roll", "aten::flip", "aten::constant_pad_nd"})) {
    kernel.kind = "copy";
  } else if (is_one_of(op, {"aten::slice_backward", "aten::select_backward"})) {
    kernel.kind = "copy";
    kernel.launches = 2;  // clears the gradient first
    kernel.more_bytes = bytes(tensor(0));
  } else if (is_one_of(op, {"aten::copy_", "aten::_to_copy", "aten::clone", "aten::contiguous"})) {
    if (tensors.size() >= 2 && !same_layout(tensor(0), tensor(1))) kernel.kind = "copy";
    if (tensors.size() == 1 && !dense(tensor(0))) kernel.kind = "copy";
  } else if (op.substr(0, 6) != "aten::") {
    kernel.kind = "";  // of somebody else's library
  } else if (strided(tensors)) {
    kernel.kind = "copy";
  }
  // NOLINTEND(bugprone-branch-clone)
  return kernel;
}

// Where an op of attention is told whether it is causal, where a recording has arguments but not their names.
inline std::size_t causal_argument(std::string_view op) {
  const auto has = [op](std::string_view part) { return op.find(part) != std::string_view::npos; };
  const bool backward = has("backward");
  if (has("for_cpu")) return backward ? 7 : 4;
  if (has("scaled_dot_product_cudnn")) return backward ? 14 : 6;
  if (has("scaled_dot_product_efficient")) return backward ? 11 : 6;
  if (has("scaled_dot_product_flash")) return backward ? 11 : 4;
  if (op == "aten::_flash_attention_forward") return 8;
  if (op == "aten::_flash_attention_backward") return 11;
  return 5;  // aten::scaled_dot_product_attention
}

// By the layout of the op's first input and first result.
inline void finish_kernel(OpKernel& kernel, std::string_view op, const OpTensor& input, const OpTensor& result) {
  using namespace op_kernel;
  if (kernel.kind == "reduction" &&
      (size(result, 0) != size(input, 0) || size(input, 0) == 1 || result.sizes.empty())) {
    kernel.kind = "elementwise";  // along the rows, or of everything: reads one number after the other
  }
  // Where few rows are added to a large table, clearing it takes the time.
  constexpr double slower = 5;  // a row than what is cleared
  if (op == "aten::embedding_dense_backward" && bytes(result) > slower * 3 * bytes(input)) kernel.kind = "elementwise";
  if (is_one_of(op, {"aten::_to_copy", "aten::clone", "aten::contiguous"}) && !same_layout(input, result)) {
    kernel.kind = "copy";
  }
}

}  // namespace tencache
