// The one shape of an answer: a struct whose members are described once (Boost.Describe). From the description follow
// its JSON, the reading of that JSON and its schema.
//
// A member's name is its key, and its unit stands at the end of it (`iteration_seconds`, `peak_bytes`). Types: bool,
// whole numbers, double (null where it is not finite), std::string, TextOrNull, ObjectText, enums that have names
// (core/enum_names.h) or are described, by name, std::optional (null where empty), Absent (no key where empty),
// std::vector, std::pair (a list of two), Named (an object whose keys are names of tiers, links, …), EnumMap (an object
// with a key for each value), Json (anything), described structs.
#pragma once

#include <array>
#include <boost/describe.hpp>
#include <boost/mp11.hpp>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "answers/json.h"
#include "core/enum_map.h"
#include "core/text.h"

// After the struct, in its namespace: its members in the order in which JSON has them. Where it has not always all of
// them, bool has_member(const Struct&, std::string_view name) says so; a Struct as it is made has what JSON always has.
#define TENCACHE_ANSWER(Struct, ...) BOOST_DESCRIBE_STRUCT(Struct, (), (__VA_ARGS__))

namespace tencache {

// A member that the JSON does not have where it is empty.
template <typename T>
struct Absent : std::optional<T> {
  using std::optional<T>::optional;
};

// By name, in the order of writing.
template <typename T>
using Named = std::vector<std::pair<std::string, T>>;

// Of a type there are only tables and functions of a line here: what walks over them is compiled once (described.cpp).
namespace described {

template <typename T>
concept Enum = NamedEnum<T> || boost::describe::has_describe_enumerators<T>::value;

struct EnumValue {
  std::int64_t value;
  std::string_view name;
};

// In their order.
template <Enum T>
inline constexpr auto enum_values_of = [] {
  if constexpr (NamedEnum<T>) {
    std::array<EnumValue, enum_texts<T>.size() - first_to_name<T>> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t value = first_to_name<T> + i;
      values[i] = {static_cast<std::int64_t>(value), enum_texts<T>[value]};
    }
    return values;
  } else {
    std::array<EnumValue, boost::mp11::mp_size<boost::describe::describe_enumerators<T>>::value> values{};
    std::size_t i = 0;
    boost::mp11::mp_for_each<boost::describe::describe_enumerators<T>>([&](auto one) {
      values[i++] = {static_cast<std::int64_t>(one.value), one.name};
    });
    return values;
  }
}();

// f(value, name) of each value of the enum.
template <Enum T, typename F>
void for_each_value(F f) {
  for (const EnumValue& one : enum_values_of<T>) f(static_cast<T>(one.value), std::string(one.name));
}

std::string name_of_value(std::span<const EnumValue> values, std::int64_t wanted);  // "" where there is none
std::optional<std::int64_t> value_of_name(std::span<const EnumValue> values, std::string_view wanted);

struct Type;

struct Member {
  const char* name;
  const Type* type;
  void* (*of)(void* whole);
};

// What a value consists of, and how one gets at it.
struct Type {
  enum class Kind : std::uint8_t {
    any,           // Json
    boolean,       // bool
    natural,       // unsigned numbers
    integer,       // signed ones
    number,        // floating-point ones
    text,          // std::string
    text_or_null,  // TextOrNull
    object_text,   // ObjectText
    enumeration,   // an Enum
    optional,      // std::optional: an item or none
    absent,        // Absent, the same
    pair,          // two items
    list,          // std::vector
    named,         // Named
    enum_map,      // EnumMap: an item for each name
    bare,          // what its one member is
    object         // members by name
  };
  Kind kind;
  Json (*write)(const void* value) = nullptr;             // of bools and numbers
  void (*read)(const Json& json, void* value) = nullptr;  // the same; the type of `json` fits
  std::span<const EnumValue> values = {};                 // of an enum, and of the map of one
  std::int64_t (*get)(const void* value) = nullptr;       // of an enum
  void (*set)(void* value, std::int64_t to) = nullptr;    // the same
  const Type* item = nullptr;                             // of what has items, all of one type
  std::size_t (*size)(const void* value) = nullptr;       // how many
  void* (*at)(void* value, std::size_t index) = nullptr;  // one of them; of a map by its enum's value
  const std::string& (*name)(const void* value, std::size_t index) = nullptr;  // the name of one
  void (*clear)(void* value) = nullptr;                                        // where there may be none
  void* (*add)(void* value, const std::string& name) = nullptr;                // one more
  std::span<const Member> members = {};
  bool (*has)(const void* value, std::string_view name) = nullptr;  // that member; null: all
  bool (*has_always)(std::string_view name) = nullptr;              // the same
};

template <typename T>
T& as(void* value) {
  return *static_cast<T*>(value);
}
template <typename T>
const T& as(const void* value) {
  return *static_cast<const T*>(value);
}

// `type`: the table of T.
template <typename T>
struct TypeOf;

template <typename T, Type::Kind of>
struct Plain {
  static constexpr Type type = {.kind = of,
                                .write = [](const void* value) { return Json(as<T>(value)); },
                                .read = [](const Json& json, void* value) { as<T>(value) = json.get<T>(); }};
};
template <>
struct TypeOf<bool> : Plain<bool, Type::Kind::boolean> {};
template <std::unsigned_integral T>
struct TypeOf<T> : Plain<T, Type::Kind::natural> {};
template <std::signed_integral T>
struct TypeOf<T> : Plain<T, Type::Kind::integer> {};
template <std::floating_point T>
struct TypeOf<T> : Plain<T, Type::Kind::number> {};
template <>
struct TypeOf<Json> {
  static constexpr Type type = {.kind = Type::Kind::any};
};
template <>
struct TypeOf<std::string> {
  static constexpr Type type = {.kind = Type::Kind::text};
};
template <>
struct TypeOf<TextOrNull> {
  static constexpr Type type = {.kind = Type::Kind::text_or_null};
};
template <>
struct TypeOf<ObjectText> {
  static constexpr Type type = {.kind = Type::Kind::object_text};
};

template <Enum T>
struct TypeOf<T> {
  static constexpr Type type = {.kind = Type::Kind::enumeration,
                                .values = enum_values_of<T>,
                                .get = [](const void* value) { return static_cast<std::int64_t>(as<T>(value)); },
                                .set = [](void* value, std::int64_t to) { as<T>(value) = static_cast<T>(to); }};
};

template <typename Optional, Type::Kind of>
struct Maybe {
  static constexpr Type type = {
      .kind = of,
      .item = &TypeOf<typename Optional::value_type>::type,
      .size = [](const void* value) { return std::size_t{as<Optional>(value).has_value()}; },
      .at = [](void* value, std::size_t) -> void* { return &*as<Optional>(value); },
      .clear = [](void* value) { as<Optional>(value).reset(); },
      .add = [](void* value, const std::string&) -> void* { return &as<Optional>(value).emplace(); }};
};
template <typename T>
struct TypeOf<std::optional<T>> : Maybe<std::optional<T>, Type::Kind::optional> {};
template <typename T>
struct TypeOf<Absent<T>> : Maybe<Absent<T>, Type::Kind::absent> {};

template <typename T>
struct TypeOf<std::pair<T, T>> {
  using Pair = std::pair<T, T>;
  static constexpr Type type = {.kind = Type::Kind::pair,
                                .item = &TypeOf<T>::type,
                                .size = [](const void*) { return std::size_t{2}; },
                                .at = [](void* value, std::size_t i) -> void* {
                                  return i == 0 ? &as<Pair>(value).first : &as<Pair>(value).second;
                                }};
};
template <typename T>
struct TypeOf<std::vector<T>> {
  using List = std::vector<T>;
  static constexpr Type type = {
      .kind = Type::Kind::list,
      .item = &TypeOf<T>::type,
      .size = [](const void* value) { return as<List>(value).size(); },
      .at = [](void* value, std::size_t i) -> void* { return &as<List>(value)[i]; },
      .clear = [](void* value) { as<List>(value).clear(); },
      .add = [](void* value, const std::string&) -> void* { return &as<List>(value).emplace_back(); }};
};
template <typename T>
struct TypeOf<Named<T>> {
  static constexpr Type type = {
      .kind = Type::Kind::named,
      .item = &TypeOf<T>::type,
      .size = [](const void* value) { return as<Named<T>>(value).size(); },
      .at = [](void* value, std::size_t i) -> void* { return &as<Named<T>>(value)[i].second; },
      .name = [](const void* value, std::size_t i) -> const std::string& { return as<Named<T>>(value)[i].first; },
      .clear = [](void* value) { as<Named<T>>(value).clear(); },
      .add = [](void* value, const std::string& name) -> void* {
        return &as<Named<T>>(value).emplace_back(name, T{}).second;
      }};
};
template <typename Key, typename T>
struct TypeOf<EnumMap<Key, T>> {
  static constexpr Type type = {
      .kind = Type::Kind::enum_map,
      .values = enum_values_of<Key>,
      .item = &TypeOf<T>::type,
      .at = [](void* value, std::size_t i) -> void* { return &as<EnumMap<Key, T>>(value)[static_cast<Key>(i)]; }};
};

template <typename T>
using Members = boost::describe::describe_members<T, boost::describe::mod_public | boost::describe::mod_inherited>;
template <typename T>
concept Struct = boost::describe::has_describe_members<T>::value;
// A struct of one member that is that member in JSON: `static constexpr bool is_bare = true`.
template <typename T>
concept Bare = Struct<T> && requires {
  requires T::is_bare;
};

template <Struct T>
struct TypeOf<T> {
  template <typename Description>
  static constexpr Member member(Description) {
    using Value = std::remove_cvref_t<decltype(std::declval<T>().*Description::pointer)>;
    return {Description::name, &TypeOf<Value>::type,
            [](void* whole) -> void* { return &(as<T>(whole).*Description::pointer); }};
  }
  static constexpr auto members = []<typename... Each>(boost::mp11::mp_list<Each...>) {
    return std::array<Member, sizeof...(Each)>{member(Each())...};
  }(boost::mp11::mp_rename<Members<T>, boost::mp11::mp_list>());
  static constexpr Type make() {
    Type made = {.kind = Bare<T> ? Type::Kind::bare : Type::Kind::object, .members = members};
    if constexpr (requires(const T& value) { has_member(value, std::string_view()); }) {
      made.has = [](const void* value, std::string_view name) { return has_member(as<T>(value), name); };
      made.has_always = [](std::string_view name) { return has_member(T(), name); };
    }
    return made;
  }
  static constexpr Type type = make();
};

// What to_json_of, read_answer and schema_of do, of a value of this type.
Json write(const Type& type, const void* value);
void read(const Type& type, const Json& json, void* value, const std::string& path);
Json schema(const Type& type);

}  // namespace described

template <described::Enum T>
std::string name_of(T value) {
  return described::name_of_value(described::enum_values_of<T>, static_cast<std::int64_t>(value));
}
template <described::Enum T>
std::optional<T> value_named(std::string_view wanted) {
  const auto found = described::value_of_name(described::enum_values_of<T>, wanted);
  return found ? std::optional(static_cast<T>(*found)) : std::nullopt;
}

template <typename T>
Json to_json_of(const T& value) {
  return described::write(described::TypeOf<T>::type, &value);
}

// Members that the document lacks stay as they are; keys that the struct lacks are passed over. `path`: where in the
// document, for the message. Throws Error where a value is not of its type.
template <typename T>
void read_answer(const Json& json, T& value, const std::string& path = "") {
  described::read(described::TypeOf<T>::type, json, &value, path);
}

// JSON Schema (draft 2020-12) of the type.
template <typename T>
Json schema_of() {
  return described::schema(described::TypeOf<T>::type);
}

}  // namespace tencache
