#include "traces/pytorch/op_cost.h"

#include <algorithm>

namespace tencache {
namespace {

constexpr double most_flops = 1e18;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool looks_up(std::string_view name) {
  return name == "aten::index_select" || name == "aten::embedding" || name == "aten::gather" || name == "aten::index";
}

class Shapes {
 public:
  Shapes(const ExecutionTrace& trace, const CallNode& node) : trace_(trace), node_(node) {}

  // The tensor that is the call's argument `index`; nullptr: no tensor, or undefined.
  const TensorRef* argument(std::uint16_t index) const {
    for (const TensorRef& ref : trace_.inputs(node_)) {
      if (ref.argument == index && !ref.in_list && ref.device != TensorDevice::undefined) return &ref;
    }
    return nullptr;
  }
  bool has_output(std::uint16_t index) const {
    return std::ranges::any_of(trace_.outputs(node_), [&](const TensorRef& ref) {
      return ref.argument == index && ref.device != TensorDevice::undefined && ref.numel > 0;
    });
  }
  std::uint64_t output_elements() const {
    const auto outputs = trace_.outputs(node_);
    return outputs.empty() ? 0 : outputs.front().numel;
  }
  // A size, counted from the end; 0: there is none.
  double last_size(const TensorRef* ref, std::uint16_t from_end) const {
    return ref == nullptr || ref->rank <= from_end
               ? 0
               : static_cast<double>(trace_.shape(*ref)[static_cast<std::size_t>(ref->rank - 1 - from_end)]);
  }
  double first_size(const TensorRef* ref) const {
    return ref == nullptr || ref->rank == 0 ? 0 : static_cast<double>(trace_.shape(*ref)[0]);
  }

 private:
  const ExecutionTrace& trace_;
  const CallNode& node_;
};

double elements(const TensorRef* ref) { return ref == nullptr ? 0 : static_cast<double>(ref->numel); }

// 2 × elements of the left × columns of the right.
double product_flops(const Shapes& shapes, std::uint16_t left, std::uint16_t right) {
  return 2 * elements(shapes.argument(left)) * shapes.last_size(shapes.argument(right), 0);
}

double convolution_flops(const Shapes& shapes, double outputs, const TensorRef* weight) {
  const double channels = shapes.first_size(weight);
  return channels == 0 ? 0 : 2 * outputs * elements(weight) / channels;
}

// Of q (batch, heads, length, width) and k: two products forward, five backward.
double attention_flops(const Shapes& shapes, const TensorRef* query, const TensorRef* key, double products) {
  return 2 * products * elements(query) * shapes.last_size(key, 1);
}

struct Arithmetic {
  double flops = 0;
  KernelKind kind = KernelKind::vector;
  const TensorRef* operand = nullptr;
};

Arithmetic arithmetic_of(const ExecutionTrace& trace, const CallNode& node) {
  const std::string_view name = trace.name(node);
  const Shapes shapes(trace, node);
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_scaled_mm") {
    return {product_flops(shapes, 0, 1), KernelKind::matmul, shapes.argument(0)};
  }
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addbmm" || name == "aten::_addmm_activation") {
    return {product_flops(shapes, 1, 2), KernelKind::matmul, shapes.argument(1)};
  }
  if (name == "aten::linear" || name == "aten::mkldnn_linear") {
    const TensorRef* weight = shapes.argument(1);
    return {2 * elements(shapes.argument(0)) * shapes.first_size(weight), KernelKind::matmul, weight};
  }
  if (contains(name, "scaled_dot_product") || contains(name, "flash_attention") ||
      contains(name, "efficient_attention")) {
    const bool backward = contains(name, "backward");
    const TensorRef* query = shapes.argument(backward ? 1 : 0);
    return {attention_flops(shapes, query, shapes.argument(backward ? 2 : 1), backward ? 5 : 2), KernelKind::attention,
            query};
  }
  if (contains(name, "convolution_backward")) {
    const TensorRef* gradient = shapes.argument(0);
    const double one = convolution_flops(shapes, elements(gradient), shapes.argument(2));
    return {one * ((shapes.has_output(0) ? 1 : 0) + (shapes.has_output(1) ? 1 : 0)), KernelKind::matmul, gradient};
  }
  if (contains(name, "conv") && !contains(name, "backward") && shapes.argument(1) != nullptr &&
      shapes.argument(1)->rank >= 3) {
    return {convolution_flops(shapes, static_cast<double>(shapes.output_elements()), shapes.argument(1)),
            KernelKind::matmul, shapes.argument(1)};
  }
  return {};
}

Precision precision_of(const TensorRef* ref) {
  if (ref != nullptr && ref->type == ElementType::fp16) return Precision::fp16;
  if (ref != nullptr && ref->type == ElementType::bf16) return Precision::bf16;
  return Precision::fp32;
}

}  // namespace

Bytes traffic_of(const ExecutionTrace& trace, const Storages& storages, const CallNode& node,
                 std::span<const StorageUse> uses) {
  Bytes bytes = 0;
  Bytes written = 0;
  for (const StorageUse& use : uses) {
    if (use.ref == none) continue;
    const Bytes touched = std::min(trace.refs[use.ref].bytes(), storages.storages[use.storage].bytes);
    if (use.write) written += touched;
    if (use.write) bytes += touched;
    if (use.read) bytes += touched;
  }
  if (looks_up(trace.name(node))) {
    for (const StorageUse& use : uses) {
      if (use.ref == none || !use.read || use.write || trace.refs[use.ref].argument != 0) continue;
      const Bytes table = std::min(trace.refs[use.ref].bytes(), storages.storages[use.storage].bytes);
      bytes -= table - std::min(table, written);
    }
  }
  return bytes;
}

OpCost cost_of(const ExecutionTrace& trace, const Storages& storages, const CallOp& op) {
  const CallNode& node = trace.nodes[op.node];
  OpCost cost;
  cost.bytes = traffic_of(trace, storages, node, op.uses);
  const Arithmetic arithmetic = arithmetic_of(trace, node);
  if (arithmetic.flops > 0) {
    cost.kind = arithmetic.kind;
    cost.flops = static_cast<std::uint64_t>(std::min(arithmetic.flops, most_flops));
    cost.precision = precision_of(arithmetic.operand);
  }
  return cost;
}

}  // namespace tencache
