#include "answers/text_table.h"

#include <algorithm>

#include "core/text.h"

namespace tencache {

Table::Table(std::vector<std::string> header) { add(std::move(header)); }

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell);
  rows_.push_back({std::move(row), 0});
}

void Table::add_wide(std::string first, std::string text, std::size_t width) {
  rows_.push_back({{std::move(first), std::move(text)}, width});
}

std::string Table::text() const {
  const std::size_t columns = rows_.front().cells.size();
  std::vector<std::size_t> widths(columns, 0);
  for (const auto& [row, wide] : rows_) {
    for (std::size_t i = 0; i < std::min(wide != 0 ? 1 : row.size(), columns); ++i) {
      widths[i] = std::max(widths[i], columns_of(row[i]));
    }
  }
  std::string text;
  for (const auto& [row, wide] : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(i < columns ? widths[i] - std::min(widths[i], columns_of(row[i])) : 0, ' ');
      const bool left = i == 0 || i + 1 >= columns;
      line += i == 0 ? "" : "  ";
      if (wide != 0 && i == 1) {
        line += cut_line(row[i], wide - std::min(wide - 1, columns_of(line)));
      } else {
        line += left ? row[i] + padding : padding + row[i];
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace tencache
