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

// Where something stands: terminals have narrow lines and cannot sort; pages and the dashboard have room; CSV files have
// what pages have, and what only programs read.
enum class Shown : std::uint8_t { everywhere, on_terminal, on_page, in_files };

// A label and its value, a line each; a title has an empty label.
using Facts = std::vector<std::pair<std::string, std::string>>;

// What a part of a picture is painted as: painters know the colours.
struct Ink {
  enum class Kind : std::uint8_t { compute, host, stall, role, memory, link, plain, marked, pale };
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

// A bar, each part right of the one before, and the ends of the interval that its total lies in.
struct CellBar {
  std::vector<ChartPart> parts;
  std::optional<std::pair<double, double>> interval = {};
  double total() const;
};

// A cell of a table: how a terminal writes it and, of a figure, the number.
struct Cell {
  std::string text;
  double number = std::numeric_limits<double>::quiet_NaN();  // in base units (seconds, bytes); NaN: a text alone
  FigureUnit unit = FigureUnit::none;
  std::optional<std::string> page = {};  // what pages write otherwise, such as in full
  std::optional<CellBar> bar = {};       // of a column of bars

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
Cell bar_cell(CellBar bar, std::string text = "");

// What all bars of a column, or of a chart, have in common.
struct BarAxis {
  double most = 0;                                           // fills the width; what is longer is cut off
  std::size_t characters = 0;                                // the width on a terminal
  FigureUnit unit = FigureUnit::none;                        // of the axis on pages; none: there is no axis
  std::optional<std::pair<double, std::string>> limit = {};  // a line across all, and its name
  std::string caption = {};  // below the picture on pages; of a column, without it there is only the figure
};

struct Column {
  std::string heading;
  Shown shown = Shown::everywhere;
  std::string page_heading = {};  // where pages have another
  std::optional<BarAxis> bars = {};

  Column(std::string text, Shown where = Shown::everywhere, std::string on_page = {})
      : heading(std::move(text)), shown(where), page_heading(std::move(on_page)) {}
  Column(const char* text) : heading(text) {}
  const std::string& on_page() const { return page_heading.empty() ? heading : page_heading; }
};

struct DocumentTable {
  std::string name;   // of the list in the JSON: "terms", "in_turn.steps"
  std::string title;  // above it on pages; on a terminal the lines before have it
  std::vector<Column> columns;
  Shown shown = Shown::everywhere;
  std::string indent = {};  // of its lines on a terminal
  struct Row {
    std::vector<Cell> cells;  // may be fewer than columns
    // Not empty: this stands behind the first cell, on a terminal cut where the line is so long; on pages only where
    // there are no other cells, and in CSV in the last column then.
    std::string instead = {};
    std::size_t line_width = 0;
    enum class Weight : std::uint8_t { normal, best, reference };
    Weight weight = Weight::normal;
    std::string key = {};  // what the row is of: dots of a chart may have the same
    Facts facts = {};      // when pointed at
  };
  std::vector<Row> rows = {};
  std::string note = {};  // below it on pages

  void add(std::vector<Cell> cells) { rows.push_back({std::move(cells)}); }
};

struct ChartBar {
  std::string group = {};  // a heading before the first of several
  std::string label = {};
  std::vector<ChartPart> parts = {};
  std::string text = {};                                   // right of the bar
  std::optional<std::pair<double, double>> between = {};   // a mark: a capacity, what was published (from, to)
  std::optional<std::pair<double, double>> interval = {};  // a whisker
  bool marked = false;                                     // the one that matters most
  Facts facts = {};                                        // when pointed at
  double total() const;
};
ChartBar plain_bar(std::string group, std::string label, double value, std::string text, std::string legend = "");

// Bars, each in parts. Text leaves it out: the tables beside it have the figures.
struct BarChart {
  std::string title;
  std::string mark_label;  // what `between` is
  BarAxis axis = {};
  std::vector<ChartBar> bars = {};

  std::vector<ChartPart> legend() const;  // each ink once, in order
  // Sets axis.most to the longest bar, or to the argument where that is less. False where there is nothing to draw.
  bool fit(double at_most = std::numeric_limits<double>::infinity());
};
// A column of bars as a chart of its own; labels are the first cells.
BarChart chart_of(const DocumentTable& table, std::size_t column);

// A point that does not fit has no y: NaN.
struct LinePoint {
  double x = 0, y = 0;
  bool has_place() const { return y == y; }
};

struct ChartLine {
  std::string name;
  std::vector<LinePoint> points;
  std::optional<LinePoint> mark;  // ringed, with a line down to the axis
  std::string mark_label;
  bool reference = false;  // grey and dashed, without markers
  Facts facts = {};        // when pointed at, besides x and y
};

struct ChartPanel {
  std::string title;
  std::vector<ChartLine> lines;  // the same names in the same order in every panel
};

// One figure against another, a line each. Text leaves it out, as above.
struct LineChart {
  std::string title, subtitle;
  std::string x_label, y_label;  // without units
  FigureUnit x_unit = FigureUnit::none, y_unit = FigureUnit::none;
  std::vector<std::pair<double, std::string>> ticks;   // of the x axis, which is logarithmic
  std::optional<std::pair<double, std::string>> here;  // a value of the x axis with its name
  std::vector<ChartPanel> panels;                      // side by side, up to three a row; all on the same axes
  std::string note;                                    // below
};

struct ChartDot {
  double x = 0, y = 0;
  bool marked = false;      // on the front, or the best
  std::string label = {};   // of a marked one, beside it
  std::string series = {};  // a colour and a shape each; empty: none
  bool reference = false;   // only its outline: nothing is compared with it
  std::string key = {};     // what it is of
  Facts facts = {};         // when pointed at
};

// One figure against another, a dot each. Text leaves it out, as above.
struct ScatterChart {
  std::string title;
  std::string x_label, y_label;
  FigureUnit x_unit = FigureUnit::none, y_unit = FigureUnit::none;
  bool logarithmic = false;         // both axes; else they begin at 0
  std::vector<ChartDot> dots;       // by x
  std::vector<std::string> series;  // in the order of their colours
  std::string front;                // what the steps that join the marked dots mean; empty: they are not joined
  std::string reference;            // what dots that are only references are
  std::string note;                 // below
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

using DocumentBlock = std::variant<DocumentText, DocumentTable, BarChart, LineChart, ScatterChart, CellMap>;

struct Document {
  std::string kind = {};   // of the answer: "bound"
  std::string title = {};  // "No policy is faster: step.trace on g10-a100"
  std::vector<DocumentBlock> blocks = {};

  void add_text(std::string lines) { blocks.emplace_back(DocumentText{std::move(lines)}); }
  void add_paragraph(std::string text) { blocks.emplace_back(DocumentText{std::move(text), Shown::on_page}); }
  // Nothing where there are no rows, or no bars.
  void add_table(DocumentTable table);
  void add_chart(BarChart chart, double at_most = std::numeric_limits<double>::infinity());
  void add_map(CellMap map);
  template <typename Block>
  const Block* first() const {  // null: none
    for (const DocumentBlock& block : blocks) {
      if (const auto* found = std::get_if<Block>(&block)) return found;
    }
    return nullptr;
  }
};

// Characters of a terminal, the width of the axis for its most: █ what is no stall, ▒ the longest stall, ░ the others; ▸
// where the bar is cut off.
std::string bar_text(const CellBar& bar, const BarAxis& axis);
// As a terminal shows it, in columns.
std::string document_text(const Document& document);
// What pages have of it, without bars, and what only files have. RFC 4180: numbers in base units with all digits.
std::string table_csv(const DocumentTable& table);

}  // namespace tencache
