#include "answers/described.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "core/error.h"

namespace tencache::described {
namespace {

// Keys that C++ keeps for itself, such as `default`, are members with `_` behind them.
std::string key_of(std::string_view member) {
  if (member.ends_with('_')) member.remove_suffix(1);
  return std::string(member);
}

bool fits(Type::Kind kind, const Json& json) {
  switch (kind) {
    case Type::Kind::any:
      return true;
    case Type::Kind::boolean:
      return json.is_boolean();
    case Type::Kind::natural:
    case Type::Kind::integer:
      return json.is_number();
    case Type::Kind::number:
      return json.is_number() || json.is_null();
    case Type::Kind::text:
      return json.is_string();
    case Type::Kind::text_or_null:
      return json.is_string() || json.is_null();
    case Type::Kind::pair:
      return json.is_array() && json.size() == 2;
    case Type::Kind::list:
      return json.is_array();
    case Type::Kind::object_text:
    case Type::Kind::named:
    case Type::Kind::enum_map:
    case Type::Kind::object:
      return json.is_object();
    case Type::Kind::enumeration:
    case Type::Kind::optional:
    case Type::Kind::absent:
    case Type::Kind::bare:
      return true;  // whoever reads them looks further
  }
  return true;
}

const char* wanted(Type::Kind kind) {
  switch (kind) {
    case Type::Kind::boolean:
      return "true or false";
    case Type::Kind::natural:
    case Type::Kind::integer:
      return "whole number";
    case Type::Kind::number:
      return "number";
    case Type::Kind::text:
    case Type::Kind::text_or_null:
      return "text";
    case Type::Kind::pair:
      return "pair";
    case Type::Kind::list:
      return "list";
    default:
      return "object";
  }
}

}  // namespace

std::string name_of_value(std::span<const EnumValue> values, std::int64_t wanted) {
  const auto found = std::ranges::find(values, wanted, &EnumValue::value);
  return found == values.end() ? "" : std::string(found->name);
}

std::optional<std::int64_t> value_of_name(std::span<const EnumValue> values, std::string_view wanted) {
  const auto found = std::ranges::find(values, wanted, &EnumValue::name);
  return found == values.end() ? std::nullopt : std::optional(found->value);
}

Json write(const Type& type, const void* value) {
  // What only looks at an item gets at it as one that writes does.
  const auto at = [&](std::size_t i) -> const void* { return type.at(const_cast<void*>(value), i); };
  const auto of = [&](const Member& member) -> const void* { return member.of(const_cast<void*>(value)); };
  switch (type.kind) {
    case Type::Kind::any:
      return as<Json>(value);
    case Type::Kind::boolean:
    case Type::Kind::natural:
    case Type::Kind::integer:
      return type.write(value);
    case Type::Kind::number: {
      Json json = type.write(value);
      return std::isfinite(json.get<double>()) ? json : Json(nullptr);
    }
    case Type::Kind::text:
      return as<std::string>(value);
    case Type::Kind::text_or_null: {
      const std::string& text = as<TextOrNull>(value);
      return text.empty() ? Json(nullptr) : Json(text);
    }
    case Type::Kind::object_text:
      return Json::parse(as<ObjectText>(value));
    case Type::Kind::enumeration:
      return name_of_value(type.values, type.get(value));
    case Type::Kind::optional:
    case Type::Kind::absent:
      return type.size(value) > 0 ? write(*type.item, at(0)) : Json(nullptr);
    case Type::Kind::pair:
    case Type::Kind::list: {
      Json list = Json::array();
      for (std::size_t i = 0; i < type.size(value); ++i) list.push_back(write(*type.item, at(i)));
      return list;
    }
    case Type::Kind::named: {
      Json object = Json::object();
      for (std::size_t i = 0; i < type.size(value); ++i) object[type.name(value, i)] = write(*type.item, at(i));
      return object;
    }
    case Type::Kind::enum_map: {
      Json object = Json::object();
      for (const EnumValue& one : type.values) {
        object[std::string(one.name)] = write(*type.item, at(static_cast<std::size_t>(one.value)));
      }
      return object;
    }
    case Type::Kind::bare:
      return write(*type.members[0].type, of(type.members[0]));
    case Type::Kind::object:
      break;
  }
  Json object = Json::object();
  for (const Member& member : type.members) {
    const void* field = of(member);
    if (member.type->kind == Type::Kind::absent && member.type->size(field) == 0) continue;
    if (type.has != nullptr && !type.has(value, member.name)) continue;
    object[key_of(member.name)] = write(*member.type, field);
  }
  return object;
}

void read(const Type& type, const Json& json, void* value, const std::string& path) {
  if (!fits(type.kind, json)) {
    throw Error(fmt::format("{}: is no {}", path.empty() ? "the document" : path, wanted(type.kind)));
  }
  switch (type.kind) {
    case Type::Kind::any:
      as<Json>(value) = json;
      return;
    case Type::Kind::boolean:
    case Type::Kind::natural:
    case Type::Kind::integer:
      type.read(json, value);
      return;
    case Type::Kind::number:
      type.read(json.is_null() ? Json(std::numeric_limits<double>::quiet_NaN()) : json, value);
      return;
    case Type::Kind::text:
      as<std::string>(value) = json.get_ref<const std::string&>();
      return;
    case Type::Kind::text_or_null: {
      std::string& text = as<TextOrNull>(value);
      text = json.is_null() ? "" : json.get_ref<const std::string&>();
      return;
    }
    case Type::Kind::object_text:
      static_cast<std::string&>(as<ObjectText>(value)) = json.dump();
      return;
    case Type::Kind::enumeration: {
      const auto found =
          json.is_string() ? value_of_name(type.values, json.get_ref<const std::string&>()) : std::nullopt;
      if (!found) throw Error(fmt::format("{}: {} is no name that is known here", path, json.dump()));
      type.set(value, *found);
      return;
    }
    case Type::Kind::optional:
    case Type::Kind::absent:
      type.clear(value);
      if (!json.is_null()) read(*type.item, json, type.add(value, ""), path);
      return;
    case Type::Kind::pair:
      for (std::size_t i = 0; i < 2; ++i) read(*type.item, json[i], type.at(value, i), fmt::format("{}.{}", path, i));
      return;
    case Type::Kind::list:
      type.clear(value);
      for (std::size_t i = 0; i < json.size(); ++i) {
        read(*type.item, json[i], type.add(value, ""), fmt::format("{}.{}", path, i));
      }
      return;
    case Type::Kind::named:
      type.clear(value);
      for (const auto& [name, member] : json.items()) {
        read(*type.item, member, type.add(value, name), path + "." + name);
      }
      return;
    case Type::Kind::enum_map:
      for (const EnumValue& one : type.values) {
        const auto found = json.find(std::string(one.name));
        if (found == json.end()) continue;
        read(*type.item, *found, type.at(value, static_cast<std::size_t>(one.value)),
             fmt::format("{}.{}", path, one.name));
      }
      return;
    case Type::Kind::bare:
      read(*type.members[0].type, json, type.members[0].of(value), path);
      return;
    case Type::Kind::object:
      break;
  }
  for (const Member& member : type.members) {
    const std::string key = key_of(member.name);
    const auto found = json.find(key);
    if (found != json.end()) read(*member.type, *found, member.of(value), path.empty() ? key : path + "." + key);
  }
}

Json schema(const Type& type) {
  switch (type.kind) {
    case Type::Kind::any:
      return Json::object();
    case Type::Kind::boolean:
      return {{"type", "boolean"}};
    case Type::Kind::natural:
      return {{"type", "integer"}, {"minimum", 0}};
    case Type::Kind::integer:
      return {{"type", "integer"}};
    case Type::Kind::number:
      return {{"type", {"number", "null"}}};
    case Type::Kind::text:
      return {{"type", "string"}};
    case Type::Kind::text_or_null:
      return {{"type", {"string", "null"}}};
    case Type::Kind::object_text:
      return {{"type", "object"}};
    case Type::Kind::enumeration: {
      Json names = Json::array();
      for (const EnumValue& one : type.values) names.push_back(one.name);
      return {{"enum", names}};
    }
    case Type::Kind::absent:
      return schema(*type.item);
    case Type::Kind::optional: {
      Json made = schema(*type.item);
      if (made.contains("enum")) made["enum"].push_back(nullptr);
      if (!made.contains("type")) return made;
      Json types = made["type"].is_array() ? made["type"] : Json::array({made["type"]});
      if (types.back() != "null") types.push_back("null");
      made["type"] = std::move(types);
      return made;
    }
    case Type::Kind::pair:
      return {{"type", "array"}, {"items", schema(*type.item)}, {"minItems", 2}, {"maxItems", 2}};
    case Type::Kind::list:
      return {{"type", "array"}, {"items", schema(*type.item)}};
    case Type::Kind::named:
      return {{"type", "object"}, {"additionalProperties", schema(*type.item)}};
    case Type::Kind::bare:
      return schema(*type.members[0].type);
    case Type::Kind::enum_map:
    case Type::Kind::object:
      break;
  }
  Json properties = Json::object(), required = Json::array();
  for (const EnumValue& one : type.values) {
    properties[std::string(one.name)] = schema(*type.item);
    required.push_back(one.name);
  }
  for (const Member& member : type.members) {
    const std::string key = key_of(member.name);
    properties[key] = schema(*member.type);
    if (type.has_always != nullptr && !type.has_always(member.name)) continue;
    if (member.type->kind != Type::Kind::absent) required.push_back(key);
  }
  return {{"type", "object"}, {"required", required}, {"additionalProperties", false}, {"properties", properties}};
}

}  // namespace tencache::described
