// Enumerations whose values have names, in files and messages. The names stand beside the enumeration, one for each
// value, in their order:
//
//   enum class Device : std::uint8_t { gpu, cpu };
//   template <>
//   inline constexpr auto enum_texts<Device> = std::to_array<std::string_view>({"gpu", "cpu"});
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/check.h"

namespace tencache {

template <typename Enum>
inline constexpr std::array<std::string_view, 0> enum_texts{};
// Values before it stand for "not known": files and callers leave them out, and no name is read as one of them.
template <typename Enum>
inline constexpr std::size_t first_to_name = 0;

template <typename Enum>
concept NamedEnum = !enum_texts<Enum>.empty();

template <NamedEnum Enum>
constexpr std::string_view to_string(Enum value) {
  const auto index = static_cast<std::size_t>(value);
  TENCACHE_CHECK(index < enum_texts<Enum>.size());
  return enum_texts<Enum>[index];
}

// nullopt for an unknown name.
template <NamedEnum Enum>
constexpr std::optional<Enum> parse_enum(std::string_view text) {
  for (std::size_t i = first_to_name<Enum>; i < enum_texts<Enum>.size(); ++i) {
    if (enum_texts<Enum>[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// "forward, loss, …": for messages that list the valid names.
template <NamedEnum Enum>
std::string enum_names() {
  std::string all;
  for (std::size_t i = first_to_name<Enum>; i < enum_texts<Enum>.size(); ++i) {
    all += (all.empty() ? "" : ", ") + std::string(enum_texts<Enum>[i]);
  }
  return all;
}

}  // namespace tencache
