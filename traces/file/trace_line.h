// The keys of a trace's lines, and reading one line: what trace_file.cpp and trace_writer.cpp share, for no one else.
#pragma once

#include <simdjson.h>

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/trace.h"

namespace tencache {

inline constexpr int newest_trace_version = 3;

// What version 3 says itself: provenance by the sentence that the headers of older versions have, the only place where
// it is read.
Provenance provenance_of_sentence(std::string_view recorded_by);

// Version 1 has those before these.
inline bool is_of_version_1(Role role) { return role < Role::kv_cache; }
inline bool is_of_version_1(Phase phase) { return phase < Phase::prefill; }

// The keys of a kind of line, in the order the writer gives them.
template <std::size_t n>
struct TraceKeys {
  static_assert(n <= 32);
  std::array<std::string_view, n> names;
  std::uint32_t required;       // a bit per key
  std::uint32_t version_2 = 0;  // those that came with that version
  std::uint32_t version_3 = 0;

  std::uint32_t later_than(int version) const { return (version < 2 ? version_2 : 0) | (version < 3 ? version_3 : 0); }

  std::string list() const {
    std::string all;
    for (std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
    return all;
  }
};

namespace header_key {
enum : std::size_t {
  kind,
  format_version,
  model,
  batch,
  sequence_length,
  precision,
  hardware,
  made_by,
  made_with,
  recorded_by,
  stack,
  tensor_count,
  op_count,
  count
};
}
inline constexpr TraceKeys<header_key::count> header_keys{
    {"kind", "format_version", "model", "batch", "sequence_length", "precision", "hardware", "made_by", "made_with",
     "recorded_by", "stack", "tensor_count", "op_count"},
    1u << header_key::kind | 1u << header_key::format_version,
    1u << header_key::stack,
    1u << header_key::made_by | 1u << header_key::made_with};

namespace tensor_key {
enum : std::size_t { kind, id, name, bytes, role, persistent, stored_bytes, count };
}
inline constexpr TraceKeys<tensor_key::count> tensor_keys{
    {"kind", "id", "name", "bytes", "role", "persistent", "stored_bytes"}, 0b111111, 1u << tensor_key::stored_bytes};

namespace op_key {
enum : std::size_t {
  kind,
  id,
  name,
  phase,
  device,
  module,
  duration_ns,
  duration_source,
  gap_before_ns,
  flops,
  bytes,
  group,
  placeable,
  reorderable,
  stream,
  rank,
  rendezvous,
  kernel,
  shape,
  causal,
  attention_kernel,
  unaligned,
  fp8,
  launches,
  step,
  revealed_by,
  cpu_duration_ns,
  reads,
  writes,
  count
};
inline constexpr std::uint32_t of_kernel =
    1u << kernel | 1u << shape | 1u << causal | 1u << attention_kernel | 1u << unaligned | 1u << fp8 | 1u << launches;
inline constexpr std::uint32_t of_detail = 1u << step | 1u << revealed_by | 1u << cpu_duration_ns;
}  // namespace op_key
inline constexpr TraceKeys<op_key::count> op_keys{
    {"kind",
     "id",
     "name",
     "phase",
     "device",
     "module",
     "duration_ns",
     "duration_source",
     "gap_before_ns",
     "flops",
     "bytes",
     "group",
     "placeable",
     "reorderable",
     "stream",
     "rank",
     "rendezvous",
     "kernel",
     "shape",
     "causal",
     "attention_kernel",
     "unaligned",
     "fp8",
     "launches",
     "step",
     "revealed_by",
     "cpu_duration_ns",
     "reads",
     "writes"},
    1u << op_key::kind | 1u << op_key::id | 1u << op_key::name | 1u << op_key::phase | 1u << op_key::device |
        1u << op_key::duration_ns | 1u << op_key::duration_source | 1u << op_key::reads | 1u << op_key::writes,
    op_key::of_kernel | op_key::of_detail | 1u << op_key::stream};

// Values of the line that is read, checked; every error is an Error that names file and line.
class TraceLine {
 public:
  using Value = simdjson::ondemand::value;
  using Object = simdjson::ondemand::object;

  explicit TraceLine(const std::string& file) : file_(file) {}

  // Set by the reader: the line, from 1, and the format version as soon as the header has said it.
  std::uint64_t number_in_file = 0;
  int version = newest_trace_version;

  [[noreturn]] void fail(std::string message) const;
  // What the file has instead of the right value. Damaged text is reported as such.
  [[noreturn]] void fail_value(Value& value, std::string_view key, const std::string& wanted) const;
  // `what`, for instance "key 'kernel'", in a file of a version before `needed`.
  [[noreturn]] void fail_version(const std::string& what, int needed) const;
  void check(simdjson::error_code error) const {
    if (error != simdjson::SUCCESS) fail_json(error);
  }

  std::string_view text(Value& value, std::string_view key) const;
  std::uint64_t number(Value& value, std::string_view key, std::uint64_t smallest, std::uint64_t largest) const;
  bool truth(Value& value, std::string_view key) const;

  template <typename Enum>
  Enum choice(Value& value, std::string_view key) const {
    const std::string_view name = text(value, key);
    const std::optional<Enum> result = parse_enum<Enum>(name);
    if (!result)
      fail("unknown " + std::string(key) + " '" + std::string(name) + "'; it is one of " + enum_names<Enum>());
    return *result;
  }

  // The same of roles and phases, some of which version 1 does not have.
  template <typename Enum>
  Enum versioned_choice(Value& value, std::string_view key) const {
    const Enum result = choice<Enum>(value, key);
    if (version == 1 && !is_of_version_1(result)) {
      fail_version(std::string(key) + " '" + std::string(to_string(result)) + "'", 2);
    }
    return result;
  }

  // Calls read(key index, value) for each key of the object; unknown, repeated and missing keys are errors, and so are
  // those that the file's version does not have. Returns a bit per key that is there.
  template <std::size_t n, typename Read>
  std::uint32_t each_field(Object& object, const TraceKeys<n>& keys, Read read) const {
    std::uint32_t seen = 0;
    std::size_t expected = 0;  // keys mostly come in the writer's order, which leaves some out
    for (auto next : object) {
      simdjson::ondemand::field field;
      check(std::move(next).get(field));
      std::size_t key = expected;
      while (key < n && !field.key().unsafe_is_equal(keys.names[key])) ++key;
      if (key == n) key = find_key(field, keys);
      if (seen >> key & 1) fail("the key '" + std::string(keys.names[key]) + "' stands twice");
      seen |= 1u << key;
      if (version < newest_trace_version) check_versions(keys, seen);
      expected = key + 1;
      read(key, field.value());
    }
    if (version < newest_trace_version) check_versions(keys, seen);  // some stood before the version
    if (const std::uint32_t missing = keys.required & ~seen) {
      std::string names;
      for (std::size_t key = 0; key < n; ++key) {
        if (missing >> key & 1) names += (names.empty() ? "'" : ", '") + std::string(keys.names[key]) + "'";
      }
      fail("missing " + names + "; the keys are " + keys.list());
    }
    return seen;
  }

 private:
  [[noreturn]] void fail_json(simdjson::error_code error) const;

  template <std::size_t n>
  void check_versions(const TraceKeys<n>& keys, std::uint32_t seen) const {
    const std::uint32_t later = seen & keys.later_than(version);
    if (later == 0) return;
    const auto key = static_cast<std::size_t>(std::bit_width(later)) - 1;
    fail_version("key '" + std::string(keys.names[key]) + "'", (keys.version_3 >> key & 1) != 0 ? 3 : 2);
  }

  template <std::size_t n>
  std::size_t find_key(simdjson::ondemand::field& field, const TraceKeys<n>& keys) const {
    std::string_view name;
    // Through a result, as a field's own function asks for another argument in some versions of simdjson (3.6).
    using Result = simdjson::simdjson_result<simdjson::ondemand::field>;
    check(Result(simdjson::ondemand::field(field)).unescaped_key().get(name));
    for (std::size_t key = 0; key < n; ++key) {
      if (keys.names[key] == name) return key;
    }
    fail("unknown key '" + std::string(name) + "'; the keys are " + keys.list());
  }

  const std::string& file_;
};

}  // namespace tencache
