// What goes to the user: results on stdout, progress and remarks on stderr.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tencache {

using Json = nlohmann::ordered_json;

// The document of --json. Throws Error if stdout cannot take it.
void print_json(const Json& document);
// Text on stdout, its lines each as printable() gives it. Throws Error if stdout cannot take it.
void print(std::string_view text);
// One line on stderr, as printable() gives it.
void remark(std::string_view text);

// Text of others, such as a name in a trace, as part of a line: what a terminal would obey (control characters, the end
// of a line among them, and those that turn the direction of writing) and what is no UTF-8 become \xNN or \u{NNNN}.
std::string printable(std::string_view text);

// A line on stderr that is written over and over, only where stderr is a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  // clears the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view text);

 private:
  bool terminal_;
  bool shown_ = false;
};

// Columns as wide as their widest cell, each as printable() gives it; all but the first and the last aligned right. A
// row may be shorter.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  // A row of two cells, of which the second takes what is left of the line: cut with "…" at `width` columns of the
  // line.
  void add_wide(std::string first, std::string text, std::size_t width);
  std::string text() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::size_t width = 0;  // of a wide row
  };
  std::vector<Row> rows_;
};

// Characters, not bytes: each takes a column.
std::size_t columns_of(std::string_view text);

// "a, b, c".
std::string join(const std::vector<std::string>& names);

}  // namespace tencache
