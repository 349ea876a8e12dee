// Text for people: what a terminal may be given, how wide it is, lists, words of a shell.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tencache {

// A word of a command line, quoted where a shell would take a space, a `$` and the like for its own.
std::string quoted_word(std::string_view word);

// The words of a line that quoted_word() wrote, with spaces between them.
std::vector<std::string> shell_words(std::string_view line);

// The code of the character that the text, which is not empty, begins with, and its bytes: 0 where that is no UTF-8.
std::pair<char32_t, std::size_t> first_character(std::string_view text);

// Text of others, such as a name in a trace, as part of a line: what a terminal would obey (control characters, the end
// of a line among them, and those that turn the direction of writing) and what is no UTF-8 become `\xNN` or `\u{NNNN}`.
std::string printable(std::string_view text);
// The same line by line: newlines and tabs stay.
std::string printable_lines(std::string_view text);

// Characters, not bytes: each takes a column.
std::size_t columns_of(std::string_view text);
// The first line, cut with "…" where it is longer than so many columns.
std::string cut_line(const std::string& text, std::size_t columns);

// Letters beyond ASCII stay.
std::string lower_case(std::string text);

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
