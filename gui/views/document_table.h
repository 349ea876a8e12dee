// A table of a document (answers/document.h) as the dashboard has it: sorted by a click on a heading, with bars in their
// cells.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "answers/document.h"
#include "gui/views/theme.h"

namespace tencache::gui {

class DocumentTableView {
 public:
  // What is sorted stays sorted by the same heading.
  void show(DocumentTable table);
  bool empty() const { return table_.rows.empty(); }
  const DocumentTable& table() const { return table_; }
  // Of what bars are made; nothing without bars.
  void draw_legend(const Theme& theme) const;
  // Into the rest of the window. The row of the key `marked` stands out. Returns the key of a row that was clicked.
  std::optional<std::string> draw(const Theme& theme, const std::string& marked = "");

 private:
  struct Shown {
    std::size_t column = 0;  // of the table
    float width = 0;         // of its texts; the least one of bars
  };
  const Column& column(const Shown& shown) const { return table_.columns[shown.column]; }
  const Cell* cell(const DocumentTable::Row& row, const Shown& shown) const;
  void measure(const Theme& theme);
  void sort(std::size_t by, bool ascending);
  void draw_cell(const Theme& theme, const DocumentTable::Row& row, const Shown& shown) const;
  bool draw_row(const Theme& theme, const DocumentTable::Row& row, const std::string& marked) const;

  DocumentTable table_;
  std::vector<std::size_t> order_;  // of rows
  std::vector<Shown> shown_;
  float font_ = 0;  // that widths are of
};

}  // namespace tencache::gui
