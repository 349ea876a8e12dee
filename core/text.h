// Text for people: what a terminal may be given, how wide it is, lists.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tencache {

// Text of others, such as a name in a trace, as part of a line: what a terminal would obey (control characters, the end
// of a line among them, and those that turn the direction of writing) and what is no UTF-8 become `\xNN` or `\u{NNNN}`.
std::string printable(std::string_view text);
// The same line by line: newlines and tabs stay.
std::string printable_lines(std::string_view text);

// Characters, not bytes: each takes a column.
std::size_t columns_of(std::string_view text);
// The first line, cut with "…" where it is longer than so many columns.
std::string cut_line(const std::string& text, std::size_t columns);

// "a, b, c".
std::string join(const std::vector<std::string>& names);

// Texts that JSON has otherwise: null where they are empty, and the object that they spell.
struct TextOrNull : std::string {
  using std::string::string;
  using std::string::operator=;
};
struct ObjectText : std::string {
  using std::string::string;
  using std::string::operator=;
};

}  // namespace tencache
