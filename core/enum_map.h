// A value for each value of a named enumeration, from its first to its last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "core/enum_names.h"

namespace tencache {

template <NamedEnum Enum>
inline constexpr auto enum_values = [] {
  std::array<Enum, enum_texts<Enum>.size()> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Enum>(i);
  return values;
}();

template <NamedEnum Enum, typename T>
class EnumMap {
 public:
  constexpr EnumMap() = default;
  // The others are T().
  constexpr EnumMap(std::initializer_list<std::pair<Enum, T>> given) {
    for (const auto& [key, value] : given) (*this)[key] = value;
  }

  constexpr T& operator[](Enum key) { return values_[static_cast<std::size_t>(key)]; }
  constexpr const T& operator[](Enum key) const { return values_[static_cast<std::size_t>(key)]; }
  constexpr auto begin() { return values_.begin(); }
  constexpr auto begin() const { return values_.begin(); }
  constexpr auto end() { return values_.end(); }
  constexpr auto end() const { return values_.end(); }

 private:
  std::array<T, enum_texts<Enum>.size()> values_{};
};

template <typename Enum, typename T>
T sum_of(const EnumMap<Enum, T>& map) {
  return std::accumulate(map.begin(), map.end(), T());
}

// The first of them.
template <typename Enum, typename T>
Enum largest_of(const EnumMap<Enum, T>& map) {
  return *std::ranges::max_element(enum_values<Enum>, {}, [&](Enum key) { return map[key]; });
}

}  // namespace tencache
