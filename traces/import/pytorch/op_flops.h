// The arithmetic of ops that are bound by it, from the sizes of their tensors: multiplications and additions.
//
// Counted are products, convolutions and their backward passes, and scaled dot-product attention (without regard to a
// causal mask). Depends on the standard library alone: the importers count with it what the observer counts.
#pragma once

#include <cstdint>
#include <string_view>

namespace tencache {

enum class Arithmetic : std::uint8_t {
  none,           // bound by memory
  product,        // of the first two tensors: mm
  sum_product,    // of the second and the third: addmm
  linear,         // of the first and the second, transposed
  convolution,    // flops of each element of the result
  gradients,      // of a convolution: flops of each gradient, of the input and of the weight
  attention,      // of query and key first
  attention_back  // of the gradient, query and key first
};

inline bool is_attention(Arithmetic kind) {
  return kind == Arithmetic::attention || kind == Arithmetic::attention_back;
}

// Of an op's name without its overload, "aten::mm".
inline Arithmetic arithmetic_of(std::string_view op) {
  const auto has = [op](std::string_view part) { return op.find(part) != std::string_view::npos; };
  const bool backward = has("backward");
  if (op == "aten::mm" || op == "aten::bmm" || op == "aten::_scaled_mm") return Arithmetic::product;
  if (op == "aten::addmm" || op == "aten::addmm_" || op == "aten::baddbmm" || op == "aten::addbmm" ||
      op == "aten::_addmm_activation") {
    return Arithmetic::sum_product;
  }
  if (op == "aten::linear" || op == "aten::mkldnn_linear") return Arithmetic::linear;
  if (has("scaled_dot_product") || has("flash_attention") || has("efficient_attention")) {
    return backward ? Arithmetic::attention_back : Arithmetic::attention;
  }
  if (has("convolution_backward")) return Arithmetic::gradients;
  return has("conv") && !backward ? Arithmetic::convolution : Arithmetic::none;
}

// `shape(i)`: the sizes of the i-th tensor that the op is given, a range; empty where there is none. Of convolutions
// and their gradients for each element and each gradient, as above.
template <typename Shape>
double flops_of(Arithmetic kind, const Shape& shape) {
  const auto elements = [&](std::size_t tensor) {
    double count = 1;
    for (const auto size : shape(tensor)) count *= static_cast<double>(size);
    return shape(tensor).size() == 0 ? 0 : count;
  };
  const auto size = [&](std::size_t tensor, std::size_t from_end) {
    const auto sizes = shape(tensor);
    return sizes.size() <= from_end ? 0 : static_cast<double>(sizes[sizes.size() - 1 - from_end]);
  };
  // Elements of a weight for each of its first dimension.
  const auto of_each = [&](std::size_t weight) {
    const auto sizes = shape(weight);
    return sizes.size() < 3 || sizes[0] == 0 ? 0 : elements(weight) / static_cast<double>(sizes[0]);
  };
  switch (kind) {
    case Arithmetic::none:
      return 0;
    case Arithmetic::product:
      return 2 * elements(0) * size(1, 0);
    case Arithmetic::sum_product:
      return 2 * elements(1) * size(2, 0);
    case Arithmetic::linear:
      return 2 * elements(0) * (shape(1).size() == 0 ? 0 : static_cast<double>(shape(1)[0]));
    case Arithmetic::convolution:
      return 2 * of_each(1);
    case Arithmetic::gradients:
      return 2 * elements(0) * of_each(2);
    case Arithmetic::attention:  // two products
      return 2 * 2 * elements(0) * size(1, 1);
    case Arithmetic::attention_back:  // one of them again and four more
      return 5 * 2 * elements(1) * size(2, 1);
  }
  return 0;
}

}  // namespace tencache
