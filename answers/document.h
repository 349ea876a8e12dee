// An answer for people before it is painted: text, tables and pictures with their numbers, which text, HTML, CSV and the
// dashboard show each in its own way. No painter computes a figure.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/units.h"

namespace tencache {

// A cell of a table: how people write it and, of a figure, the number.
struct Cell {
  std::string text;
  double number = std::numeric_limits<double>::quiet_NaN();  // in base units (seconds, bytes); NaN: a text alone

  Cell(std::string shown, double value = std::numeric_limits<double>::quiet_NaN())
      : text(std::move(shown)), number(value) {}
  Cell(const char* shown) : text(shown) {}
  bool is_number() const { return number == number; }
};
Cell seconds_cell(double seconds);
Cell bytes_cell(Bytes bytes);

struct DocumentTable {
  std::string name;   // of the list in the JSON: "terms", "in_turn.steps"
  std::string title;  // above it; in text the lines before have it
  std::vector<std::string> headings;
  struct Row {
    std::vector<Cell> cells;     // may be fewer than headings
    std::size_t line_width = 0;  // not 0: of two cells, the second is cut where the line is so long
  };
  std::vector<Row> rows;
  std::string indent = {};  // of its lines in text

  void add(std::vector<Cell> cells) { rows.push_back({std::move(cells), 0}); }
  bool is_numeric(std::size_t column) const;  // has numbers
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
  std::string group;  // a heading before the first of several
  std::string label;
  std::vector<ChartPart> parts;
  std::string text;                                        // right of the bar
  std::optional<std::pair<double, double>> between;        // a mark: a capacity, what was published (from, to)
  bool marked = false;                                     // the one that matters most
  std::vector<std::pair<std::string, std::string>> facts;  // when pointed at
  double total() const;
};

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

// Lines as a terminal shows them.
struct DocumentText {
  std::string lines;
};

struct Document {
  std::string kind;   // the command that it answers: "bound"
  std::string title;  // "No policy is faster: step.trace on g10-a100"
  std::vector<std::variant<DocumentText, DocumentTable, BarChart>> blocks;

  void add_text(std::string lines) { blocks.emplace_back(DocumentText{std::move(lines)}); }
  const BarChart* chart() const;  // the first; null: none
};

// As a terminal shows it, in fixed columns.
std::string document_text(const Document& document);
// RFC 4180: numbers in base units with all digits.
std::string table_csv(const DocumentTable& table);

}  // namespace tencache
