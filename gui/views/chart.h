// A document's picture (gui/model/chart.h), drawn.
#pragma once

#include <imgui.h>

#include "gui/model/chart.h"
#include "gui/views/theme.h"

namespace tencache::gui {

// Into the rest of the window's width; bars are as high as they need and scroll, dots fill the height.
void draw_chart(const Theme& theme, const BarChart& chart, float height);
void draw_map(const Theme& theme, const CellMap& map, float height);
// What the chart's bars and lines need; of dots some height.
float chart_height(const Theme& theme, const BarChart& chart);

}  // namespace tencache::gui
