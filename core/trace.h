// A trace: one steady training iteration, cyclic, as ops that read and write tensors.
//
// Tensors and ops are named by their index. Names are interned and accesses stored in one array, so that
// ten million ops stay within a few hundred megabytes. The file format is in traces/trace_file.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace tencache {

using TensorId = std::uint32_t;
using OpIndex = std::uint32_t;
using NameId = std::uint32_t;
// Of a nanosecond, byte or flop count that a file gives, and of the sum of each over a trace: readers refuse more, so
// that sums of a few never overflow 64 bits.
inline constexpr std::uint64_t largest_quantity = std::uint64_t{1} << 61;
inline constexpr std::uint32_t none = 0xffff'ffff;  // "no such id", for every 32-bit id

enum class Role : std::uint8_t { parameter, gradient, activation, optimizer_state, master_parameter, input, workspace };
inline constexpr int role_count = 7;
enum class Phase : std::uint8_t { forward, loss, backward, optimizer };
inline constexpr std::size_t phase_count = 4;
enum class Device : std::uint8_t { gpu, cpu };
enum class DurationSource : std::uint8_t { measured, modelled };

std::string_view to_string(Role role);
std::string_view to_string(Phase phase);
std::string_view to_string(Device device);
std::string_view to_string(DurationSource source);
// nullopt for an unknown name.
std::optional<Role> parse_role(std::string_view text);
std::optional<Phase> parse_phase(std::string_view text);
std::optional<Device> parse_device(std::string_view text);
std::optional<DurationSource> parse_duration_source(std::string_view text);
// "forward, loss, …": for error messages that list the valid names.
std::string role_names();
std::string phase_names();

// Interned strings; ids are dense and in order of first appearance. Id 0 is the empty string. A name takes its text and
// about twenty bytes: ten million ops may each have one of their own.
class NamePool {
 public:
  NamePool() { intern(""); }
  NameId intern(std::string_view text);
  // Valid until the next call of intern.
  std::string_view operator[](NameId id) const {
    return {texts_.data() + begins_[id], static_cast<std::size_t>(begins_[id + 1] - begins_[id])};
  }
  std::size_t size() const { return begins_.size() - 1; }
  void reserve(std::size_t names);

 private:
  static constexpr std::size_t first_slot_count = 64;
  // Open addressing: id in the low half, hash in the high half; an id of `none` is an empty slot.
  void resize_slots(std::size_t count);

  std::string texts_;                     // one after the other
  std::vector<std::uint64_t> begins_{0};  // in texts_; and the end of the last
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(first_slot_count, none);
};

// Texts are put together from names as from strings (the standard library does so from C++26 on).
inline std::string operator+(std::string_view left, std::string_view right) {
  std::string text(left);
  text += right;
  return text;
}

struct Tensor {
  NameId name = 0;
  Bytes bytes = 0;
  Role role = Role::activation;
  bool persistent = false;  // keeps its content from one iteration to the next
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
  std::uint16_t rank = 0;
  Nanoseconds duration_ns = 0;    // on the trace's own device
  Nanoseconds gap_before_ns = 0;  // host time and launch gaps before the op starts
  std::uint64_t flops = 0;
  Bytes bytes = 0;                 // memory traffic of the kernel, 0: unknown
  std::uint64_t first_access = 0;  // into Trace::accesses: reads, then writes
  std::uint32_t read_count = 0;
  std::uint32_t write_count = 0;
};

struct TraceHeader {
  int format_version = 1;
  std::string model;
  std::uint64_t batch = 0;            // 0: unknown
  std::uint64_t sequence_length = 0;  // 0: unknown
  std::string precision;              // "fp32", "bf16", …; empty: unknown
  std::string hardware;               // what the durations were measured on, or modelled for; empty: unknown
  std::string recorded_by;            // how it was made
  // Of a parameter in `precision`: 4 for fp32 and where it is unknown, else 2. Systems that count in elements need it.
  Bytes element_bytes() const { return precision == "fp16" || precision == "bf16" ? 2 : 4; }
  std::uint64_t tokens_per_iteration() const { return batch * sequence_length; }
};

struct Trace {
  TraceHeader header;
  NamePool names;
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  std::vector<TensorId> accesses;

  std::span<const TensorId> reads(const Op& op) const { return {accesses.data() + op.first_access, op.read_count}; }
  std::span<const TensorId> writes(const Op& op) const {
    return {accesses.data() + op.first_access + op.read_count, op.write_count};
  }
  std::string_view name(const Op& op) const { return names[op.name]; }
  std::string_view module(const Op& op) const { return names[op.module]; }
  std::string_view name(const Tensor& tensor) const { return names[tensor.name]; }

  TensorId add_tensor(std::string_view name, Bytes bytes, Role role, bool persistent);
  // Sets the op's access range, in the order given. The ids must exist.
  OpIndex add_op(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes);

  // Throws Error when the trace cannot be run: no ops, a tensor of 0 bytes or above 1 PiB, an id that does not exist,
  // a tensor that is not persistent and is read before any write. `line_of_op`, if given, places the error.
  void validate(const std::string& file = "trace", std::span<const std::uint64_t> line_of_op = {}) const;
};

// A tensor's part in one op, each tensor once: "read and written" is in place.
struct Use {
  TensorId tensor;
  bool read;
  bool write;
};

// The trace as both machines run it, made by traces/lower.h from a trace and a policy's requirements.
struct Program {
  Trace trace;
  std::vector<std::string> changes;  // what lowering added or replaced, for the report
};

}  // namespace tencache
