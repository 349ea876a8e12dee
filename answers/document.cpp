#include "answers/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "answers/text_table.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

std::string text_of(const DocumentText& text) { return text.shown == Shown::on_page ? "" : text.lines; }

std::string text_of(const DocumentTable& table) {
  if (table.shown == Shown::on_page || table.shown == Shown::in_files) return "";
  const auto of_terminal = [&](const auto& all, auto text) {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Shown shown = table.columns[i].shown;
      if (shown == Shown::on_page || shown == Shown::in_files) continue;
      texts.push_back((texts.empty() ? table.indent : "") + text(all[i], table.columns[i]));
    }
    return texts;
  };
  Table lines(of_terminal(table.columns, [](const Column& column, const Column&) { return column.heading; }));
  for (const DocumentTable::Row& row : table.rows) {
    if (row.instead.empty()) {
      lines.add(of_terminal(row.cells, [](const Cell& cell, const Column& column) {
        return cell.bar && column.bars ? bar_text(*cell.bar, *column.bars) : cell.text;
      }));
    } else {
      lines.add_wide(table.indent + row.cells.front().text, row.instead, row.line_width);
    }
  }
  return lines.text();
}

std::string text_of(const BarChart&) { return {}; }
std::string text_of(const LineChart&) { return {}; }
std::string text_of(const ScatterChart&) { return {}; }
std::string text_of(const CellMap&) { return {}; }

double sum_of(const std::vector<ChartPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const ChartPart& part) { return sum + part.value; });
}

}  // namespace

std::string Cell::on_page() const {
  if (page) return *page;
  return is_number() ? with_unit(number, unit) : text;
}

Cell seconds_cell(double seconds) { return {format_seconds(seconds), seconds, FigureUnit::seconds}; }
Cell bytes_cell(Bytes bytes) { return {format_bytes(bytes), static_cast<double>(bytes), FigureUnit::bytes}; }
Cell count_cell(std::uint64_t count) { return {fmt::format("{}", count), static_cast<double>(count)}; }
Cell yes_or_no(bool yes) { return yes ? "yes" : "no"; }

Cell text_cell(std::string on_terminal, std::string on_page) {
  Cell cell(std::move(on_terminal));
  cell.page = std::move(on_page);
  return cell;
}

ChartBar plain_bar(std::string group, std::string label, double value, std::string text, std::string legend) {
  return {.group = std::move(group),
          .label = std::move(label),
          .parts = {{{Ink::Kind::plain}, value, std::move(legend)}},
          .text = std::move(text)};
}

Cell bar_cell(CellBar bar, std::string text) {
  Cell cell(text, bar.total());
  cell.page = std::move(text);
  cell.bar = std::move(bar);
  return cell;
}

double CellBar::total() const { return sum_of(parts); }
double ChartBar::total() const { return sum_of(parts); }

BarChart chart_of(const DocumentTable& table, std::size_t column) {
  BarChart chart{
      .title = table.columns[column].on_page(), .mark_label = "", .axis = *table.columns[column].bars, .bars = {}};
  for (const DocumentTable::Row& row : table.rows) {
    if (column >= row.cells.size() || !row.cells[column].bar) continue;
    const CellBar& bar = *row.cells[column].bar;
    chart.bars.push_back({.label = row.cells.front().text,
                          .parts = bar.parts,
                          .text = row.cells[column].on_page(),
                          .interval = bar.interval,
                          .marked = row.weight == DocumentTable::Row::Weight::best,
                          .facts = row.facts});
  }
  return chart;
}

std::vector<ChartPart> BarChart::legend() const {
  std::vector<ChartPart> entries;
  for (const ChartBar& bar : bars) {
    for (const ChartPart& part : bar.parts) {
      if (part.label.empty() || part.value <= 0) continue;
      if (std::ranges::find(entries, part.ink, &ChartPart::ink) == entries.end()) entries.push_back(part);
    }
  }
  return entries;
}

bool BarChart::fit(double at_most) {
  double longest = 0;
  for (const ChartBar& bar : bars) longest = std::max(longest, bar.total());
  for (const ChartBar& bar : bars) {  // a mark far beyond all bars would flatten them: it is said in words
    if (bar.between && bar.between->second <= 2 * longest) longest = std::max(longest, bar.between->second);
  }
  axis.most = std::min(at_most, longest);
  return axis.most > 0;
}

std::string bar_text(const CellBar& bar, const BarAxis& axis) {
  if (axis.most <= 0) return "";
  double solid = 0, longest_stall = 0;
  for (const ChartPart& part : bar.parts) {
    if (part.ink.kind != Ink::Kind::stall) solid += part.value;
    if (part.ink.kind == Ink::Kind::stall) longest_stall = std::max(longest_stall, part.value);
  }
  const auto columns_of = [&](double value) {
    return static_cast<std::size_t>(std::lround(value * (static_cast<double>(axis.characters) / axis.most)));
  };
  const std::size_t all = columns_of(bar.total());
  const std::size_t full = std::min(all, columns_of(solid));
  const std::size_t main = std::min(all, columns_of(solid + longest_stall));
  std::string text;
  for (std::size_t i = 0; i < std::min(all, axis.characters); ++i) text += i < full ? "█" : i < main ? "▒" : "░";
  if (all > axis.characters) text += "▸";
  return text.empty() ? "▏" : text;
}

std::string document_text(const Document& document) {
  std::string text;
  for (const auto& block : document.blocks) {
    text += std::visit([](const auto& one) { return text_of(one); }, block);
  }
  return text;
}

void Document::add_table(DocumentTable table) {
  if (!table.rows.empty()) blocks.emplace_back(std::move(table));
}

void Document::add_chart(BarChart chart, double at_most) {
  if (chart.fit(at_most)) blocks.emplace_back(std::move(chart));
}

void Document::add_map(CellMap map) {
  if (map.rows() > 0) blocks.emplace_back(std::move(map));
}

std::string table_csv(const DocumentTable& table) {
  std::string csv;
  const auto line = [&](const auto& of_column) {
    std::string fields;
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      if (table.columns[i].shown != Shown::on_terminal && !table.columns[i].bars)
        fields += "," + csv_field(of_column(i));
    }
    csv += fields.substr(std::min<std::size_t>(1, fields.size())) + "\n";
  };
  line([&](std::size_t i) { return table.columns[i].on_page(); });
  for (const DocumentTable::Row& row : table.rows) {
    line([&](std::size_t i) {
      if (i >= row.cells.size()) return i + 1 == table.columns.size() ? row.instead : std::string();
      const Cell& cell = row.cells[i];
      return cell.is_number() ? number_text(cell.number) : cell.on_page();
    });
  }
  return csv;
}

}  // namespace tencache
