// What the other commands print with --json (explain, bound, fit, tune, validate, …): their documents; and tables of
// other JSON and of CSV files.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "answers/document.h"
#include "answers/line_chart.h"
#include "core/text.h"
#include "gui/model/bar_parts.h"
#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"

namespace tencache::gui {
namespace {

// ---- The pictures of documents (answers/document.h) as figures of a page.

constexpr std::size_t most_bars = 200, most_dots = 2000;
constexpr std::size_t longest_label = 32, longest_text = 40, longest_group = 120;
constexpr double label_width = 240, bars_width = 540, text_width = 280, bar_height = 15, bar_step = 22,
                 least_part_width = 1.5;

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
    case Ink::Kind::memory:
      return "p3";
    case Ink::Kind::link:
      return "c1";
    case Ink::Kind::plain:
      break;
  }
  return "dot";
}

std::string short_text(const std::string& text, std::size_t most) { return html_text(shortened_to(text, most)); }

// "h2d: 2.000 s; tried: …".
std::string title_of(const Facts& facts) {
  std::string text;
  for (const auto& [label, value] : facts) {
    if (!text.empty()) text += "; ";
    if (!label.empty()) text.append(label).append(": ");
    text += value;
  }
  return html_text(text);
}

std::string caption(const std::string& text) {
  return text.empty() ? "" : "<figcaption>" + html_text(text, 2000) + "</figcaption>\n";
}

// An end beyond the scale is an arrow.
std::string whisker_svg(const std::pair<double, double>& interval, double top, double most) {
  const double scale = bars_width / most, y = top + bar_height / 2, low = label_width + interval.first * scale,
               high = label_width + std::min(interval.second, most) * scale;
  if (high <= low) return "";
  const bool beyond = interval.second > most * 1.0001;
  return fmt::format("<path class=\"mark\" d=\"M{0} {1}H{2}M{0} {3}v8M{4} {3}{5}\"/>\n", coordinate(low), coordinate(y),
                     coordinate(high), coordinate(y - 4), coordinate(beyond ? high - 4 : high),
                     beyond ? "l4 4l-4 4" : "v8");
}

std::string bar_svg(const ChartBar& bar, double top, double most) {
  const double middle = top + bar_height - 3.5;
  std::string svg =
      fmt::format("<g data-bar=\"{}\"><title>{}</title><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
                  html_text(bar.label), title_of(bar.facts.empty() ? Facts{{bar.label, bar.text}} : bar.facts),
                  coordinate(label_width - 8), coordinate(middle), short_text(bar.label, longest_label));
  std::vector<double> values;
  for (const ChartPart& part : bar.parts) values.push_back(part.value);
  const std::vector<double> widths = part_widths(values, bars_width / most, bars_width, least_part_width);
  double x = label_width;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] > 0) {
      svg += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" data-value=\"{}\"/>\n",
                         class_of(bar.parts[i].ink), coordinate(x), coordinate(top), widths[i], coordinate(bar_height),
                         values[i]);
    }
    x += widths[i];
  }
  if (bar.between && bar.between->first <= most * (1 + 1e-9)) {
    const double from = label_width + bar.between->first / most * bars_width,
                 to = label_width + std::min(1.0, bar.between->second / most) * bars_width;
    svg += fmt::format("<rect class=\"between\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"/>\n",
                       coordinate(from - 1), coordinate(top - 2), to - from + 2, coordinate(bar_height + 4));
  }
  if (bar.interval) svg += whisker_svg(*bar.interval, top, most);
  return svg + fmt::format("<text class=\"faint\" x=\"{}\" y=\"{}\">{}{}</text></g>\n",
                           coordinate(label_width + bars_width + 8), coordinate(middle),
                           bar.total() > most * (1 + 1e-9) ? "▸ " : "", short_text(bar.text, longest_text));
}

std::string axis_svg(const BarAxis& axis, double top, double bottom) {
  std::string svg;
  const auto x_of = [&](double value) { return coordinate(label_width + value / axis.most * bars_width); };
  const double step = round_step(axis.most);
  for (int i = 0; axis.unit != FigureUnit::none && i * step <= axis.most * 1.0001; ++i) {
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1}V{2}\"/><text class=\"faint\" x=\"{0}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        x_of(i * step), coordinate(top), coordinate(bottom), coordinate(bottom + 14),
        round_figure(with_unit(i * step, axis.unit)));
  }
  return svg;
}

// Over the bars.
std::string limit_svg(const BarAxis& axis, double top, double bottom) {
  if (!axis.limit || axis.limit->first > axis.most) return "";
  const std::string x = coordinate(label_width + axis.limit->first / axis.most * bars_width);
  return fmt::format(
      "<path class=\"bound\" d=\"M{0} {1}V{2}\"/><text x=\"{0}\" y=\"{3}\" text-anchor=\"middle\" "
      "data-value=\"{4}\">{5}</text>\n",
      x, coordinate(top), coordinate(bottom), coordinate(top - 5), axis.limit->first, html_text(axis.limit->second));
}

std::string picture_html(const BarChart& chart) {
  if (chart.bars.empty() || !(chart.axis.most > 0)) return "";
  std::string svg;
  const double top = chart.axis.limit ? 20 : 4;
  double y = top;
  const std::size_t shown = std::min(chart.bars.size(), most_bars);
  for (std::size_t i = 0; i < shown; ++i) {
    const ChartBar& bar = chart.bars[i];
    if (!bar.group.empty() && (i == 0 || bar.group != chart.bars[i - 1].group)) {
      svg += fmt::format("<text class=\"title\" x=\"0\" y=\"{}\">{}</text>\n", coordinate(y + 16),
                         short_text(bar.group, longest_group));
      y += 26;
    }
    svg += bar_svg(bar, y, chart.axis.most);
    y += bar_step;
  }
  svg = axis_svg(chart.axis, top, y) + svg + limit_svg(chart.axis, top, y);
  if (chart.axis.unit != FigureUnit::none) y += 20;
  std::vector<LegendEntry> entries;
  for (const ChartPart& part : chart.legend()) entries.push_back({class_of(part.ink), part.label});
  const bool marked = std::ranges::any_of(chart.bars, [](const ChartBar& bar) { return bar.between.has_value(); });
  if (marked) entries.push_back({"between", chart.mark_label});
  const double width = label_width + bars_width + text_width;
  return fmt::format(
      "<figure>\n{}<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n{}{}</figure>\n",
      legend(entries), coordinate(width), coordinate(y), coordinate(width), html_text(chart.title), svg,
      caption(chart.axis.caption),
      shown < chart.bars.size() ? caption(fmt::format("The first {} of {}.", shown, chart.bars.size())) : "");
}

std::string picture_html(const LineChart& chart) {
  if (chart.panels.empty()) return "";
  return "<figure class=\"whole\">\n" + draw_svg(chart) + "</figure>\n";
}

namespace {

// One axis of a scatter chart: from a value to a place in pixels, and round values in between.
struct ScatterAxis {
  double from = 0, to = 1;
  bool logarithmic = false;

  double share(double value) const {
    return logarithmic ? std::log(value / from) / std::log(to / from) : (value - from) / (to - from);
  }
  std::vector<double> ticks() const {
    std::vector<double> list;
    if (!logarithmic) {
      const double step = round_step(to);
      for (int i = 0; i * step <= to; ++i) list.push_back(i * step);
      return list;
    }
    for (double power = std::pow(10, std::floor(std::log10(from))); power <= to; power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        if (power * factor >= from && power * factor <= to) list.push_back(power * factor);
      }
    }
    return list;
  }
  static ScatterAxis around(const std::vector<ChartDot>& dots, double ChartDot::*value, bool logarithmic) {
    const auto [least, most] = std::ranges::minmax(dots, {}, value);
    if (!logarithmic) return {0, most.*value > 0 ? 1.05 * most.*value : 1, false};
    return {least.*value / 1.1, 1.1 * most.*value, true};
  }
};

}  // namespace

std::string picture_html(const ScatterChart& chart) {
  constexpr double left = 80, width = 860, height = 300, top = 14, bottom = 50;
  const bool placed = std::ranges::all_of(
      chart.dots, [&](const ChartDot& dot) { return !chart.logarithmic || (dot.x > 0 && dot.y > 0); });
  if (chart.dots.empty() || !placed) return "";
  const ScatterAxis x_axis = ScatterAxis::around(chart.dots, &ChartDot::x, chart.logarithmic),
                    y_axis = ScatterAxis::around(chart.dots, &ChartDot::y, chart.logarithmic);
  const auto x_of = [&](double value) { return coordinate(left + x_axis.share(value) * width); };
  const auto y_of = [&](double value) { return coordinate(top + (1 - y_axis.share(value)) * height); };
  std::string svg;
  for (const double tick : y_axis.ticks()) {
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1}h{2}\"/><text class=\"faint\" x=\"{3}\" y=\"{1}\" dy=\"4\" "
        "text-anchor=\"end\">{4}</text>\n",
        coordinate(left), y_of(tick), coordinate(width), coordinate(left - 8),
        round_figure(with_unit(tick, chart.y_unit)));
  }
  for (const double tick : x_axis.ticks()) {
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1}v{2}\"/><text class=\"faint\" x=\"{0}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        x_of(tick), coordinate(top), coordinate(height), coordinate(top + height + 16),
        round_figure(with_unit(tick, chart.x_unit)));
  }
  std::string front, dots;
  std::size_t drawn = 0;
  for (const ChartDot& dot : chart.dots) {
    if (dot.marked) front += fmt::format("{}{} {}", front.empty() ? "M" : "L", x_of(dot.x), y_of(dot.y));
    if (!dot.marked && drawn++ >= most_dots) continue;
    dots += fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"", dot.marked ? "best" : "dot", x_of(dot.x),
                        y_of(dot.y), dot.marked ? 4 : 2);
    dots += dot.marked ? "><title>" + title_of(dot.facts) + "</title></circle>\n" : "/>\n";
  }
  if (!chart.front.empty()) svg += "<path class=\"front\" d=\"" + front + "\"/>\n";
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", coordinate(left + width / 2),
                     coordinate(top + height + 38), html_text(chart.x_label));
  const std::string meaning = chart.front.empty() ? "" : " Line: " + chart.front + ".";
  const std::string note = chart.note.empty() ? "" : " " + chart.note + ".";
  return fmt::format(
      "<figure>\n<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" role=\"img\" aria-label=\"{2}\">\n{3}{4}</svg>\n{5}"
      "</figure>\n",
      coordinate(left + width + 20), coordinate(top + height + bottom), html_text(chart.title), svg, dots,
      caption("Upwards: " + chart.y_label + "." + meaning + note));
}

// A path for each kind of cell, of rectangles as high as equal cells follow each other.
std::string picture_html(const CellMap& map) {
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
