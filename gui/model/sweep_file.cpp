#include "gui/model/sweep_file.h"

#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "answers/described.h"
#include "core/error.h"
#include "core/parse_number.h"

namespace tencache::gui {
namespace {

// Of CSV, where what is not known is empty.
void read(const std::string& text, std::string& field) { field = text; }
void read(const std::string& text, bool& field) { field = text == "true" || text == "1"; }
void read(const std::string& text, std::uint64_t& field) { field = std::stoull(text); }
void read(const std::string& text, double& field) {
  const std::optional<double> number = parse_number(text);
  if (!number) throw std::invalid_argument("no number");
  field = *number;
}
template <typename Value>
void read(const std::string& text, std::optional<Value>& field) {
  if (!text.empty()) read(text, field.emplace());
}

}  // namespace

bool is_sweep(const Json& document) {
  return document.is_object() && document.contains("sweep") && document.contains("rows");
}

std::vector<SweepRow> read_sweep_rows(const Json& document, const std::string& file) {
  try {
    std::vector<SweepRow> rows;
    for (const Json& json : document.at("rows")) {
      for_each_field(rows.emplace_back(),
                     [&](const char* name, auto& field) { read_answer(json.at(name), field, name); });
    }
    return rows;
  } catch (const std::exception& error) {
    throw Error(file, 0, std::string("is no sweep of tencache, or damaged: ") + error.what());
  }
}

bool is_sweep(const DataTable& table) {
  bool all = true;
  const SweepRow row;
  for_each_field(row,
                 [&](const char* name, const auto&) { all = all && table.find_column(name) != DataTable::unsorted; });
  return all;
}

std::vector<SweepRow> read_sweep_rows(const DataTable& table, const std::string& file) {
  std::vector<SweepRow> rows(table.row_count());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for_each_field(rows[i], [&](const char* name, auto& field) {
      const std::string text = table.raw(i, table.find_column(name));
      try {
        read(text, field);
      } catch (const std::logic_error&) {  // std::stoull throws them too
        throw Error(file, 0, fmt::format("row {}: '{}' is no {}", i + 1, text, name));
      }
    });
  }
  return rows;
}

}  // namespace tencache::gui
