// What the other commands print with --json (explain, bound, fit, tune, validate, …): their documents; and tables of
// other JSON and of CSV files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/text.h"
#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"
#include "gui/report/pictures.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_rows = 40, most_tables = 8, most_columns = 12;

// ---- Tables ---------------------------------------------------------------------------------------------------------

using TableColumn = std::pair<std::size_t, std::string>;  // of the table, and its heading

bool is_empty(const DataTable& table, std::size_t column) {
  for (std::size_t row = 0; row < table.row_count(); ++row) {
    if (!table.raw(row, column).empty()) return false;
  }
  return true;
}

std::vector<TableColumn> all_columns(const DataTable& table) {
  std::vector<TableColumn> columns;
  for (std::size_t column = 0; column < table.column_count() && columns.size() < most_columns; ++column) {
    if (!is_empty(table, column)) columns.emplace_back(column, table.column_name(column));
  }
  return columns;
}

// The rows of a table, whatever it is kept in.
struct ShownCell {
  std::string text, number;
};
struct ShownRow {
  std::vector<ShownCell> cells;
  std::string instead = {};  // of all but the first cell, where there is no other
  const char* style = "";
};
struct ShownTable {
  std::string name, title, note;
  std::vector<std::string> headings;
  std::vector<bool> numeric;
};

std::string row_html(const ShownTable& table, const ShownRow& row) {
  std::string html = row.style[0] == '\0' ? "<tr>" : fmt::format("<tr class=\"{}\">", row.style);
  if (!row.instead.empty() && row.cells.size() == 1) {
    return html + fmt::format("<td class=\"left\">{}</td><td class=\"no wide\" colspan=\"{}\">{}</td></tr>\n",
                              html_text(row.cells.front().text), table.headings.size() - 1, html_text(row.instead));
  }
  for (std::size_t i = 0; i < table.headings.size(); ++i) {
    const ShownCell cell = i < row.cells.size() ? row.cells[i] : ShownCell{};
    html +=
        table.numeric[i] ? fmt::format("<td data-value=\"{}\">", html_text(cell.number)) : "<td class=\"left wide\">";
    html += html_text(cell.text, 2000) + "</td>";
  }
  return html + "</tr>\n";
}

// Without any heading there is no line of them.
template <typename RowOf>
std::string table_html(const ShownTable& table, std::size_t row_count, const RowOf& row_of) {
  if (table.headings.empty() || row_count == 0) return "";
  std::string html = table.title.empty() ? "" : fmt::format("<h3>{}</h3>\n", html_text(table.title));
  html += fmt::format("<div class=\"scroll\"><table data-table=\"{}\">", html_text(table.name));
  if (std::ranges::any_of(table.headings, [](const std::string& heading) { return !heading.empty(); })) {
    html += "<thead><tr>";
    for (std::size_t i = 0; i < table.headings.size(); ++i) {
      html += fmt::format("<th{}>{}</th>", table.numeric[i] ? "" : " class=\"left\"", html_text(table.headings[i]));
    }
    html += "</tr></thead>";
  }
  html += "<tbody>\n";
  const std::size_t rows = std::min(row_count, most_rows);
  for (std::size_t row = 0; row < rows; ++row) html += row_html(table, row_of(row));
  html += "</tbody></table></div>\n";
  if (rows < row_count) html += fmt::format("<p class=\"faint\">The first {} of {} rows.</p>\n", rows, row_count);
  return html + (table.note.empty() ? "" : "<p class=\"faint\">" + html_text(table.note, 2000) + "</p>\n");
}

std::string table_html(const DataTable& table, const std::vector<TableColumn>& columns, const std::string& title) {
  ShownTable shown{.name = table.name(), .title = title, .note = "", .headings = {}, .numeric = {}};
  for (const auto& [column, heading] : columns) {
    shown.headings.push_back(heading);
    shown.numeric.push_back(table.is_numeric(column));
  }
  return table_html(shown, table.row_count(), [&](std::size_t row) {
    ShownRow cells;
    for (const auto& [column, heading] : columns) {
      cells.cells.push_back({table.shown(row, column), table.raw(row, column)});
    }
    return cells;
  });
}

// A column of bars whose caption says so is a figure of its own, above. Columns in which nothing stands are left out.
std::string table_html(const DocumentTable& table) {
  using Weight = DocumentTable::Row::Weight;
  std::vector<std::size_t> columns;
  ShownTable shown{.name = table.name, .title = table.title, .note = table.note, .headings = {}, .numeric = {}};
  std::string figures;
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    const Column& of = table.columns[column];
    if (of.shown == Shown::on_terminal || of.shown == Shown::in_files) continue;
    if (of.bars && !of.bars->caption.empty()) {
      figures += picture_html(chart_of(table, column));
      continue;
    }
    bool number = false, any = false;
    for (const DocumentTable::Row& row : table.rows) {
      if (column >= row.cells.size()) continue;
      number |= row.cells[column].is_number();
      any |= !row.cells[column].on_page().empty();
    }
    if (!any) continue;
    columns.push_back(column);
    shown.headings.push_back(of.on_page());
    shown.numeric.push_back(number);
  }
  return figures + table_html(shown, table.rows.size(), [&](std::size_t index) {
           const DocumentTable::Row& row = table.rows[index];
           ShownRow cells{.cells = {},
                          .instead = row.instead,
                          .style = row.weight == Weight::best        ? "best"
                                   : row.weight == Weight::reference ? "reference"
                                                                     : ""};
           for (const std::size_t column : columns) {
             if (column >= row.cells.size()) continue;
             const Cell& cell = row.cells[column];
             cells.cells.push_back({cell.on_page(), cell.is_number() ? number_text(cell.number) : ""});
           }
           return cells;
         });
}

// What pages have of a block.
std::string block_html(const DocumentText& text) {
  return text.shown == Shown::on_terminal ? "" : "<p class=\"answer\">" + html_text(text.lines, 2000) + "</p>\n";
}
std::string block_html(const DocumentTable& table) {
  return table.shown == Shown::on_terminal || table.shown == Shown::in_files ? "" : table_html(table);
}
template <typename Picture>
std::string block_html(const Picture& picture) {
  return picture_html(picture);
}

}  // namespace

std::string blocks_html(const tencache::Document& document) {
  std::string html;
  for (const DocumentBlock& block : document.blocks) {
    html += std::visit([](const auto& one) { return block_html(one); }, block);
  }
  return html;
}

std::string document_section(const tencache::Document& document, const std::string& heading) {
  return "<section>\n<h2>" + html_text(heading) + "</h2>\n" + blocks_html(document) + "</section>\n";
}

std::string document_section(const Document& document) {
  const std::string file = std::filesystem::path(document.path).filename().string();
  const tencache::Document answer = document.answer.value_or(tencache::Document());
  const std::string& command = answer.kind;
  const std::string heading = !answer.title.empty() ? answer.title
                              : command.empty()     ? file
                                                    : fmt::format("{}: {}", command, file);
  if (answer.first<DocumentTable>() != nullptr) return document_section(answer, heading);
  std::string html = "<section>\n<h2>" + html_text(heading) + "</h2>\n" + blocks_html(answer);
  std::size_t count = 0;
  for (const DataTable& table : document.tables) {
    if (table.name() == "manifest" || table.name() == "timing" || count++ >= most_tables) continue;
    html += table_html(table, all_columns(table), document.tables.size() == 1 ? "" : table.name());
  }
  return html + "</section>\n";
}

}  // namespace tencache::gui
