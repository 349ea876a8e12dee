// What the other commands print with --json (explain, bound, fit, tune, validate, …): their documents; and tables of
// other JSON and of CSV files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/text.h"
#include "gui/model/bar_parts.h"
#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_rows = 40, most_tables = 8, most_columns = 12, most_bars = 200;
constexpr std::size_t longest_label = 32, longest_text = 40, longest_group = 120;
constexpr double chart_label_width = 240, chart_bars_width = 540, chart_text_width = 280, chart_bar_height = 15,
                 chart_bar_step = 22;

// ---- Pictures -------------------------------------------------------------------------------------------------------

std::string class_of(const Ink& ink) {
  switch (ink.kind) {
    case Ink::Kind::compute:
      return "busy";
    case Ink::Kind::host:
      return "gap";
    case Ink::Kind::stall:
      return fmt::format("c{}{}", ink.which, ink.pale ? " pale" : "");
    case Ink::Kind::role:
      return fmt::format("r{}", ink.which);
    case Ink::Kind::marked:
      return "best";
    case Ink::Kind::pale:
      return "outline";
    case Ink::Kind::plain:
      break;
  }
  return "dot";
}

std::string short_text(const std::string& text, std::size_t most) { return html_text(shortened_to(text, most)); }

std::string bar_svg(const ChartBar& bar, double top, double most) {
  const double middle = top + chart_bar_height - 3.5;
  std::string facts;
  for (const auto& [label, value] : bar.facts) {
    if (!facts.empty()) facts += "; ";
    if (!label.empty()) facts.append(label).append(": ");
    facts += value;
  }
  if (facts.empty()) facts = bar.label + ": " + bar.text;
  std::string svg =
      fmt::format("<g><title>{}</title><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", html_text(facts),
                  coordinate(chart_label_width - 8), coordinate(middle), short_text(bar.label, longest_label));
  std::vector<double> values;
  for (const ChartPart& part : bar.parts) values.push_back(part.value);
  const std::vector<double> widths = part_widths(values, chart_bars_width / most, chart_bars_width, 1.5);
  double x = chart_label_width;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] > 0) {
      svg += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" data-value=\"{}\"/>\n",
                         class_of(bar.parts[i].ink), coordinate(x), coordinate(top), widths[i],
                         coordinate(chart_bar_height), values[i]);
    }
    x += widths[i];
  }
  if (bar.between && bar.between->first <= most * (1 + 1e-9)) {
    const double from = chart_label_width + bar.between->first / most * chart_bars_width,
                 to = chart_label_width + std::min(1.0, bar.between->second / most) * chart_bars_width;
    svg += fmt::format("<rect class=\"between\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"/>\n",
                       coordinate(from - 1), coordinate(top - 2), to - from + 2, coordinate(chart_bar_height + 4));
  }
  return svg + fmt::format("<text class=\"faint\" x=\"{}\" y=\"{}\">{}{}</text></g>\n",
                           coordinate(chart_label_width + chart_bars_width + 8), coordinate(middle),
                           bar.total() > most * (1 + 1e-9) ? "▸ " : "", short_text(bar.text, longest_text));
}

std::string chart_figure(const BarChart& chart) {
  if (chart.bars.empty()) return "";
  std::string svg;
  double y = 4;
  const std::size_t shown = std::min(chart.bars.size(), most_bars);
  for (std::size_t i = 0; i < shown; ++i) {
    const ChartBar& bar = chart.bars[i];
    if (!bar.group.empty() && (i == 0 || bar.group != chart.bars[i - 1].group)) {
      svg += fmt::format("<text class=\"title\" x=\"0\" y=\"{}\">{}</text>\n", coordinate(y + 16),
                         short_text(bar.group, longest_group));
      y += 26;
    }
    svg += bar_svg(bar, y, chart.most);
    y += chart_bar_step;
  }
  std::vector<LegendEntry> entries;
  for (const ChartPart& part : chart.legend()) entries.push_back({class_of(part.ink), part.label});
  const bool marked = std::ranges::any_of(chart.bars, [](const ChartBar& bar) { return bar.between.has_value(); });
  if (marked) entries.push_back({"between", chart.mark_label});
  const double width = chart_label_width + chart_bars_width + chart_text_width;
  return fmt::format(
      "<figure>\n{}<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n{}</figure>\n",
      legend(entries), coordinate(width), coordinate(y), coordinate(width), html_text(chart.title), svg,
      shown < chart.bars.size()
          ? fmt::format("<figcaption>The first {} of {}.</figcaption>\n", shown, chart.bars.size())
          : std::string());
}

// A path for each kind of cell, of rectangles as high as equal cells follow each other.
std::string map_figure(const CellMap& map) {
  const double left = 90, top = 8, width = 820, height = 380;
  const double cell_width = width / static_cast<double>(map.columns.size());
  const double cell_height = height / static_cast<double>(map.rows());
  std::vector<std::string> paths(map.kinds.size());
  for (std::size_t column = 0; column < map.columns.size(); ++column) {
    const std::string& cells = map.columns[column];
    for (std::size_t begin = 0; begin < cells.size();) {
      std::size_t end = begin;
      while (end < cells.size() && cells[end] == cells[begin]) ++end;
      if (const auto kind = static_cast<std::size_t>(cells[begin] - '0'); kind < paths.size()) {
        const double bottom = top + height - cell_height * static_cast<double>(begin);
        paths[kind] +=
            fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z", left + cell_width * static_cast<double>(column), bottom,
                        cell_width, -cell_height * static_cast<double>(end - begin), -cell_width);
      }
      begin = end;
    }
  }
  std::string svg;
  std::vector<LegendEntry> entries;
  for (std::size_t kind = 0; kind < paths.size(); ++kind) {
    entries.push_back({class_of(map.kinds[kind].ink), map.kinds[kind].label});
    if (!paths[kind].empty())
      svg += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", entries.back().colour_class, paths[kind]);
  }
  for (const std::uint32_t mark : map.marks) {
    svg += fmt::format("<path class=\"mark\" d=\"M{:.1f} {}v{}\"/>\n", left + cell_width * mark, coordinate(top),
                       coordinate(height));
  }
  svg += fmt::format(
      "<text class=\"faint\" x=\"{0}\" y=\"{1}\" text-anchor=\"end\">{2}</text>"
      "<text class=\"faint\" x=\"{0}\" y=\"{3}\" text-anchor=\"end\">0</text>"
      "<text class=\"faint\" x=\"{0}\" y=\"{4}\" text-anchor=\"end\">{5}</text>"
      "<text class=\"faint\" x=\"{6}\" y=\"{7}\" text-anchor=\"middle\">{8}</text>\n",
      coordinate(left - 8), coordinate(top + 10), html_text(map.y_most), coordinate(top + height),
      coordinate(top + height / 2), html_text(map.y_label), coordinate(left + width / 2), coordinate(top + height + 18),
      html_text(map.x_label));
  return fmt::format(
      "<h3>{}</h3>\n<figure>\n{}<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" "
      "aria-label=\"{}\">\n{}</svg>\n</figure>\n",
      html_text(map.title), legend(entries), coordinate(left + width + 10), coordinate(top + height + 26),
      coordinate(left + width + 10), html_text(map.title), svg);
}

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

// The rows of a table, whatever it is kept in: `cell(row, column)` is its text, and its number where it has one.
struct ShownCell {
  std::string text, number;
};
template <typename CellOf>
std::string table_html(const std::string& name, const std::string& title, const std::vector<std::string>& headings,
                       const std::vector<bool>& numeric, std::size_t row_count, const CellOf& cell) {
  if (headings.empty() || row_count == 0) return "";
  std::string html = title.empty() ? std::string() : fmt::format("<h3>{}</h3>\n", html_text(title));
  html += fmt::format("<div class=\"scroll\"><table data-table=\"{}\"><thead><tr>", html_text(name));
  for (std::size_t i = 0; i < headings.size(); ++i) {
    html += fmt::format("<th{}>{}</th>", numeric[i] ? "" : " class=\"left\"", html_text(headings[i]));
  }
  html += "</tr></thead><tbody>\n";
  const std::size_t rows = std::min(row_count, most_rows);
  for (std::size_t row = 0; row < rows; ++row) {
    html += "<tr>";
    for (std::size_t i = 0; i < headings.size(); ++i) {
      const ShownCell shown = cell(row, i);
      html += numeric[i] ? fmt::format("<td data-value=\"{}\">", html_text(shown.number)) : "<td class=\"left wide\">";
      html += html_text(shown.text) + "</td>";
    }
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  if (rows < row_count) html += fmt::format("<p class=\"faint\">The first {} of {} rows.</p>\n", rows, row_count);
  return html;
}

std::string table_html(const DataTable& table, const std::vector<TableColumn>& columns, const std::string& title) {
  std::vector<std::string> headings;
  std::vector<bool> numeric;
  for (const auto& [column, heading] : columns) {
    headings.push_back(heading);
    numeric.push_back(table.is_numeric(column));
  }
  return table_html(table.name(), title, headings, numeric, table.row_count(), [&](std::size_t row, std::size_t i) {
    return ShownCell{table.shown(row, columns[i].first), table.raw(row, columns[i].first)};
  });
}

// Columns in which nothing stands are left out.
std::string table_html(const DocumentTable& table) {
  std::vector<std::size_t> columns;
  std::vector<std::string> headings;
  std::vector<bool> numeric;
  const auto cell = [&](std::size_t row, std::size_t column) {
    const std::vector<Cell>& cells = table.rows[row].cells;
    return column < cells.size() ? &cells[column] : nullptr;
  };
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    if (table.columns[column].shown == Shown::on_terminal) continue;
    bool number = false, any = false;
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      if (const Cell* one = cell(row, column)) number |= one->is_number(), any |= !one->on_page().empty();
    }
    if (!any) continue;
    columns.push_back(column);
    headings.push_back(table.columns[column].on_page());
    numeric.push_back(number);
  }
  return table_html(table.name, table.title, headings, numeric, table.rows.size(), [&](std::size_t row, std::size_t i) {
    const Cell* one = cell(row, columns[i]);
    if (one == nullptr) return ShownCell{};
    return ShownCell{one->on_page(), one->is_number() ? number_text(one->number) : std::string()};
  });
}

// What pages have of a block.
std::string block_html(const DocumentText& text) {
  return text.shown == Shown::on_terminal ? "" : "<p class=\"answer\">" + html_text(text.lines, 2000) + "</p>\n";
}
std::string block_html(const DocumentTable& table) {
  return table.shown == Shown::on_terminal ? "" : table_html(table);
}
std::string block_html(const BarChart& chart) { return chart_figure(chart); }
std::string block_html(const CellMap& map) { return map_figure(map); }

}  // namespace

std::string document_section(const Document& document) {
  const std::string file = std::filesystem::path(document.path).filename().string();
  const tencache::Document answer = document.answer.value_or(tencache::Document());
  const std::string& command = answer.kind;
  const std::string heading = !answer.title.empty() ? answer.title
                              : command.empty()     ? file
                                                    : fmt::format("{}: {}", command, file);
  std::string html = "<section>\n<h2>" + html_text(heading) + "</h2>\n";
  bool tables_shown = false;
  for (const auto& block : answer.blocks) {
    html += std::visit([](const auto& one) { return block_html(one); }, block);
    tables_shown = tables_shown || std::holds_alternative<DocumentTable>(block);
  }
  if (tables_shown) return html + "</section>\n";
  std::size_t count = 0;
  for (const DataTable& table : document.tables) {
    if (table.name() == "manifest" || table.name() == "timing" || count++ >= most_tables) continue;
    html += table_html(table, all_columns(table), document.tables.size() == 1 ? "" : table.name());
  }
  return html + "</section>\n";
}

}  // namespace tencache::gui
