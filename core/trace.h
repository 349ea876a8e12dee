// A trace: one steady training iteration, cyclic, as ops that read and write tensors.
//
// Tensors and ops are named by their index. Names are interned and accesses stored in one array, so that
// ten million ops stay within two gigabytes. The file format is in traces/file/trace_file.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/enum_names.h"
#include "core/units.h"

namespace tencache {

using TensorId = std::uint32_t;
using OpIndex = std::uint32_t;
using NameId = std::uint32_t;
// Of a nanosecond, byte or flop count that a file gives, and of the sum of each over a trace: readers refuse more, so
// that sums of a few never overflow 64 bits.
inline constexpr std::uint64_t largest_quantity = std::uint64_t{1} << 61;
inline constexpr std::uint32_t none = 0xffff'ffff;  // "no such id", for every 32-bit id

enum class Role : std::uint8_t {
  parameter,
  gradient,
  activation,
  optimizer_state,
  master_parameter,
  input,
  workspace,
  kv_cache,  // keys and values of earlier tokens
  expert     // a parameter that only some tokens use
};
inline constexpr int role_count = 9;
template <>
inline constexpr auto enum_texts<Role> = std::to_array<std::string_view>({"parameter", "gradient", "activation",
                                                                          "optimizer_state", "master_parameter",
                                                                          "input", "workspace", "kv_cache", "expert"});
enum class Phase : std::uint8_t { forward, loss, backward, optimizer, prefill, decode };
inline constexpr std::size_t phase_count = 6;
template <>
inline constexpr auto enum_texts<Phase> = std::to_array<std::string_view>({"forward", "loss", "backward", "optimizer",
                                                                           "prefill", "decode"});
enum class Device : std::uint8_t { gpu, cpu };
template <>
inline constexpr auto enum_texts<Device> = std::to_array<std::string_view>({"gpu", "cpu"});
enum class DurationSource : std::uint8_t { measured, modelled };
template <>
inline constexpr auto enum_texts<DurationSource> = std::to_array<std::string_view>({"measured", "modelled"});

// What a kernel computes, as far as its time depends on it (traces/generate/kernel_model.h).
enum class KernelKind : std::uint8_t {
  unknown,
  matmul,              // shape: batch, m, n, k
  attention,           // fused; shape: batch, heads, key-value heads, queries, keys, head dimension
  attention_backward,  // the same
  elementwise,         // contiguous in, contiguous out
  norm,                // a row at a time: layer norm, RMS norm, softmax
  norm_backward,       // of PyTorch's own layer norm, whose sums over rows are slow
  reduction,           // over rows: gradients of biases
  copy,                // with a change of layout: transposes, concatenation
  gather,              // embeddings and their gradients
  optimizer,           // updates of parameters, many tensors at once
  collective           // between ranks; shape: how many
};
inline constexpr std::size_t kernel_kind_count = 12;
template <>
inline constexpr auto enum_texts<KernelKind> =
    std::to_array<std::string_view>({"unknown", "matmul", "attention", "attention_backward", "elementwise", "norm",
                                     "norm_backward", "reduction", "copy", "gather", "optimizer", "collective"});
template <>
inline constexpr std::size_t first_to_name<KernelKind> = 1;
// The generation of a fused attention kernel; its share of the peak differs by more than two.
enum class AttentionKernel : std::uint8_t { unspecified, flash1, flash2, flash3, cudnn };
inline constexpr std::size_t attention_kernel_count = 5;
template <>
inline constexpr auto enum_texts<AttentionKernel> = std::to_array<std::string_view>({"", "flash1", "flash2", "flash3",
                                                                                     "cudnn"});
template <>
inline constexpr std::size_t first_to_name<AttentionKernel> = 1;

// How many numbers the shape of a kernel of this kind has; 0: it has none.
std::size_t shape_size(KernelKind kind);

// Interned strings; ids are dense and in order of first appearance. Id 0 is the empty string. A name takes its text and
// about twenty bytes, once settled four: ten million ops may each have one of their own.
class NamePool {
 public:
  NamePool() {
    add_begin();
    intern("");
  }
  NameId intern(std::string_view text);
  // Valid until the next call of intern.
  std::string_view operator[](NameId id) const {
    const std::uint64_t begin = begin_of(id);
    return {texts_.data() + begin, static_cast<std::size_t>(begin_of(id + std::size_t{1}) - begin)};
  }
  std::size_t size() const { return begins_.size() - 1; }
  void reserve(std::size_t names);
  // No more names are expected: gives up what finds them by their text, until the next call of intern makes it anew, in
  // time linear in all texts.
  void settle() { std::vector<std::uint64_t>().swap(slots_); }

 private:
  static constexpr std::size_t first_slot_count = 64;
  static constexpr std::size_t block_bits = 16;

  std::uint64_t begin_of(std::size_t id) const { return blocks_[id >> block_bits] + begins_[id]; }
  void add_begin();
  // So many slots, or twice as many, and so on, until `names` fit.
  void index(std::size_t slots, std::size_t names);

  std::string texts_;                  // one after the other
  std::vector<std::uint64_t> blocks_;  // where the texts of 2^block_bits names in a row begin in texts_
  std::vector<std::uint32_t> begins_;  // in the texts of the block; and the end of the last
  // Open addressing: id in the low half, hash in the high half; an id of `none` is an empty slot. Settled: empty.
  std::vector<std::uint64_t> slots_;
};

// Texts are put together from names as from strings (the standard library does so from C++26 on).
inline std::string operator+(std::string_view left, std::string_view right) {
  std::string text(left);
  text += right;
  return text;
}

struct Tensor {
  NameId name = 0;
  Role role = Role::activation;
  bool persistent = false;  // keeps its content from one iteration to the next
  // Of an expert: how many tokens of other requests chose it, in a profile made before; 0: none, or there is no such.
  std::uint16_t profiled_uses = 0;
  Bytes bytes = 0;
  Bytes stored_bytes = 0;  // in tiers of other kinds than the GPU's, where it is kept in another format; 0: `bytes`

  // The fewer of the two.
  Bytes least_bytes() const { return stored_bytes == 0 || stored_bytes > bytes ? bytes : stored_bytes; }
};

// What an op launches. Few ops differ in it, so that each distinct one stands once in Trace::kernels.
struct Kernel {
  KernelKind kind = KernelKind::unknown;
  AttentionKernel attention = AttentionKernel::unspecified;
  bool causal = false;     // attention
  bool unaligned = false;  // matmul: rows that do not begin at multiples of 16 bytes, which tensor cores read slowly
  bool fp8 = false;        // matmul: both operands in fp8, the result in 16 bits, whatever the trace's precision
  std::uint32_t launches = 1;  // kernels one after the other, whose traffic Op::bytes sums up
  std::array<std::uint64_t, 6> shape{};

  auto operator<=>(const Kernel&) const = default;
};
inline constexpr std::uint64_t largest_shape_number = std::uint64_t{1} << 40;
inline bool is_attention(KernelKind kind) {
  return kind == KernelKind::attention || kind == KernelKind::attention_backward;
}
using KernelId = std::uint32_t;

// Distinct kernels; ids are dense and in order of first appearance. Id 0 is a kernel of unknown kind.
class KernelPool {
 public:
  KernelPool() { intern({}); }
  KernelId intern(const Kernel& kernel);
  const Kernel& operator[](KernelId id) const { return kernels_[id]; }
  std::size_t size() const { return kernels_.size(); }

 private:
  std::vector<Kernel> kernels_;
  std::map<Kernel, KernelId> ids_;
  KernelId last_ = 0;  // ops that follow each other often launch the same kernel
};

// What only few traces say of an op: those of inference.
struct OpDetail {
  std::uint32_t step = 0;           // of the generation: which token, from 0
  OpIndex revealed_by = none;       // the op that decides whether this one runs at all (an expert's router)
  Nanoseconds cpu_duration_ns = 0;  // if a policy places it there; 0: not known
  Bytes expert_bytes = 0;           // of a sealed trace (core/reveal.h): weights that it reads of an unknown expert

  bool operator==(const OpDetail&) const = default;
};

// What a GPU op runs on: the compute stream, one op after the other, or the rank's communication stream, beside the ops
// that follow it. They wait for it where they need what it writes, or write what it reads.
enum class OpStream : std::uint8_t { compute, communication };
template <>
inline constexpr auto enum_texts<OpStream> = std::to_array<std::string_view>({"compute", "communication"});

// Which of Trace::accesses are an op's: what it reads, then what it writes, and after these what it frees.
struct AccessRange {
  std::uint32_t first = 0, reads = 0, writes = 0, frees = 0;

  std::uint32_t end() const { return first + reads + writes; }  // of what it accesses
};

struct Op {
  NameId name = 0;
  NameId module = 0;        // 0: none
  NameId rendezvous = 0;    // 0: none; ops of several ranks with the same key start together: collectives, sends
  std::int32_t group = -1;  // sub-group of the optimizer step, -1: none
  Phase phase = Phase::forward;
  Device device = Device::gpu;
  DurationSource duration_source = DurationSource::measured;
  bool placeable = false;    // a policy may choose the device
  bool reorderable = false;  // may run in any order within its group's phase
  OpStream stream = OpStream::compute;
  std::uint16_t rank = 0;
  Nanoseconds duration_ns = 0;    // on the trace's own device
  Nanoseconds gap_before_ns = 0;  // host time and launch gaps before the op starts
  // From the launch of the op before to this one's, without what the host waited: what a host that runs ahead needs for
  // it. 0: not known.
  Nanoseconds issue_ns = 0;
  std::uint64_t flops = 0;
  Bytes bytes = 0;  // memory traffic of the kernel, 0: unknown
  AccessRange accesses;
  KernelId kernel = 0;       // into Trace::kernels
  std::uint32_t detail = 0;  // into Trace::details; 0: none

  // What passes on a host that runs ahead, or does not, before it starts the op.
  Nanoseconds host_ns(bool runs_ahead) const {
    return runs_ahead && device == Device::gpu && issue_ns > 0 ? issue_ns : gap_before_ns;
  }
  // How long its device's compute stream is taken by it.
  Nanoseconds occupied_ns() const { return gap_before_ns + (stream == OpStream::compute ? duration_ns : 0); }
};

// How a trace was made. Decisions read this, never the sentence in TraceHeader::recorded_by.
enum class MadeBy : std::uint8_t { unknown, generated, recorded, imported };
template <>
inline constexpr auto enum_texts<MadeBy> = std::to_array<std::string_view>({"", "generated", "recorded", "imported"});
template <>
inline constexpr std::size_t first_to_name<MadeBy> = 1;

struct Provenance {
  MadeBy made_by = MadeBy::unknown;
  // Options by their names without dashes, and their texts: {"batch", "16"}. A generated trace has all that it takes to
  // generate it again, unless they are not known; others have what is worth knowing.
  std::vector<std::pair<std::string, std::string>> made_with;

  // The text of an option; null: it is not among them.
  const std::string* option(std::string_view name) const;

  auto operator<=>(const Provenance&) const = default;
};

struct TraceHeader {
  std::string model;
  std::uint64_t batch = 0;            // 0: unknown
  std::uint64_t sequence_length = 0;  // 0: unknown
  std::string precision;              // "fp32", "bf16", …; empty: unknown
  std::string hardware;               // what the durations were measured on, or modelled for; empty: unknown
  Provenance provenance;              // what decisions read of it
  std::string recorded_by;            // the same as a sentence, for people
  std::string stack;                  // the software whose kernels the durations are modelled for; empty: unknown
  // Of a parameter in `precision`: 4 for fp32 and where it is unknown, else 2. Systems that count in elements need it.
  Bytes element_bytes() const { return precision == "fp16" || precision == "bf16" ? 2 : 4; }
  std::uint64_t tokens_per_iteration() const { return batch * sequence_length; }
};

// What of a layer's results is still there when its backward pass reads them, from all to least.
enum class RecomputeLevel : std::uint8_t {
  keep,         // all
  elementwise,  // all but what norms and activation functions made
  attention,    // the layer's input, and the results of fused attention
  block         // the layer's input
};
inline constexpr std::size_t recompute_level_count = 4;
template <>
inline constexpr auto enum_texts<RecomputeLevel> = std::to_array<std::string_view>({"keep", "elementwise", "attention",
                                                                                    "block"});

// How else the results of a layer can be had: for the backward pass of a micro-batch all of them; for a new token of a
// generation, a part of the prompts' keys and values. The trace itself keeps them all; core/recompute.h makes the program
// of another level.
struct RecomputeChoice {
  NameId module = 0;  // the layer
  std::uint32_t micro_batch = 0;
  OpIndex before = none;  // the first op of the backward pass, or of the new token's attention
  // By level, rising: ops of the forward pass that run again, with the same times, before `before`. Ops from there on, up
  // to the next choice that could make the same, read what these made. A level without any is not offered, but for
  // `keep`, which has none.
  std::array<std::vector<OpIndex>, recompute_level_count> again;

  bool offers(RecomputeLevel level) const {
    return level == RecomputeLevel::keep || !again[static_cast<std::size_t>(level)].empty();
  }
  bool operator==(const RecomputeChoice&) const = default;
};

struct Trace {
  TraceHeader header;
  NamePool names;
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  std::vector<TensorId> accesses;
  KernelPool kernels;
  std::vector<OpDetail> details{OpDetail{}};
  std::vector<RecomputeChoice> choices;  // in the order of `before`; of traces of one rank

  std::span<const TensorId> reads(const Op& op) const {
    return {accesses.data() + op.accesses.first, op.accesses.reads};
  }
  std::span<const TensorId> writes(const Op& op) const {
    return {accesses.data() + op.accesses.first + op.accesses.reads, op.accesses.writes};
  }
  // What the program holds until this op is over, later than the tensor's last use: gradients until `zero_grad`. A
  // tensor that is not persistent dies once all its uses, and the op that frees it if one does, are over.
  std::span<const TensorId> frees(const Op& op) const {
    return {accesses.data() + op.accesses.end(), op.accesses.frees};
  }
  std::string_view name(const Op& op) const { return names[op.name]; }
  std::string_view module(const Op& op) const { return names[op.module]; }
  std::string_view name(const Tensor& tensor) const { return names[tensor.name]; }
  const Kernel& kernel(const Op& op) const { return kernels[op.kernel]; }
  const OpDetail& detail(const Op& op) const { return details[op.detail]; }

  TensorId add_tensor(std::string_view name, Bytes bytes, Role role, bool persistent);
  // The detail's number for Op::detail; ops that follow each other with the same detail share it.
  std::uint32_t add_detail(const OpDetail& detail);
  // Sets the op's access range, in the order given. The ids must exist.
  OpIndex add_op(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes,
                 std::span<const TensorId> frees = {});

  // By tensor, the op that it dies with if it is not persistent: its last use, or what frees it later. `none`: unused.
  std::vector<OpIndex> deaths() const;

  // Throws Error when the trace cannot be run: no ops, a tensor of 0 bytes or above 1 PiB, an id that does not exist,
  // a tensor that is not persistent and is read before any write, one that is freed twice, before any write, although
  // it is persistent, or by an op of the communication stream, an op that is revealed by itself or a later one, a
  // kernel whose shape or attributes do not go with its kind, a choice that contradicts the tensors' uses.
  // `line_of_op`, if given, places the error; choices come right after the ops.
  void validate(const std::string& file = "trace", std::span<const std::uint64_t> line_of_op = {}) const;
};

// A tensor's part in one op, each tensor once: "read and written" is in place.
struct Use {
  TensorId tensor;
  bool read;
  bool write;
};

// The trace as both machines run it, made by traces/transform/lower.h from a trace and a policy's requirements.
struct Program {
  Trace trace;
  std::vector<std::string> changes;  // what lowering added or replaced, for the report
};

}  // namespace tencache
