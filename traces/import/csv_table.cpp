#include "traces/import/csv_table.h"

#include <algorithm>

#include "core/error.h"
#include "core/parse_number.h"

namespace tencache {
namespace {

// "0.197632", "1e-05": the decimal text times 10^6, rounded half up, without going through a double.
std::optional<Nanoseconds> milliseconds_to_ns(std::string_view text) {
  std::string digits;
  std::int64_t point = 6;  // digits before the decimal point
  std::size_t i = 0;
  bool after_point = false;
  if (i < text.size() && text[i] == '+') ++i;
  for (; i < text.size() && (text[i] == '.' || (text[i] >= '0' && text[i] <= '9')); ++i) {
    if (text[i] == '.') {
      if (after_point) return std::nullopt;
      after_point = true;
      continue;
    }
    digits += text[i];
    if (!after_point) ++point;
  }
  if (digits.empty()) return std::nullopt;
  if (i < text.size()) {
    if (text[i] != 'e' && text[i] != 'E') return std::nullopt;
    if (++i < text.size() && text[i] == '+') ++i;
    const auto exponent = parse_number<int>(text.substr(i));
    if (!exponent) return std::nullopt;
    point += *exponent;
  }
  const std::size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  point -= static_cast<std::int64_t>(zeros);
  if (digits.empty() || point < 0) return 0;
  if (point > 18) return std::nullopt;
  const auto whole = static_cast<std::size_t>(point);
  Nanoseconds value = 0;
  for (std::size_t k = 0; k < whole; ++k) value = value * 10 + (k < digits.size() ? digits[k] - '0' : 0);
  return value + (whole < digits.size() && digits[whole] >= '5' ? 1 : 0);
}

}  // namespace

CsvTable::CsvTable(const std::string& file, Bytes maximum_bytes) : CsvTable(file, read_file(file, maximum_bytes)) {}

CsvTable::CsvTable(std::string file, std::string text) : file_(std::move(file)), text_(std::move(text)) {
  if (text_.starts_with("\xef\xbb\xbf")) position_ = 3;
  if (!next_row()) throw Error(file_, 0, "is empty; the first line names the columns");
  for (const std::string& field : fields_) columns_.push_back(field);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (find(columns_[i]) != i) fail("the column '" + columns_[i] + "' stands twice");
  }
}

bool CsvTable::next_row() {
  do {
    if (position_ >= text_.size()) return false;
    read_fields();
  } while (fields_.size() == 1 && fields_[0].empty());
  if (!columns_.empty() && fields_.size() != columns_.size()) {
    fail("the row has " + std::to_string(fields_.size()) + " fields, the first line names " +
         std::to_string(columns_.size()) + " columns");
  }
  return true;
}

std::size_t CsvTable::find(std::string_view column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  return found == columns_.end() ? no_column : static_cast<std::size_t>(found - columns_.begin());
}

std::string CsvTable::column_list() const {
  std::string all;
  for (const std::string& column : columns_) all += (all.empty() ? "" : ", ") + column;
  return all;
}

std::uint64_t CsvTable::number(std::size_t column, std::uint64_t largest, bool optional) const {
  const std::string_view text = field(column);
  if (text.empty() && optional) return 0;
  const std::optional<std::uint64_t> value = parse_number<std::uint64_t>(text);
  if (!value || *value > largest) {
    fail("column '" + columns_[column] + "' is '" + std::string(text) + "'; it takes a whole number from 0 to " +
         std::to_string(largest));
  }
  return *value;
}

Nanoseconds CsvTable::milliseconds(std::size_t column, bool optional) const {
  const std::string_view text = field(column);
  if (text.empty() && optional) return 0;
  const std::optional<Nanoseconds> value = milliseconds_to_ns(text);
  if (!value) {
    fail("column '" + columns_[column] + "' is '" + std::string(text) +
         "'; it takes a time in milliseconds, like 0.197632, that is not negative");
  }
  return *value;
}

void CsvTable::fail(std::string message) const {
  std::replace_if(
      message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  throw Error(file_, line_, message);
}

void CsvTable::read_fields() {
  ++line_;
  line_ += newlines_in_row_;
  newlines_in_row_ = 0;
  std::size_t count = 0;
  while (true) {
    if (fields_.size() <= count) fields_.emplace_back();
    read_field(fields_[count++]);
    if (position_ >= text_.size() || text_[position_] != ',') break;
    ++position_;
  }
  fields_.resize(count);
  if (position_ < text_.size() && text_[position_] == '\r') ++position_;
  if (position_ < text_.size() && text_[position_] != '\n')
    fail("text follows a quoted field; a quote inside a field is doubled");
  ++position_;
}

void CsvTable::read_field(std::string& field) {
  field.clear();
  if (position_ >= text_.size() || text_[position_] != '"') {
    std::size_t end = text_.find_first_of(",\n", position_);
    if (end == std::string::npos) end = text_.size();
    field.assign(text_, position_, end - position_);
    position_ = end;
    while (!field.empty() && (field.back() == ' ' || field.back() == '\r')) field.pop_back();
    field.erase(0, std::min(field.find_first_not_of(' '), field.size()));
    return;
  }
  while (true) {
    const std::size_t quote = text_.find('"', ++position_);
    if (quote == std::string::npos) fail("a quoted field does not end; the file was cut short");
    field.append(text_, position_, quote - position_);
    position_ = quote + 1;
    if (position_ >= text_.size() || text_[position_] != '"') break;
    field += '"';
  }
  newlines_in_row_ += static_cast<std::uint64_t>(std::count(field.begin(), field.end(), '\n'));
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted(1, '"');
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  quoted += '"';
  return quoted;
}

}  // namespace tencache
