#include "traces/import/pytorch/op_cost.h"

#include <algorithm>

#include "traces/import/pytorch/op_kernel.h"

namespace tencache {
namespace {

constexpr double most_flops = 1e18;

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
  std::span<const std::uint64_t> sizes(std::size_t index) const {
    const TensorRef* const ref = argument(static_cast<std::uint16_t>(index));
    return ref == nullptr ? std::span<const std::uint64_t>() : trace_.shape(*ref);
  }

 private:
  const ExecutionTrace& trace_;
  const CallNode& node_;
};

// The argument whose type is that of the arithmetic.
std::uint16_t operand_of(Arithmetic kind) {
  const bool second = kind == Arithmetic::sum_product || kind == Arithmetic::linear ||
                      kind == Arithmetic::convolution || kind == Arithmetic::attention_back;
  return second ? 1 : 0;
}

OpTensor op_tensor(const ExecutionTrace& trace, const TensorRef& ref) {
  OpTensor tensor;
  for (const std::uint64_t size : trace.shape(ref)) tensor.sizes.push_back(static_cast<std::int64_t>(size));
  tensor.element_bytes = ref.item_bytes;
  return tensor;
}

OpKernel find_kernel(const ExecutionTrace& trace, const CallNode& node) {
  const std::string_view name = trace.name(node);
  std::vector<OpTensor> tensors;
  std::vector<OpTensor> first_list;
  std::uint32_t lists = 0;
  std::uint16_t list = 0xffff;
  for (const TensorRef& ref : trace.inputs(node)) {
    if (ref.device == TensorDevice::undefined) continue;
    tensors.push_back(op_tensor(trace, ref));
    if (!ref.in_list) continue;
    if (ref.argument != list) ++lists, list = ref.argument;
    if (lists == 1) first_list.push_back(tensors.back());
  }
  OpKernel kernel = kernel_of(name, tensors);
  if (kernel.kind == "optimizer") kernel.launches = op_kernel::list_launches(lists, first_list);
  kernel.causal =
      kernel.numbers == 6 && causal_argument(name) < 32 && (node.true_arguments >> causal_argument(name) & 1) != 0;
  OpTensor result;
  const auto outputs = trace.outputs(node);
  if (!outputs.empty()) result = op_tensor(trace, outputs.front());
  if (!tensors.empty() && !outputs.empty()) finish_kernel(kernel, name, tensors.front(), result);
  return kernel;
}

Precision precision_of(const TensorRef* ref) {
  if (ref != nullptr && ref->type == ElementType::fp16) return Precision::fp16;
  if (ref != nullptr && ref->type == ElementType::bf16) return Precision::bf16;
  return Precision::fp32;
}

}  // namespace

Kernel kernel_of(const OpKernel& found) {
  Kernel kernel;
  kernel.kind = parse_enum<KernelKind>(found.kind).value_or(KernelKind::unknown);
  const auto too_large = [](std::uint64_t number) { return number > largest_shape_number; };
  if (kernel.kind == KernelKind::unknown || std::ranges::any_of(found.shape, too_large)) return {};
  kernel.shape = found.shape;
  kernel.causal = found.causal;
  kernel.unaligned = found.unaligned;
  kernel.launches = std::max<std::uint32_t>(found.launches, 1);
  kernel.attention = parse_enum<AttentionKernel>(found.attention).value_or(AttentionKernel::unspecified);
  return kernel;
}

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
  const OpKernel found = find_kernel(trace, node);
  cost.kernel = kernel_of(found);
  if (!looks_up(trace.name(node))) {
    cost.bytes = static_cast<Bytes>(std::max(0.0, static_cast<double>(cost.bytes) + found.more_bytes));
  }
  const Arithmetic kind = arithmetic_of(trace.name(node));
  const Shapes shapes(trace, node);
  double flops = flops_of(kind, [&](std::size_t tensor) { return shapes.sizes(tensor); });
  if (kind == Arithmetic::convolution) flops *= static_cast<double>(shapes.output_elements());
  if (kind == Arithmetic::gradients) flops *= (shapes.has_output(0) ? 1 : 0) + (shapes.has_output(1) ? 1 : 0);
  if (flops > 0) {
    cost.flops = static_cast<std::uint64_t>(std::min(flops, most_flops));
    cost.precision = precision_of(shapes.argument(operand_of(kind)));
  }
  return cost;
}

}  // namespace tencache
