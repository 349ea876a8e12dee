// Tables of whatever the commands write: CSV files, the JSON documents of --json, logs of one JSON object a line.
//
// Of a document each list of objects is a table, named by where it stands ("demand.tiers"); the members of an object in
// it are columns with dotted names ("peak.bytes"). All else is a table of names and values, the first. Rows of lists
// inside lists begin with what they belong to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "answers/figure_unit.h"
#include "answers/json.h"

namespace tencache::gui {

class DataTable {
 public:
  static constexpr std::size_t unsorted = ~std::size_t{0};

  explicit DataTable(std::string name) : name_(std::move(name)) { texts_.emplace_back(); }

  const std::string& name() const { return name_; }
  std::size_t row_count() const { return rows_; }
  std::size_t column_count() const { return columns_.size(); }
  const std::string& column_name(std::size_t column) const { return columns_[column].name; }
  std::size_t find_column(std::string_view name) const;  // `unsorted` if there is none
  bool is_numeric(std::size_t column) const { return !columns_[column].text; }
  // NaN where nothing is, or a text.
  double number(std::size_t row, std::size_t column) const;

  // For people, with units; and as the file has it. Empty where nothing is.
  std::string shown(std::size_t row, std::size_t column) const;
  std::string raw(std::size_t row, std::size_t column) const;

  // ---- Filling: cells of the last row; a column of a new name is added, empty before.
  void add_row();
  void set_number(std::string_view column, double value);
  void set_text(std::string_view column, std::string_view value);
  void set_at(std::size_t column, std::string_view field);  // of CSV: a number if it reads as one
  std::size_t column_of(std::string_view name);
  // Where its name does not say it; without, a column "value" has in each row the unit that the row's "unit" names.
  void set_unit(std::string_view column, FigureUnit unit) { columns_[column_of(column)].unit = unit; }
  // Of a table of names and values: each has the unit of its name.
  void set_named_values() { named_values_ = true; }
  bool named_values() const { return named_values_; }

  // The rows that hold all words of the filter, sorted by a column (none: in the order of the file), what is empty
  // last. A word is part of a text, in any case, or a whole number; or COLUMN=TEXT, COLUMN>NUMBER, COLUMN<NUMBER, with
  // units where the column has one ("bytes>64MB"). Linear in the cells: of a change, not of a frame.
  std::vector<std::uint32_t> select(const std::string& filter, std::size_t sorted_by, bool ascending) const;
  // Those rows, RFC 4180.
  std::string csv(const std::vector<std::uint32_t>& rows) const;

 private:
  // Numbers, or with `text` numbers of texts_; NaN, or 0: empty.
  struct Column {
    std::string name;
    FigureUnit unit = FigureUnit::none;
    bool text = false;
    std::vector<double> cells;
  };
  struct Condition;
  std::vector<Condition> conditions_of(const std::string& filter) const;
  FigureUnit unit_at(std::size_t row, const Column& column) const;
  double text_id(std::string_view value);
  void become_text(Column& column);
  const std::string& text_of(const Column& column, std::size_t row) const {
    return texts_[static_cast<std::size_t>(column.cells[row])];
  }

  std::string name_;
  std::size_t rows_ = 0;
  bool named_values_ = false;
  std::vector<Column> columns_;
  std::map<std::string, std::size_t, std::less<>> column_ids_;
  std::vector<std::string> texts_;
  std::map<std::string, std::uint32_t, std::less<>> text_ids_;
};
using DataTables = std::vector<DataTable>;

// `name`: of the whole, where it is a list.
DataTables tables_of(const Json& document, const std::string& name);
// The list that the document is, or else the longest in it; names and values where there is none.
std::size_t most_telling(const DataTables& tables);
// Throw Error with the line where the text is no such thing, or has no rows.
DataTable read_csv(std::string text, const std::string& file);
DataTable read_json_lines(std::string_view text, const std::string& file);

}  // namespace tencache::gui
