// Reading one line of a trace, and its versions: what trace_file.cpp and trace_writer.cpp share, for no one else.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/trace.h"

namespace tencache {

inline constexpr int newest_trace_version = 7;

// What version 3 says itself: provenance by the sentence that the headers of older versions have, the only place where
// it is read.
Provenance provenance_of_sentence(std::string_view recorded_by);

// Version 1 has those before these.
inline bool is_of_version_1(Role role) { return role < Role::kv_cache; }
inline bool is_of_version_1(Phase phase) { return phase < Phase::prefill; }

// All but the first may be left out.
enum class KeySince : std::uint8_t {
  required,
  version_1,
  version_2,
  version_3,
  version_4,
  version_5,
  version_6,
  version_7
};

template <typename Read>
struct TraceKey {
  std::string_view name;
  KeySince since;
  Read read;  // its value
};

// The keys of a kind of line, in the order the writer gives them.
template <typename Key, std::size_t n>
struct TraceKeys {
  static_assert(n <= 32);
  std::array<Key, n> all;
  std::uint32_t required, version_2, version_3, version_4, version_5, version_6, version_7;  // a bit per key

  constexpr TraceKeys(const std::array<Key, n>& keys)
      : all(keys),
        required(bits_of([](const Key& key) { return key.since == KeySince::required; })),
        version_2(bits_of([](const Key& key) { return key.since == KeySince::version_2; })),
        version_3(bits_of([](const Key& key) { return key.since == KeySince::version_3; })),
        version_4(bits_of([](const Key& key) { return key.since == KeySince::version_4; })),
        version_5(bits_of([](const Key& key) { return key.since == KeySince::version_5; })),
        version_6(bits_of([](const Key& key) { return key.since == KeySince::version_6; })),
        version_7(bits_of([](const Key& key) { return key.since == KeySince::version_7; })) {}

  constexpr std::uint32_t bits(std::initializer_list<std::string_view> names) const {
    return bits_of([names](const Key& key) { return std::ranges::find(names, key.name) != names.end(); });
  }
  std::uint32_t later_than(int version) const {
    return (version < 2 ? version_2 : 0) | (version < 3 ? version_3 : 0) | (version < 4 ? version_4 : 0) |
           (version < 5 ? version_5 : 0) | (version < 6 ? version_6 : 0) | (version < 7 ? version_7 : 0);
  }

  std::string list() const {
    std::string names;
    for (const Key& key : all) names += (names.empty() ? "" : ", ") + std::string(key.name);
    return names;
  }

 private:
  template <typename Condition>
  constexpr std::uint32_t bits_of(Condition condition) const {
    std::uint32_t bits = 0;
    for (std::size_t key = 0; key < n; ++key) bits |= condition(all[key]) ? 1u << key : 0;
    return bits;
  }
};

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

  // Calls read(key, value) for each key of the object; unknown, repeated and missing keys are errors, and so are those
  // that the file's version does not have. Returns a bit per key that is there.
  template <typename Key, std::size_t n, typename Read>
  std::uint32_t each_field(Object& object, const TraceKeys<Key, n>& keys, Read read) const {
    std::uint32_t seen = 0;
    std::size_t expected = 0;  // keys mostly come in the writer's order, which leaves some out
    for (auto next : object) {
      simdjson::ondemand::field field;
      check(std::move(next).get(field));
      std::size_t key = expected;
      while (key < n && !field.key().unsafe_is_equal(keys.all[key].name)) ++key;
      if (key == n) key = find_key(field, keys);
      if (seen >> key & 1) fail("the key '" + std::string(keys.all[key].name) + "' stands twice");
      seen |= 1u << key;
      if (version < newest_trace_version) check_versions(keys, seen);
      expected = key + 1;
      read(keys.all[key], field.value());
    }
    if (version < newest_trace_version) check_versions(keys, seen);  // some stood before the version
    if (const std::uint32_t missing = keys.required & ~seen) {
      std::string names;
      for (std::size_t key = 0; key < n; ++key) {
        if (missing >> key & 1) names += (names.empty() ? "'" : ", '") + std::string(keys.all[key].name) + "'";
      }
      fail("missing " + names + "; the keys are " + keys.list());
    }
    return seen;
  }

 private:
  [[noreturn]] void fail_json(simdjson::error_code error) const;

  template <typename Key, std::size_t n>
  void check_versions(const TraceKeys<Key, n>& keys, std::uint32_t seen) const {
    const std::uint32_t later = seen & keys.later_than(version);
    if (later == 0) return;
    const auto key = static_cast<std::size_t>(std::bit_width(later)) - 1;
    const auto is = [key](std::uint32_t of_version) { return (of_version >> key & 1) != 0; };
    const int since = is(keys.version_7)   ? 7
                      : is(keys.version_6) ? 6
                      : is(keys.version_5) ? 5
                      : is(keys.version_4) ? 4
                      : is(keys.version_3) ? 3
                                           : 2;
    fail_version("key '" + std::string(keys.all[key].name) + "'", since);
  }

  template <typename Key, std::size_t n>
  std::size_t find_key(simdjson::ondemand::field& field, const TraceKeys<Key, n>& keys) const {
    std::string_view name;
    // Through a result, as a field's own function asks for another argument in some versions of simdjson (3.6).
    using Result = simdjson::simdjson_result<simdjson::ondemand::field>;
    check(Result(simdjson::ondemand::field(field)).unescaped_key().get(name));
    for (std::size_t key = 0; key < n; ++key) {
      if (keys.all[key].name == name) return key;
    }
    fail("unknown key '" + std::string(name) + "'; the keys are " + keys.list());
  }

  const std::string& file_;
};

}  // namespace tencache
