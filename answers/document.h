// An answer for people before it is painted: text, tables and pictures with their numbers, which text, HTML, CSV and
// the dashboard show each in its own way. No painter computes a figure or knows what kind of answer it is.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "answers/figure_unit.h"
#include "core/units.h"

namespace tencache {

// Where something stands: terminals have narrow lines and cannot sort; pages, files and the dashboard have room.
enum class Shown : std::uint8_t { everywhere, on_terminal, on_page };

// A cell of a table: how a terminal writes it and, of a figure, the number.
struct Cell {
  std::string text;
  double number = std::numeric_limits<double>::quiet_NaN();  // in base units (seconds, bytes); NaN: a text alone
  FigureUnit unit = FigureUnit::none;
  std::optional<std::string> page = {};  // of a text that pages write otherwise, such as in full

  Cell(std::string shown, double value = std::numeric_limits<double>::quiet_NaN(), FigureUnit of = FigureUnit::none)
      : text(std::move(shown)), number(value), unit(of) {}
  Cell(const char* shown) : text(shown) {}
  bool is_number() const { return number == number; }
  std::string on_page() const;
};
Cell seconds_cell(double seconds);
Cell bytes_cell(Bytes bytes);
Cell count_cell(std::uint64_t count);
Cell yes_or_no(bool yes);
// A text that a terminal has otherwise, such as cut.
Cell text_cell(std::string on_terminal, std::string on_page);

struct Column {
  std::string heading;
  Shown shown = Shown::everywhere;
  std::string page_heading = {};  // where pages have another

  Column(std::string text, Shown where = Shown::everywhere, std::string on_page = {})
      : heading(std::move(text)), shown(where), page_heading(std::move(on_page)) {}
  Column(const char* text) : heading(text) {}
  const std::string& on_page() const { return page_heading.empty() ? heading : page_heading; }
};

struct DocumentTable {
  std::string name;   // of the list in the JSON: "terms", "in_turn.steps"
  std::string title;  // above it on pages; on a terminal the lines before have it
  std::vector<Column> columns;
  struct Row {
    std::vector<Cell> cells;  // may be fewer than columns
    // Not empty: a terminal has this behind the first cell, cut where the line is so long.
    std::string instead = {};
    std::size_t line_width = 0;
  };
  std::vector<Row> rows = {};
  std::string indent = {};  // of its lines on a terminal
  Shown shown = Shown::everywhere;

  void add(std::vector<Cell> cells) { rows.push_back({std::move(cells)}); }
};

// What a part of a bar is painted as: painters know the colours.
struct Ink {
  enum class Kind : std::uint8_t { compute, host, stall, role, plain, marked, pale };
  Kind kind = Kind::plain;
  std::size_t which = 0;  // of a stall the cause, of a role the role
  bool pale = false;      // weaker, for what belongs to the full one and is not it
  bool operator==(const Ink&) const = default;
};

struct ChartPart {
  Ink ink;
  double value = 0;   // not below 0
  std::string label;  // for the legend
};

struct ChartBar {
  std::string group = {};  // a heading before the first of several
  std::string label = {};
  std::vector<ChartPart> parts = {};
  std::string text = {};                                        // right of the bar
  std::optional<std::pair<double, double>> between = {};        // a mark: a capacity, what was published (from, to)
  bool marked = false;                                          // the one that matters most
  std::vector<std::pair<std::string, std::string>> facts = {};  // when pointed at
  double total() const;
};
ChartBar plain_bar(std::string group, std::string label, double value, std::string text, std::string legend = "");

struct ChartDot {
  double x = 0, y = 0;
  bool marked = false;
  std::string label;
};

// Bars, each in parts, or dots. Text leaves it out.
struct BarChart {
  std::string title;
  std::string mark_label;  // what `between` is
  double most = 0;         // of all bars; what is longer is cut off
  std::vector<ChartBar> bars;
  // Or dots.
  std::string x_label, y_label;
  std::vector<ChartDot> dots;
  std::size_t dots_without_place = 0;  // of what does not fit

  std::vector<ChartPart> legend() const;  // each ink once, in order
  // Sets `most` to the longest bar, or to the argument where that is less. False where there is nothing to draw.
  bool scale(double at_most = std::numeric_limits<double>::infinity());
};

// Cells of a few kinds side by side, such as addresses (from bottom to top) over time (from left to right). Text leaves
// it out.
struct CellMap {
  std::string title, x_label, y_label;
  std::string y_most;                // what the top of the y axis is: "45.3 GiB"
  std::vector<std::string> columns;  // a character a cell, the lowest first; all of one length
  std::vector<ChartPart> kinds;      // of the character '0' + position: ink and label; ' ' is nothing
  std::vector<std::uint32_t> marks;  // columns at whose left there is a line

  std::size_t rows() const { return columns.empty() ? 0 : columns.front().size(); }
};

// Lines of a terminal, or a paragraph of a page.
struct DocumentText {
  std::string lines;
  Shown shown = Shown::on_terminal;
};

struct Document {
  std::string kind = {};   // of the answer: "bound"
  std::string title = {};  // "No policy is faster: step.trace on g10-a100"
  std::vector<std::variant<DocumentText, DocumentTable, BarChart, CellMap>> blocks = {};

  void add_text(std::string lines) { blocks.emplace_back(DocumentText{std::move(lines)}); }
  void add_paragraph(std::string text) { blocks.emplace_back(DocumentText{std::move(text), Shown::on_page}); }
  // Nothing where there are no rows, or no bars.
  void add_table(DocumentTable table);
  void add_chart(BarChart chart, double at_most = std::numeric_limits<double>::infinity());
  void add_map(CellMap map);
  const BarChart* chart() const;  // the first; null: none
  const CellMap* map() const;     // the same
};

// As a terminal shows it, in columns.
std::string document_text(const Document& document);
// What pages have of it. RFC 4180: numbers in base units with all digits.
std::string table_csv(const DocumentTable& table);

}  // namespace tencache
