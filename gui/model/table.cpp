#include "gui/model/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/parse_number.h"
#include "gui/model/describe.h"
#include "traces/import/csv_table.h"

namespace tencache::gui {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

// ---- JSON -----------------------------------------------------------------------------------------------------------

class TableMaker {
 public:
  static constexpr const char* facts = "figures";
  explicit TableMaker(DataTables& tables) : tables_(tables) {}

  // Members of an object as names and values; lists of objects in it as tables of their own.
  void add_object(const Json& object, const std::string& path, const std::string& owner) {
    for (const auto& [key, value] : object.items()) add_value(value, below(path, key), owner);
  }
  void add_rows(const Json& list, const std::string& path, const std::string& owner) {
    const std::size_t table = table_named(path);
    for (const Json& item : list) {
      tables_[table].add_row();
      if (!owner.empty()) tables_[table].set_text("of", owner);
      if (item.is_object()) {
        add_cells(table, item, "", path, label_of(item));
      } else {
        set(table, "value", item);
      }
    }
  }

 private:
  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }
  static bool holds_objects(const Json& value) {
    return value.is_array() && std::ranges::any_of(value, [](const Json& item) { return item.is_object(); });
  }
  // What a person would call the object: its first text, or else its first number.
  static std::string label_of(const Json& object) {
    for (const auto& [key, value] : object.items()) {
      if (value.is_string()) return value.get<std::string>();
    }
    for (const auto& [key, value] : object.items()) {
      if (value.is_number()) return key + " " + value.dump();
    }
    return "";
  }

  void add_value(const Json& value, const std::string& path, const std::string& owner) {
    if (value.is_object()) return add_object(value, path, owner);
    if (holds_objects(value)) return add_rows(value, path, owner);
    const std::size_t table = table_named(facts);
    DataTable& named = tables_[table];
    named.set_named_values();
    named.add_row();
    named.set_text("name", path);
    set(table, "value", value);
  }
  void add_cells(std::size_t table, const Json& object, const std::string& prefix, const std::string& path,
                 const std::string& label) {
    for (const auto& [key, value] : object.items()) {
      const std::string column = below(prefix, key);
      if (holds_objects(value)) {
        add_rows(value, below(path, column), label);
      } else if (value.is_object() && (key == "manifest" || key == "timing")) {
        add_named(value, key, key, label);
      } else if (value.is_object()) {
        add_cells(table, value, column, path, label);
      } else {
        set(table, column, value);
      }
    }
  }
  // How a row came about would be dozens of columns.
  void add_named(const Json& value, const std::string& name, const std::string& table_name, const std::string& owner) {
    if (value.is_object()) {
      for (const auto& [key, inner] : value.items()) add_named(inner, below(name, key), table_name, owner);
      return;
    }
    const std::size_t table = table_named(table_name);
    tables_[table].set_named_values();
    tables_[table].add_row();
    tables_[table].set_text("name", name);
    set(table, "value", value);
    if (!owner.empty()) tables_[table].set_text("of", owner);
  }
  void set(std::size_t table, const std::string& column, const Json& value) {
    DataTable& to = tables_[table];
    static_cast<void>(to.column_of(column));  // a column of nulls is one
    if (value.is_number()) {
      to.set_number(column, value.get<double>());
    } else if (value.is_string()) {
      to.set_text(column, value.get<std::string>());
    } else if (value.is_boolean()) {
      to.set_text(column, value.get<bool>() ? "yes" : "no");
    } else if (value.is_array()) {
      std::string text;
      for (const Json& item : value) {
        text += (text.empty() ? "" : ", ") + (item.is_string() ? item.get<std::string>() : item.dump());
      }
      to.set_text(column, text);
    }
  }
  std::size_t table_named(const std::string& name) {
    const auto found = std::ranges::find(tables_, name, &DataTable::name);
    if (found != tables_.end()) return static_cast<std::size_t>(found - tables_.begin());
    tables_.emplace_back(name);
    return tables_.size() - 1;
  }

  DataTables& tables_;
};

}  // namespace

// ---- Cells ----------------------------------------------------------------------------------------------------------

std::size_t DataTable::column_of(std::string_view name) {
  const auto found = column_ids_.find(name);
  if (found != column_ids_.end()) return found->second;
  column_ids_.emplace(name, columns_.size());
  columns_.push_back({std::string(name), unit_of(name), false, std::vector<double>(rows_, nothing)});
  return columns_.size() - 1;
}

std::size_t DataTable::find_column(std::string_view name) const {
  const auto found = column_ids_.find(name);
  return found == column_ids_.end() ? unsorted : found->second;
}

double DataTable::number(std::size_t row, std::size_t column) const {
  return columns_[column].text ? nothing : columns_[column].cells[row];
}

void DataTable::add_row() {
  ++rows_;
  for (Column& column : columns_) column.cells.push_back(column.text ? 0 : nothing);
}

double DataTable::text_id(std::string_view value) {
  if (value.empty()) return 0;
  const auto found = text_ids_.find(value);
  if (found != text_ids_.end()) return found->second;
  text_ids_.emplace(value, static_cast<std::uint32_t>(texts_.size()));
  texts_.emplace_back(value);
  return static_cast<double>(texts_.size() - 1);
}

void DataTable::become_text(Column& column) {
  if (column.text) return;
  column.text = true;
  for (double& cell : column.cells) cell = std::isnan(cell) ? 0 : text_id(number_text(cell));
}

void DataTable::set_number(std::string_view name, double value) {
  Column& column = columns_[column_of(name)];
  column.cells.back() = column.text ? text_id(number_text(value)) : value;
}

void DataTable::set_text(std::string_view name, std::string_view value) {
  Column& column = columns_[column_of(name)];
  become_text(column);
  column.cells.back() = text_id(value);
}

void DataTable::set_at(std::size_t index, std::string_view field) {
  Column& column = columns_[index];
  if (field.empty()) return;
  const std::optional<double> number = parse_number(field);
  // Digits that are a name ("007") stay one.
  const bool whole = field.find_first_of(".eE") == std::string_view::npos;
  if (number && !column.text && (!whole || number_text(*number) == field)) {
    column.cells.back() = *number;
    return;
  }
  become_text(column);
  column.cells.back() = text_id(field);
}

std::string DataTable::raw(std::size_t row, std::size_t index) const {
  const Column& column = columns_[index];
  if (column.text) return text_of(column, row);
  return std::isnan(column.cells[row]) ? std::string() : number_text(column.cells[row]);
}

// Some columns have figures of other units in each row, which other columns say.
FigureUnit DataTable::unit_at(std::size_t row, const Column& column) const {
  if (named_values_ && column.name == "value") return unit_of(raw(row, 0));
  if (column.unit != FigureUnit::none) return column.unit;
  if (column.name == "simulated" || column.name.starts_with("published.")) {  // of `validate`
    const std::size_t metric = find_column("metric"), over = find_column("over");
    if (metric != unsorted && !raw(row, metric).empty()) {
      return unit_of_metric(raw(row, metric), over != unsorted && !raw(row, over).empty());
    }
  }
  const std::size_t units = column.name.ends_with("value") ? find_column("unit") : unsorted;
  return units == unsorted ? FigureUnit::none : unit_named(raw(row, units));
}

std::string DataTable::shown(std::size_t row, std::size_t index) const {
  const Column& column = columns_[index];
  if (!column.text) {
    return std::isnan(column.cells[row]) ? std::string() : with_unit(column.cells[row], unit_at(row, column));
  }
  const std::string& text = text_of(column, row);
  return with_units(text, unit_at(row, column));
}

// ---- Choosing rows --------------------------------------------------------------------------------------------------

struct DataTable::Condition {
  std::size_t column = unsorted;  // none: any
  char sign = 0;
  double number = nothing;
  std::vector<std::uint8_t> texts;  // which of them it holds for

  bool holds(const Column& of, double cell) const {
    if (of.text) return texts[static_cast<std::size_t>(cell)] != 0;
    return sign == '>' ? cell > number : sign == '<' ? cell < number : cell == number;
  }
};

std::vector<DataTable::Condition> DataTable::conditions_of(const std::string& filter) const {
  std::vector<Condition> conditions;
  for (std::size_t at = 0; at < filter.size();) {
    const std::size_t end = std::min(filter.find(' ', at), filter.size());
    const std::string word = filter.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    Condition condition;
    std::string wanted = lower_case(word);
    const std::size_t sign = word.find_first_of("=<>");
    if (sign != std::string::npos) {
      const auto column = column_ids_.find(word.substr(0, sign));
      if (column != column_ids_.end()) {
        condition.column = column->second;
        condition.sign = word[sign];
        wanted = lower_case(word.substr(sign + 1));
      }
    }
    const bool exact = condition.sign == '=';
    condition.number = parse_number(wanted).value_or(nothing);
    if (std::isnan(condition.number) && condition.sign != 0) {
      condition.number = number_with_unit(word.substr(sign + 1), columns_[condition.column].unit);
    }
    condition.texts.resize(texts_.size());
    for (std::size_t text = 0; text < texts_.size(); ++text) {
      const std::string lower = lower_case(texts_[text]);
      condition.texts[text] = exact ? lower == wanted : lower.find(wanted) != std::string::npos;
    }
    conditions.push_back(std::move(condition));
  }
  return conditions;
}

std::vector<std::uint32_t> DataTable::select(const std::string& filter, std::size_t sorted_by, bool ascending) const {
  const std::vector<Condition> conditions = conditions_of(filter);
  const auto holds = [this](const Condition& condition, std::size_t row) {
    if (condition.column != unsorted) {
      return condition.holds(columns_[condition.column], columns_[condition.column].cells[row]);
    }
    return std::ranges::any_of(columns_, [&](const Column& c) { return condition.holds(c, c.cells[row]); });
  };
  std::vector<std::uint32_t> rows;
  for (std::size_t row = 0; row < rows_; ++row) {
    const bool all = std::ranges::all_of(conditions, [&](const Condition& c) { return holds(c, row); });
    if (all) rows.push_back(static_cast<std::uint32_t>(row));
  }
  if (sorted_by >= columns_.size()) return rows;
  const Column& column = columns_[sorted_by];
  const auto less = [&](std::uint32_t a, std::uint32_t b) {
    return column.text ? text_of(column, a) < text_of(column, b) : column.cells[a] < column.cells[b];
  };
  const auto empty = [&](std::uint32_t row) {
    return column.text ? column.cells[row] == 0 : std::isnan(column.cells[row]);
  };
  std::ranges::stable_sort(rows, [&](std::uint32_t a, std::uint32_t b) {
    if (empty(a) || empty(b)) return !empty(a) && empty(b);
    return ascending ? less(a, b) : less(b, a);
  });
  return rows;
}

std::string DataTable::csv(const std::vector<std::uint32_t>& rows) const {
  std::string text;
  const auto line = [&](const auto& field_of) {
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      if (column > 0) text += ',';
      text += csv_field(field_of(column));
    }
    text += '\n';
  };
  line([&](std::size_t column) { return columns_[column].name; });
  for (const std::uint32_t row : rows) line([&](std::size_t column) { return raw(row, column); });
  return text;
}

// ---- Reading --------------------------------------------------------------------------------------------------------

std::size_t most_telling(const DataTables& tables) {
  const auto is_detail = [&](const DataTable& table) {
    return table.named_values() || table.name().starts_with(tables.front().name() + ".");
  };
  const bool is_list =
      tables.size() > 1 && !tables.front().named_values() && std::all_of(tables.begin() + 1, tables.end(), is_detail);
  if (is_list) return 0;
  const auto rows = [](const DataTable& table) { return table.named_values() ? 0 : table.row_count(); };
  const auto most = std::ranges::max_element(tables, {}, rows);
  return most == tables.end() ? 0 : static_cast<std::size_t>(most - tables.begin());
}

DataTables tables_of(const Json& document, const std::string& name) {
  DataTables tables;
  TableMaker maker(tables);
  if (document.is_array()) {
    maker.add_rows(document, name, "");
  } else if (document.is_object()) {
    maker.add_object(document, "", "");
    const auto figures = std::ranges::find(tables, TableMaker::facts, &DataTable::name);
    if (figures != tables.end()) std::rotate(tables.begin(), figures, figures + 1);
  }
  return tables;
}

DataTable read_csv(std::string text, const std::string& file) {
  DataTable table(std::filesystem::path(file).filename().string());
  CsvTable csv(file, std::move(text));
  for (std::size_t column = 0; column < csv.column_count(); ++column) {
    if (csv.column(column).empty()) throw Error(file, 1, "is no table: columns need names");
    table.column_of(csv.column(column));
  }
  while (csv.next_row()) {
    table.add_row();
    for (std::size_t column = 0; column < csv.column_count(); ++column) table.set_at(column, csv.field(column));
  }
  if (table.row_count() == 0) throw Error(file, 0, "holds the names of columns, and no row");
  return table;
}

DataTable read_json_lines(std::string_view text, const std::string& file) {
  DataTables tables;
  tables.emplace_back(std::filesystem::path(file).filename().string());
  TableMaker maker(tables);
  std::size_t number = 1;
  for (std::size_t at = 0; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = Json::parse(line, nullptr, false);
    if (!object.is_object()) throw Error(file, number, "is no JSON object; was the file copied whole?");
    maker.add_rows(Json::array({object}), tables.front().name(), "");
  }
  if (tables.front().row_count() == 0) throw Error(file, 0, "holds no line");
  return std::move(tables.front());
}

}  // namespace tencache::gui
