// Bars in parts, such as time split into compute, host time and stalls by cause, and the legends of colours, alike in
// every view.
#pragma once

#include <imgui.h>

#include <cmath>
#include <string>
#include <vector>

#include "answers/document.h"
#include "answers/explain.h"
#include "gui/model/bar_parts.h"
#include "gui/views/theme.h"

namespace tencache::gui {

// Where seconds lie between left and right; what is beyond is cut off and ends in an arrow, `arrow_width` right of it.
struct BarScale {
  float left = 0, width = 1;
  double longest_seconds = 1;
  float x(double seconds) const;  // at most the right end
  bool cuts(double seconds) const { return seconds > longest_seconds * (1 + 1e-9); }
};
float arrow_width(const Theme& theme);
void draw_arrow(ImDrawList& list, const Theme& theme, const BarScale& scale, float top, float height);

// Parts of a bar from the left end on: `draw(part, min, max)` for each that is above 0; none is too narrow to be seen.
template <typename Draw>
void draw_bar_parts(const Theme& theme, const BarScale& scale, float top, float height,
                    const std::vector<double>& values, Draw draw) {
  const std::vector<double> widths = part_widths(values, scale.width / scale.longest_seconds, scale.width, theme.px(2));
  double from = scale.left;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const double to = from + widths[i];
    if (widths[i] > 0) {
      draw(i, ImVec2(std::round(static_cast<float>(from)), top),
           ImVec2(std::round(static_cast<float>(to)), top + height));
    }
    from = to;
  }
}

void draw_plain_bar(ImDrawList& list, const BarScale& scale, float top, float height, double seconds, ImU32 color);
void draw_time_bar(ImDrawList& list, const Theme& theme, const BarScale& scale, float top, float height,
                   const TimeParts& parts, float alpha = 1);
// From the low to the high end, about the height `y`; an arrow where the high end is beyond the scale.
void draw_whisker(ImDrawList& list, const Theme& theme, const BarScale& scale, float y, double low, double high);

ImU32 color_of(const Theme& theme, const Ink& ink);
// Full, hatched where it means a stall; of Ink::pale only its outline: weaker colours of two inks would look alike.
void draw_ink(ImDrawList& list, const Theme& theme, ImVec2 min, ImVec2 max, const Ink& ink, float alpha = 1);
// A filled rectangle, hatched where it means a stall.
void draw_swatch(ImDrawList& list, const Theme& theme, ImVec2 min, ImVec2 max, ImU32 color, bool hatched,
                 float alpha = 1);

struct LegendItem {
  ImU32 color = 0;
  std::string label;
  bool hatched = false;
  bool pale = false;     // half of it full, half as pale as copies that were asked for ahead
  bool outline = false;  // not filled
};
LegendItem legend_item(const Theme& theme, const ChartPart& part);
// From the cursor of the window on, on as many lines as they need.
void draw_legend(const Theme& theme, const std::vector<LegendItem>& entries);
// Of the parts that occur in any of the bars.
std::vector<LegendItem> legend_of(const Theme& theme, const std::vector<TimeParts>& bars);

}  // namespace tencache::gui
