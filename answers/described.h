// The one shape of an answer: a struct whose members are described once (Boost.Describe). From the description follow
// its JSON, the reading of that JSON and its schema.
//
// A member's name is its key, and its unit stands at the end of it (`iteration_seconds`, `peak_bytes`). Types: bool,
// whole numbers, double (null where it is not finite), std::string, TextOrNull, ObjectText, enums that have names
// (core/enum_names.h) or are described, by name, std::optional (null where empty), Absent (no key where empty),
// std::vector, std::pair (a list of two), Named (an object whose keys are names of tiers, links, …), EnumMap (an object
// with a key for each value), Json (anything), described structs.
#pragma once

#include <fmt/format.h>

#include <boost/describe.hpp>
#include <boost/mp11.hpp>
#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "answers/json.h"
#include "core/enum_map.h"
#include "core/error.h"
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

namespace described {

template <typename T>
using Members = boost::describe::describe_members<T, boost::describe::mod_public | boost::describe::mod_inherited>;
template <typename T>
concept Struct = boost::describe::has_describe_members<T>::value;
// A struct of one member that is that member in JSON: `static constexpr bool is_bare = true`.
template <typename T>
concept Bare = Struct<T> && requires {
  requires T::is_bare;
};
template <typename T>
using BareMember = std::remove_cvref_t<decltype(std::declval<T>().*boost::mp11::mp_first<Members<T>>::pointer)>;
template <typename T>
auto& bare_member(T& value) {
  return value.*boost::mp11::mp_first<Members<std::remove_const_t<T>>>::pointer;
}

template <typename T>
concept Enum = NamedEnum<T> || boost::describe::has_describe_enumerators<T>::value;

template <typename T>
struct Kind {
  static constexpr bool is_optional = false, is_absent = false, is_list = false, is_named = false, is_pair = false,
                        is_enum_map = false;
};
template <typename T>
struct Kind<std::optional<T>> : Kind<void> {
  static constexpr bool is_optional = true;
};
template <typename T>
struct Kind<Absent<T>> : Kind<void> {
  static constexpr bool is_absent = true;
};
template <typename T>
struct Kind<std::vector<T>> : Kind<void> {
  static constexpr bool is_list = true;
};
template <typename T>
struct Kind<std::pair<T, T>> : Kind<void> {
  static constexpr bool is_pair = true;
};
template <typename T>
struct Kind<std::vector<std::pair<std::string, T>>> : Kind<void> {
  static constexpr bool is_named = true;
};
template <typename Key, typename T>
struct Kind<EnumMap<Key, T>> : Kind<void> {
  static constexpr bool is_enum_map = true;
  using Enum = Key;
  using Value = T;
};

// Keys that C++ keeps for itself, such as `default`, are members with `_` behind them.
inline std::string key_of(std::string_view member) {
  if (member.ends_with('_')) member.remove_suffix(1);
  return std::string(member);
}

[[noreturn]] inline void refuse(const std::string& path, const char* wanted) {
  throw Error(fmt::format("{}: is no {}", path.empty() ? "the document" : path, wanted));
}

// f(value, name) of each value of the enum.
template <Enum T, typename F>
void for_each_value(F f) {
  if constexpr (NamedEnum<T>) {
    for (std::size_t i = first_to_name<T>; i < enum_texts<T>.size(); ++i) {
      f(static_cast<T>(i), std::string(enum_texts<T>[i]));
    }
  } else {
    boost::mp11::mp_for_each<boost::describe::describe_enumerators<T>>(
        [&](auto one) { f(one.value, std::string(one.name)); });
  }
}

}  // namespace described

template <described::Enum T>
std::string name_of(T value) {
  std::string found;
  described::for_each_value<T>([&](T one, const std::string& name) {
    if (one == value) found = name;
  });
  return found;
}
template <described::Enum T>
std::optional<T> value_named(std::string_view wanted) {
  std::optional<T> found;
  described::for_each_value<T>([&](T one, const std::string& name) {
    if (name == wanted) found = one;
  });
  return found;
}

template <typename T>
Json to_json_of(const T& value) {
  using Kind = described::Kind<T>;
  if constexpr (std::same_as<T, Json>) {
    return value;
  } else if constexpr (std::floating_point<T>) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
  } else if constexpr (described::Enum<T>) {
    return name_of(value);
  } else if constexpr (std::same_as<T, TextOrNull>) {
    return value.empty() ? Json(nullptr) : Json(std::string(value));
  } else if constexpr (std::same_as<T, ObjectText>) {
    return Json::parse(value);
  } else if constexpr (Kind::is_optional || Kind::is_absent) {
    return value ? to_json_of(*value) : Json(nullptr);
  } else if constexpr (Kind::is_pair) {
    return Json::array({to_json_of(value.first), to_json_of(value.second)});
  } else if constexpr (Kind::is_named) {
    Json object = Json::object();
    for (const auto& [name, member] : value) object[name] = to_json_of(member);
    return object;
  } else if constexpr (Kind::is_enum_map) {
    Json object = Json::object();
    described::for_each_value<typename Kind::Enum>(
        [&](auto key, const std::string& name) { object[name] = to_json_of(value[key]); });
    return object;
  } else if constexpr (Kind::is_list) {
    Json list = Json::array();
    for (const auto& item : value) list.push_back(to_json_of(item));
    return list;
  } else if constexpr (described::Bare<T>) {
    return to_json_of(described::bare_member(value));
  } else if constexpr (described::Struct<T>) {
    Json object = Json::object();
    boost::mp11::mp_for_each<described::Members<T>>([&](auto member) {
      const auto& field = value.*member.pointer;
      if constexpr (described::Kind<std::remove_cvref_t<decltype(field)>>::is_absent) {
        if (!field) return;
      }
      if constexpr (requires { has_member(value, member.name); }) {
        if (!has_member(value, member.name)) return;
      }
      object[described::key_of(member.name)] = to_json_of(field);
    });
    return object;
  } else {
    return Json(value);
  }
}

// Members that the document lacks stay as they are; keys that the struct lacks are passed over. `path`: where in the
// document, for the message. Throws Error where a value is not of its type.
template <typename T>
void read_answer(const Json& json, T& value, const std::string& path = "") {
  using Kind = described::Kind<T>;
  if constexpr (std::same_as<T, Json>) {
    value = json;
  } else if constexpr (std::same_as<T, bool>) {
    if (!json.is_boolean()) described::refuse(path, "true or false");
    value = json.get<bool>();
  } else if constexpr (std::integral<T>) {
    if (!json.is_number()) described::refuse(path, "whole number");
    value = json.get<T>();
  } else if constexpr (std::floating_point<T>) {
    if (!json.is_number() && !json.is_null()) described::refuse(path, "number");
    value = json.is_null() ? std::numeric_limits<T>::quiet_NaN() : json.get<T>();
  } else if constexpr (std::same_as<T, std::string>) {
    if (!json.is_string()) described::refuse(path, "text");
    value = json.get<std::string>();
  } else if constexpr (described::Enum<T>) {
    const auto found = json.is_string() ? value_named<T>(json.get_ref<const std::string&>()) : std::nullopt;
    if (!found) throw Error(fmt::format("{}: {} is no name that is known here", path, json.dump()));
    value = *found;
  } else if constexpr (std::same_as<T, TextOrNull>) {
    if (!json.is_string() && !json.is_null()) described::refuse(path, "text");
    value = json.is_null() ? "" : json.get<std::string>();
  } else if constexpr (std::same_as<T, ObjectText>) {
    if (!json.is_object()) described::refuse(path, "object");
    value = json.dump();
  } else if constexpr (Kind::is_optional || Kind::is_absent) {
    value.reset();
    if (!json.is_null()) read_answer(json, value.emplace(), path);
  } else if constexpr (Kind::is_pair) {
    if (!json.is_array() || json.size() != 2) described::refuse(path, "pair");
    read_answer(json[0], value.first, path + ".0");
    read_answer(json[1], value.second, path + ".1");
  } else if constexpr (Kind::is_named) {
    if (!json.is_object()) described::refuse(path, "object");
    value.clear();
    for (const auto& [name, member] : json.items()) {
      read_answer(member, value.emplace_back(name, typename T::value_type::second_type{}).second, path + "." + name);
    }
  } else if constexpr (Kind::is_enum_map) {
    if (!json.is_object()) described::refuse(path, "object");
    described::for_each_value<typename Kind::Enum>([&](auto key, const std::string& name) {
      if (json.contains(name)) read_answer(json[name], value[key], path + "." + name);
    });
  } else if constexpr (Kind::is_list) {
    if (!json.is_array()) described::refuse(path, "list");
    value.clear();
    for (const Json& item : json) {
      read_answer(item, value.emplace_back(), fmt::format("{}.{}", path, value.size() - 1));
    }
  } else if constexpr (described::Bare<T>) {
    read_answer(json, described::bare_member(value), path);
  } else {
    if (!json.is_object()) described::refuse(path, "object");
    boost::mp11::mp_for_each<described::Members<T>>([&](auto member) {
      const std::string key = described::key_of(member.name);
      const auto found = json.find(key);
      if (found == json.end()) return;
      read_answer(*found, value.*member.pointer, path.empty() ? key : path + "." + key);
    });
  }
}

// JSON Schema (draft 2020-12) of the type.
template <typename T>
Json schema_of() {
  using Kind = described::Kind<T>;
  if constexpr (std::same_as<T, Json>) {
    return Json::object();
  } else if constexpr (std::same_as<T, bool>) {
    return {{"type", "boolean"}};
  } else if constexpr (std::unsigned_integral<T>) {
    return {{"type", "integer"}, {"minimum", 0}};
  } else if constexpr (std::integral<T>) {
    return {{"type", "integer"}};
  } else if constexpr (std::floating_point<T>) {
    return {{"type", {"number", "null"}}};
  } else if constexpr (std::same_as<T, std::string>) {
    return {{"type", "string"}};
  } else if constexpr (described::Enum<T>) {
    Json names = Json::array();
    described::for_each_value<T>([&](T, const std::string& name) { names.push_back(name); });
    return {{"enum", names}};
  } else if constexpr (std::same_as<T, TextOrNull>) {
    return {{"type", {"string", "null"}}};
  } else if constexpr (std::same_as<T, ObjectText>) {
    return {{"type", "object"}};
  } else if constexpr (Kind::is_absent) {
    return schema_of<typename T::value_type>();
  } else if constexpr (Kind::is_optional) {
    Json schema = schema_of<typename T::value_type>();
    if (schema.contains("enum")) schema["enum"].push_back(nullptr);
    if (!schema.contains("type")) return schema;
    Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (types.back() != "null") types.push_back("null");
    schema["type"] = std::move(types);
    return schema;
  } else if constexpr (Kind::is_pair) {
    return {{"type", "array"}, {"items", schema_of<typename T::first_type>()}, {"minItems", 2}, {"maxItems", 2}};
  } else if constexpr (Kind::is_named) {
    return {{"type", "object"}, {"additionalProperties", schema_of<typename T::value_type::second_type>()}};
  } else if constexpr (Kind::is_list) {
    return {{"type", "array"}, {"items", schema_of<typename T::value_type>()}};
  } else if constexpr (Kind::is_enum_map) {
    Json properties = Json::object(), required = Json::array();
    described::for_each_value<typename Kind::Enum>([&](auto, const std::string& name) {
      properties[name] = schema_of<typename Kind::Value>();
      required.push_back(name);
    });
    return {{"type", "object"}, {"required", required}, {"additionalProperties", false}, {"properties", properties}};
  } else if constexpr (described::Bare<T>) {
    return schema_of<described::BareMember<T>>();
  } else {
    static_assert(described::Struct<T>, "a member of an answer is of no type that answers have");
    Json properties = Json::object(), required = Json::array();
    boost::mp11::mp_for_each<described::Members<T>>([&](auto member) {
      using Member = std::remove_cvref_t<decltype(std::declval<T>().*member.pointer)>;
      const std::string key = described::key_of(member.name);
      properties[key] = schema_of<Member>();
      if constexpr (requires { has_member(T(), member.name); }) {
        if (!has_member(T(), member.name)) return;
      }
      if (!described::Kind<Member>::is_absent) required.push_back(key);
    });
    return {{"type", "object"}, {"required", required}, {"additionalProperties", false}, {"properties", properties}};
  }
}

}  // namespace tencache
