// Tables in files of comma-separated values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "traces/file/file_io.h"

namespace tencache {

// A CSV file (RFC 4180: quoted fields, "" for a quote) read row by row, the first line names the columns. Views stay
// valid until the next row. What is wrong is an Error with the file and its line.
class CsvTable {
 public:
  static constexpr std::size_t no_column = static_cast<std::size_t>(-1);

  CsvTable(const std::string& file, Bytes maximum_bytes);
  CsvTable(std::string file, std::string text);  // of a file that is read already

  // False at the end of the file. Empty lines are passed over.
  bool next_row();

  std::size_t find(std::string_view column) const;  // or no_column
  std::string column_list() const;
  // Empty where the file has no such column.
  std::string_view field(std::size_t column) const {
    return column == no_column ? std::string_view() : std::string_view(fields_[column]);
  }
  // A whole number from 0 to `largest`; an empty field is 0 if `optional`.
  std::uint64_t number(std::size_t column, std::uint64_t largest, bool optional = false) const;
  // Milliseconds, written as a decimal number, to the nearest nanosecond.
  Nanoseconds milliseconds(std::size_t column, bool optional = false) const;

  // Of the present row.
  [[noreturn]] void fail(std::string message) const;

  const std::string& file() const { return file_; }
  std::size_t column_count() const { return columns_.size(); }
  const std::string& column(std::size_t index) const { return columns_[index]; }
  std::uint64_t line() const { return line_; }

 private:
  void read_fields();
  void read_field(std::string& field);

  const std::string file_;
  const std::string text_;
  std::size_t position_ = 0;
  std::uint64_t line_ = 0;
  std::uint64_t newlines_in_row_ = 0;  // inside quotes
  std::vector<std::string> columns_;
  std::vector<std::string> fields_;
};

// A text as a field of such a file, quoted where it must be.
std::string csv_field(std::string_view text);

}  // namespace tencache
