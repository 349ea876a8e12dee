// A table of text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tencache {

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

}  // namespace tencache
