// The pictures of documents (answers/document.h), drawn.
#pragma once

#include <imgui.h>

#include <string>

#include "answers/document.h"
#include "gui/views/theme.h"

namespace tencache::gui {

// Into the rest of the window's width; bars are as high as they need and scroll.
void draw_chart(const Theme& theme, const BarChart& chart, float height);
void draw_map(const Theme& theme, const CellMap& map, float height);
float chart_height(const Theme& theme, const BarChart& chart);  // that its bars need

// Lines of all panels on one plot, labelled at their ends. `pointed_at`: the line that the mouse points at, of those of
// all panels; it stays from frame to frame, and the others are paler. `none`: no line.
void draw_chart(const Theme& theme, const LineChart& chart, ImVec2 size, bool logarithmic, std::size_t& pointed_at);
// Whether times are so far apart that a linear axis would flatten the lower lines.
bool wants_logarithm(const LineChart& chart);

// `chosen`: the key of the dot that stands out; a click sets it.
void draw_chart(const Theme& theme, const ScatterChart& chart, ImVec2 size, std::string& chosen);

}  // namespace tencache::gui
