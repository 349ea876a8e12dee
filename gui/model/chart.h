// The picture that belongs to a document, where there is one: bars, each in parts, or dots; what `explain`, `bound`,
// `fit`, `tune` and `validate` print, as a person would draw it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answers/json.h"
#include "core/timeline.h"
#include "core/trace.h"
#include "gui/model/table.h"

namespace tencache::gui {

// What a part is painted as: the views' theme knows the colours.
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

struct Chart {
  std::string title;
  std::string mark_label;  // what `between` is
  double most = 0;         // of all bars
  std::vector<ChartBar> bars;
  // Or dots.
  std::string x_label, y_label;
  std::vector<ChartDot> dots;
  std::size_t dots_without_place = 0;     // of what does not fit
  std::vector<ChartPart> legend() const;  // each ink once, in order
};

// What the document is, by its members; empty where no command of tencache prints it.
std::string kind_of_document(const Json& document);
// Empty where the document has no picture. Throws Error where it is damaged.
std::optional<Chart> chart_of(const Json& document, const std::string& file);
// Of the candidates that `tune --csv` writes; empty where the table is another.
std::optional<Chart> chart_of(const DataTable& table);

}  // namespace tencache::gui
