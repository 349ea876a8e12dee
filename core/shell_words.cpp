#include "core/shell_words.h"

#include <algorithm>

namespace tencache {

std::string quoted_word(std::string_view word) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+=./:,@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string> shell_words(std::string_view line) {
  std::vector<std::string> words;
  bool inside = false, quoted = false;  // a word, quotes
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == ' ' && !quoted) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (line[i] == '\'') {
      quoted = !quoted;
    } else {
      if (line[i] == '\\' && !quoted && i + 1 < line.size()) ++i;
      words.back() += line[i];
    }
  }
  return words;
}

}  // namespace tencache
