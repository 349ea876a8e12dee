#include "core/text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace tencache {
namespace {

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool obeyed_by_terminals(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

std::string escaped(const char* format, char32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(code));
  return text;
}

}  // namespace

std::pair<char32_t, std::size_t> first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (continues_a_character(text[0]) || lead >= 0xf8 || length > text.size()) return {lead, 0};
  char32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues_a_character(text[i])) return {lead, 0};
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= least[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return {valid ? code : lead, valid ? length : 0};
}

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

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (bytes <= 1 && (bytes == 0 || obeyed_by_terminals(code))) {
      result += escaped("\\x%02x", code);
    } else if (obeyed_by_terminals(code)) {
      result += escaped("\\u{%x}", code);
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(1, bytes));
  }
  return result;
}

std::string printable_lines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n\t"), text.size());
    lines += printable(text.substr(0, end));
    if (end < text.size()) lines += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_a_character(c); }));
}

std::string cut_line(const std::string& text, std::size_t columns) {
  std::string line = text.substr(0, text.find('\n'));
  if (columns_of(line) <= columns && line.size() == text.size()) return line;
  while (!line.empty() && columns_of(line) >= columns) {
    while (continues_a_character(line.back())) line.pop_back();
    line.pop_back();
  }
  return line + "…";
}

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string join(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) list += (i == 0 ? "" : ", ") + names[i];
  return list;
}

}  // namespace tencache
