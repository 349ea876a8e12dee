// Lists as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tencache {

// The parts between the separators: one empty part of an empty text.
inline std::vector<std::string> split(std::string_view text, std::string_view separator = ",") {
  std::vector<std::string> parts;
  for (std::size_t end = text.find(separator); end != text.npos; end = text.find(separator)) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

}  // namespace tencache
