// PyTorch's execution trace (ExecutionTraceObserver) in memory: what was called, by whom, with which tensors.
//
// Schemas 1.0.x (flat: "inputs", "input_shapes", "parent") and 1.1.x (nested: "inputs": {"values", "shapes", "types"},
// "ctrl_deps", from 1.1.1 on with "strides"). A tensor is [tensor_id, storage_id, offset, numel, itemsize, device], in
// elements; both ids stand for addresses and are used again (traces/import/pytorch/storages.h). Inputs are noted when a
// call begins, outputs when it returns. There are no frees and no times.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/trace.h"
#include "traces/generate/gpu_spec.h"
#include "traces/import/pytorch/byte_stream.h"

namespace tencache {

enum class TensorDevice : std::uint8_t { undefined, host, accelerator };
// What the importers distinguish.
enum class ElementType : std::uint8_t { fp32, fp16, bf16, other };

// A tensor as an argument or a result of one call.
struct TensorRef {
  std::uint64_t tensor = 0, storage = 0;
  std::uint64_t offset = 0, numel = 0;  // elements
  std::uint64_t extent = 0;             // bytes of the storage up to the tensor's last element, as far as known
  std::uint32_t first_size = 0;         // in ExecutionTrace::sizes
  std::uint16_t rank = 0;
  std::uint16_t argument = 0;  // position in the call
  std::uint32_t position = 0;  // in a list of tensors
  std::uint8_t item_bytes = 0;
  TensorDevice device = TensorDevice::undefined;
  ElementType type = ElementType::other;
  bool in_list = false;
  bool exact_extent = false;  // from strides

  Bytes bytes() const { return numel * item_bytes; }
};

struct CallNode {
  std::uint64_t id = 0;
  std::uint32_t parent = none;  // index; none: a root
  std::uint32_t last = 0;       // highest index within its subtree, itself included
  std::uint64_t rf_id = 0;      // of the record function; 0: none
  std::int64_t sequence = -1;   // of autograd: a forward op has that of its backward function; -1: none
  std::uint32_t thread = 0;
  std::uint32_t scope = 0;  // RecordScope: 0 function, 1 backward function, 7 user's annotation
  NameId name = 0, schema = 0;
  bool compiled = false;        // a kernel of torch.compile's ("kernel_backend": "triton"), results among its inputs
  std::uint32_t first_ref = 0;  // in ExecutionTrace::refs: inputs, then outputs
  std::uint32_t input_count = 0, output_count = 0;
  std::uint32_t true_arguments = 0;  // a bit for each of the first 32 that is true
  std::int64_t duration_ns = -1;     // where the recording has it (Chakra); -1: unknown
};

struct ExecutionTrace {
  std::string file, schema;
  NamePool names;
  std::vector<CallNode> nodes;  // in the order in which the calls began
  std::vector<TensorRef> refs;
  std::vector<std::uint64_t> sizes;  // shapes
  std::uint64_t orphans = 0;         // nodes whose parent is not in the file

  std::string_view name(const CallNode& node) const { return names[node.name]; }
  std::string_view schema_of(const CallNode& node) const { return names[node.schema]; }
  std::span<const TensorRef> inputs(const CallNode& node) const {
    return {refs.data() + node.first_ref, node.input_count};
  }
  std::span<const TensorRef> outputs(const CallNode& node) const {
    return {refs.data() + node.first_ref + node.input_count, node.output_count};
  }
  std::span<const std::uint64_t> shape(const TensorRef& ref) const { return {sizes.data() + ref.first_size, ref.rank}; }
};

// Throws Error that names the file, the line and the node.
ExecutionTrace read_execution_trace(const std::string& path, const ImportProgress& progress = {});

// Puts the nodes into order and links them. `parent_ids` are by node. Throws Error for an id that stands twice, and for
// a node that does not come after its parent.
void link_nodes(ExecutionTrace& trace, const std::vector<std::uint64_t>& parent_ids);

// Of a type as the recording calls it, "Tensor(c10::Half)".
ElementType element_type(std::string_view text);

// Limits on what a tensor may claim; sums of a few stay within 64 bits.
inline constexpr std::uint64_t largest_extent = std::uint64_t{1} << 50;

}  // namespace tencache
