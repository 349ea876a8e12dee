#include "configs/lenient_json.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"

namespace tencache {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Where what begins at `at` ends: a string, comment or anything else, of which a character.
std::size_t end_of(std::string_view text, std::size_t at) {
  if (text[at] == '"' || text[at] == '\'') {
    std::size_t end = at + 1;
    while (end < text.size() && text[end] != text[at]) end += text[end] == '\\' ? 2 : 1;
    return std::min(end + 1, text.size());
  }
  if (text[at] == '#' || text.substr(at, 2) == "//") return std::min(text.find('\n', at), text.size());
  if (text.substr(at, 2) == "/*") {
    const std::size_t end = text.find("*/", at + 2);
    return end == std::string_view::npos ? text.size() : end + 2;
  }
  return at + 1;
}

bool is_comment(std::string_view text, std::size_t at) {
  return text[at] == '#' || text.substr(at, 2) == "//" || text.substr(at, 2) == "/*";
}

// Python's 'text' as "text".
std::string in_double_quotes(std::string_view text) {
  if (text.size() < 2 || text.back() != '\'') return std::string(text);
  std::string result = "\"";
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '\\' && i + 2 < text.size()) {
      if (text[++i] != '\'') result += '\\';
    } else if (text[i] == '"') {
      result += '\\';
    }
    result += text[i];
  }
  return result + '"';
}

// Past the "ds_config =" that a dictionary in a script begins with, or `at`.
std::size_t past_assignment(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && (is_letter(text[end]) || (end > at && text[end] >= '0' && text[end] <= '9'))) ++end;
  if (end == at) return at;
  while (end < text.size() && is_space(text[end])) ++end;
  return end + 1 < text.size() && text[end] == '=' && text[end + 1] != '=' ? end + 1 : at;
}

// The same lines in strict JSON, so that errors are placed.
std::string strict(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> words = {
      {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
  std::string result;
  std::size_t comma = std::string::npos;  // in the result, with nothing but space after it
  bool begun = false;
  for (std::size_t at = text.starts_with("\xef\xbb\xbf") ? 3 : 0; at < text.size();) {
    const std::size_t end = end_of(text, at);
    if (is_comment(text, at)) {
      for (; at < end; ++at) {
        if (text[at] == '\n') result += '\n';
      }
      continue;
    }
    const char c = text[at];
    if (!begun && !is_space(c)) {
      begun = true;
      if (const std::size_t value = past_assignment(text, at); value != at) {
        result.append(static_cast<std::size_t>(std::ranges::count(text.substr(at, value - at), '\n')), '\n');
        at = value;
        continue;
      }
    }
    if ((c == '}' || c == ']') && comma != std::string::npos) result[comma] = ' ';
    if (!is_space(c)) comma = c == ',' ? result.size() : std::string::npos;
    const bool begins_word = is_letter(c) && (at == 0 || !is_letter(text[at - 1]));
    const auto word = std::ranges::find_if(words, [&](const auto& pair) {
      const std::size_t after = at + pair.first.size();
      return begins_word && text.substr(at).starts_with(pair.first) &&
             (after >= text.size() || !is_letter(text[after]));
    });
    if (word != words.end()) {
      result += word->second;
      at += word->first.size();
    } else {
      const std::string_view piece = text.substr(at, end - at);
      result += c == '\'' ? in_double_quotes(piece) : std::string(piece);
      at = end;
    }
  }
  return result;
}

std::uint64_t line_of(const std::string& json, std::size_t at) {
  const auto end = json.begin() + static_cast<std::ptrdiff_t>(std::min(at, json.size()));
  return 1 + static_cast<std::uint64_t>(std::count(json.begin(), end, '\n'));
}

// What is nested is copied and destroyed by recursion.
void check_depth(const std::string& json, const std::string& file) {
  constexpr int most = 200;
  int depth = 0;
  for (std::size_t at = 0; at < json.size(); at = end_of(json, at)) {
    if (json[at] == '{' || json[at] == '[') ++depth;
    if (json[at] == '}' || json[at] == ']') --depth;
    if (depth > most) throw Error(file, line_of(json, at), "is nested more than " + std::to_string(most) + " deep");
  }
}

// What stands where a value should, if it is Python that only its script can compute: "hidden * hidden".
std::string expression_at(const std::string& json, std::size_t at) {
  at = std::min(at, json.size());
  const std::size_t before = json.find_last_of(":[,{", at == 0 ? 0 : at - 1);
  if (before == std::string::npos || json[before] == '{') return "";
  std::size_t begin = before + 1;
  while (begin < json.size() && is_space(json[begin])) ++begin;
  std::size_t end = begin;
  for (int open = 0; end < json.size() && json[end] != '\n'; ++end) {
    if (open == 0 && (json[end] == ',' || json[end] == '}' || json[end] == ']')) break;
    open += json[end] == '(' ? 1 : json[end] == ')' ? -1 : 0;
  }
  while (end > begin && is_space(json[end - 1])) --end;
  const std::string value = json.substr(begin, end - begin);
  const bool quoted = value.find('"') != std::string::npos;
  return quoted || std::ranges::none_of(value, [](char c) { return is_letter(c) || c == '*' || c == '+' || c == '('; })
             ? ""
             : value;
}

// Where the number is that the library's message quotes at its end: "number overflow parsing '1e999'".
std::size_t place_of_number(const std::string& json, std::string_view message) {
  const std::size_t end = message.rfind('\'');
  const std::size_t begin = end == std::string_view::npos || end == 0 ? end : message.rfind('\'', end - 1);
  if (begin == std::string_view::npos) return 0;
  return json.find(message.substr(begin + 1, end - begin - 1));
}

}  // namespace

nlohmann::ordered_json parse_lenient_json(const std::string& text, const std::string& file) {
  const std::string json = strict(text);
  check_depth(json, file);
  try {
    return nlohmann::ordered_json::parse(json);
  } catch (const nlohmann::json::parse_error& error) {
    if (const std::string value = expression_at(json, error.byte); !value.empty()) {
      throw Error(file, line_of(json, error.byte),
                  "'" + value + "' is Python that its script computes: write the number or text that comes out");
    }
    throw Error(file, line_of(json, error.byte),
                error.byte > json.size() ? "ends too early: a bracket or a quotation mark is not closed"
                                         : "is no JSON, even with comments and trailing commas allowed");
  } catch (const nlohmann::json::exception& error) {
    throw Error(file, line_of(json, place_of_number(json, error.what())), "has a number that is too large");
  }
}

}  // namespace tencache
