#include "answers/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "answers/text_table.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

std::string text_of(const DocumentText& text) { return text.lines; }

std::string text_of(const DocumentTable& table) {
  std::vector<std::string> headings = table.headings;
  headings.front().insert(0, table.indent);
  Table lines(std::move(headings));
  for (const DocumentTable::Row& row : table.rows) {
    std::vector<std::string> cells;
    for (const Cell& cell : row.cells) cells.push_back(cell.text);
    cells.front().insert(0, table.indent);
    row.line_width == 0 ? lines.add(std::move(cells)) : lines.add_wide(cells[0], cells[1], row.line_width);
  }
  return lines.text();
}

std::string text_of(const BarChart&) { return {}; }

}  // namespace

Cell seconds_cell(double seconds) { return {format_seconds(seconds), seconds}; }
Cell bytes_cell(Bytes bytes) { return {format_bytes(bytes), static_cast<double>(bytes)}; }

double ChartBar::total() const {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const ChartPart& part) { return sum + part.value; });
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

bool BarChart::scale(double at_most) {
  double longest = 0;
  for (const ChartBar& bar : bars) longest = std::max(longest, bar.total());
  for (const ChartBar& bar : bars) {  // a mark far beyond all bars would flatten them: it is said in words
    if (bar.between && bar.between->second <= 2 * longest) longest = std::max(longest, bar.between->second);
  }
  most = std::min(at_most, longest);
  return most > 0;
}

const BarChart* Document::chart() const {
  for (const auto& block : blocks) {
    if (const auto* chart = std::get_if<BarChart>(&block)) return chart;
  }
  return nullptr;
}

std::string document_text(const Document& document) {
  std::string text;
  for (const auto& block : document.blocks) {
    text += std::visit([](const auto& one) { return text_of(one); }, block);
  }
  return text;
}

std::string table_csv(const DocumentTable& table) {
  std::string csv;
  for (std::size_t i = 0; i < table.headings.size(); ++i) csv += (i == 0 ? "" : ",") + csv_field(table.headings[i]);
  csv += "\n";
  for (const DocumentTable::Row& row : table.rows) {
    for (std::size_t i = 0; i < table.headings.size(); ++i) {
      if (i > 0) csv += ",";
      if (i >= row.cells.size()) continue;
      const Cell& cell = row.cells[i];
      csv += csv_field(cell.is_number() ? fmt::format("{}", cell.number) : cell.text);
    }
    csv += "\n";
  }
  return csv;
}

}  // namespace tencache
