// Pieces of the report: text that may hold anything, and pictures (SVG inside the page) whose colours follow the
// reader's light or dark mode. The page is XML as well, so that any parser of either can read it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answers/figure_unit.h"
#include "gui/model/track.h"

namespace tencache::gui {

// For element content and attributes in double quotes. Bytes that are not UTF-8 and control characters, which no
// document may hold, become U+FFFD; what is longer than `most` characters ends in "…".
std::string html_text(std::string_view text, std::size_t most = 400);

// At most so many characters, with "…" in the middle: names that begin alike end differently. Not escaped.
std::string shortened_to(std::string_view text, std::size_t most);

// The classes of colours: "p0" … phases, then recomputation, "gap", "c0" … causes of stalls, "r0" … roles. Copies have
// the colour of the stall that they cause, paler if asked for in advance; `link`: that cause, none for lanes of ops.
std::string class_of_slot(std::optional<StallCause> link, std::size_t slot);
// What the slot is: "forward", "waits for copies to GPU", "copies to GPU, asked for in advance".
std::string label_of_slot(std::optional<StallCause> link, std::size_t slot);

// Style and colours of the whole page; those of the dashboard (gui/model/palette.h).
std::string style_sheet();

struct LegendEntry {
  std::string colour_class, label;
};
std::string legend(const std::vector<LegendEntry>& entries);

// A label and its value in a list of them; nothing without a value.
void add_fact(std::string& html, const char* label, const std::string& value);

// Rectangles of one class as one path. Those that touch sideways and are equally high become one.
class BoxPath {
 public:
  explicit BoxPath(std::string colour_class) : class_(std::move(colour_class)) {}
  // In whole and half pixels; from left to right where they are to be joined.
  void add(double x, double y, double width, double height);
  std::string svg() const;  // empty without boxes
  bool empty() const { return boxes_.empty(); }

 private:
  struct Box {
    double x, y, width, height;
  };
  std::string class_;
  std::vector<Box> boxes_;
};

// "12.5", "12": coordinates without needless digits.
std::string coordinate(double value);

}  // namespace tencache::gui
