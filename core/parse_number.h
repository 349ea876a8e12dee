// Numbers as text, in every locale alike: a host program such as Python may have set another than C's.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>

namespace tencache {

// None: the text is not one finite number that the type can have, and nothing else.
template <typename Number = double>
std::optional<Number> parse_number(std::string_view text) {
  Number value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || !std::isfinite(static_cast<double>(value))) return std::nullopt;
  return value;
}

}  // namespace tencache
