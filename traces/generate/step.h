// Inside the generator: the parameters of one rank, and the hand that writes its ops.
#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/recompute.h"
#include "traces/generate/generate.h"

namespace tencache::generator {

using Count = std::uint64_t;

// One parameter as one rank has it.
struct Parameter {
  std::string name;
  std::string module;
  std::int64_t layer = -1;
  Count rows = 1, columns = 1;  // of this rank's slice; vectors have one column
  bool trainable = true;
  const Packing* packing = nullptr;             // that it is stored in; null: in the model's precision
  bool of_expert = false;                       // that tokens are routed to
  Count expert = 0;                             // then: its number in the layer
  bool split = false;                           // over the tensor-parallel ranks: this is one slice
  Count first_element = 0, shard_elements = 0;  // what this rank keeps of it under ZeRO; all of it without
  std::int32_t group = 0;                       // sub-group of the optimizer step

  TensorId stored = none;          // persistent: the whole, or under ZeRO-3 the shard; none where the shard is empty
  TensorId value = none;           // what kernels read: `stored`, or the buffer that it was gathered into
  TensorId gradient = none;        // of the whole; none until the first op of a backward pass writes it
  TensorId gradient_shard = none;  // under ZeRO: the part that this rank's update reads

  Count elements() const { return rows * columns; }
};

// What an op costs, and where. `bytes` 0: the sum over its accesses. On the CPU its time depends on the machine: it gets
// none here (traces/transform/lower.h).
struct Cost {
  Kernel kernel{.kind = KernelKind::elementwise};
  Count flops = 0;
  Bytes bytes = 0;
  Device device = Device::gpu;
  Bytes packed = 0;  // of a product whose weight is packed and read as it is: the weight's bytes
};

// `batch` products of m × k by k × n. `contiguous`: the lengths of the rows in memory of all three matrices; tensor
// cores want multiples of 16 bytes.
inline Cost matmul(Count batch, Count m, Count n, Count k, std::initializer_list<Count> contiguous) {
  Cost cost{.kernel = {.kind = KernelKind::matmul, .shape = {batch, m, n, k}}, .flops = 2 * batch * m * n * k};
  constexpr Count numbers = 8;  // of 16 bits
  for (const Count row : contiguous) cost.kernel.unaligned = cost.kernel.unaligned || row % numbers != 0;
  return cost;
}

// A module's name with its id in the trace.
struct Module {
  std::string name;
  NameId id = 0;
};

// Writes tensors and ops of one rank into the trace.
class Step {
 public:
  Step(Trace& trace, const GenerateOptions& options, const KernelModel& model, std::uint16_t rank)
      : options(options),
        trace_(trace),
        model_(model),
        rank_(rank),
        element_(bytes_of(options.precision)),
        gradient_element_(bytes_of(options.gradient_precision.value_or(options.precision))),
        keep_gradients_(options.keep_gradients) {}

  Module module(const std::string& name) { return {name, trace_.names.intern(name)}; }
  TensorId tensor(const Module& module, std::string_view suffix, Bytes bytes, Role role);
  TensorId persistent(std::string_view name, Bytes bytes, Role role) {
    return trace_.add_tensor(name, bytes, role, true);
  }
  void set_profiled_uses(TensorId expert, Count tokens) {
    if (expert != none) trace_.tensors[expert].profiled_uses = static_cast<std::uint16_t>(tokens);
  }
  // In the precision of the model.
  TensorId activation(const Module& module, std::string_view suffix, Count elements) {
    return tensor(module, suffix, elements * element_, Role::activation);
  }
  // The gradient of an activation.
  TensorId gradient(const Module& module, std::string_view suffix, Count elements) {
    return tensor(module, suffix, elements * element_, Role::gradient);
  }
  // The gradient of a parameter, to write (and to read, if it `accumulates`). The parameter is trainable.
  struct GradientUse {
    TensorId tensor = none;
    TensorId read = none;  // the same tensor where it accumulates
  };
  GradientUse gradient_of(Parameter& parameter);

  // Ids that are `none` are left out, and so is the second of two equal ones.
  void op(std::string_view name, const Module& module, Cost cost, std::initializer_list<TensorId> reads,
          std::initializer_list<TensorId> writes);
  // The same with as many tensors as there are; none may be `none`.
  void op(std::string_view name, const Module& module, Cost cost, std::span<const TensorId> reads,
          std::span<const TensorId> writes);
  // The same for a finished op: only rank, phase and accesses are set here.
  void op(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes);
  // An op of the GPU with its duration.
  Op kernel(std::string_view name, const Module& module, const Cost& cost);
  NameId intern(std::string_view text) { return trace_.names.intern(text); }
  Bytes bytes(TensorId id) const { return id == none ? 0 : trace_.tensors[id].bytes; }
  const KernelModel& model() const { return model_; }
  Bytes element_bytes() const { return element_; }
  Bytes gradient_element_bytes() const { return gradient_element_; }

  // Ops from now on belong to this step of a generation: 0, the prompt; then one for each token after the first.
  void begin_step(std::uint32_t number) {
    phase = number == 0 ? Phase::prefill : Phase::decode;
    detail_ = trace_.add_detail({.step = number});
    placeable = options.generation->placeable == Placeable::all;
  }

  void choose(RecomputeChoice choice) { trace_.choices.push_back(std::move(choice)); }

  OpIndex next_op() const { return static_cast<OpIndex>(trace_.ops.size()); }
  OpIndex last_op() const { return static_cast<OpIndex>(trace_.ops.size() - 1); }
  // That the ops from now on run was decided by `op`; until end_revealed().
  void begin_revealed(OpIndex op) {
    OpDetail detail = trace_.details[detail_];
    detail.revealed_by = op;
    before_revealed_ = detail_;
    detail_ = trace_.add_detail(detail);
  }
  void end_revealed() { detail_ = before_revealed_; }

  const GenerateOptions& options;
  Phase phase = Phase::forward;
  bool placeable = false;           // ops from now on
  bool grouped = false;             // kernels from now on are parts of one that has started
  std::vector<LayerPasses> passes;  // of the layers that may be recomputed

 private:
  Op started(Op op, const Cost& cost) const;

  Trace& trace_;
  const KernelModel& model_;
  std::uint16_t rank_;
  Bytes element_, gradient_element_;
  bool keep_gradients_;
  std::uint32_t detail_ = 0;           // of ops
  std::uint32_t before_revealed_ = 0;  // `detail_` from end_revealed() on
  // By kernel, and the bytes of a packed weight or 0.
  std::map<std::pair<KernelId, Bytes>, Nanoseconds> matmul_ns_;
  std::string name_;  // reused
  std::vector<TensorId> reads_, writes_;
};

}  // namespace tencache::generator
