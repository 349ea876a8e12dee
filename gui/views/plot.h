// Plots of one figure against another: axes with ticks, linear or logarithmic, and markers that differ in shape besides
// their colour.
#pragma once

#include <imgui.h>

#include <functional>
#include <string>
#include <vector>

#include "gui/views/theme.h"

namespace tencache::gui {

struct PlotAxis {
  double from = 0, to = 1;
  bool logarithmic = false;
  bool binary = false;  // logarithmic ticks at powers of two instead of 1, 2, 5 times those of ten
  std::function<std::string(double)> text;
  std::string label;

  double share(double value) const;  // 0 at `from`, 1 at `to`
  std::vector<double> ticks(std::size_t most) const;
  // With room beyond the values on both sides; linear ones begin at 0.
  static PlotAxis around(double least, double most, bool logarithmic);
};

struct Plot {
  ImVec2 min, max;  // of the area inside the axes
  PlotAxis x_axis, y_axis;
  float x(double value) const;
  float y(double value) const;
  ImVec2 at(double x_value, double y_value) const { return {x(x_value), y(y_value)}; }
};

// Room that the ticks and labels of the axes take, left and below.
ImVec2 plot_margin(const Theme& theme);
// The ground, the lines of the ticks and their texts.
void draw_axes(ImDrawList& list, const Theme& theme, const Plot& plot);
// Circle, square, triangle, diamond, …, by the index.
void draw_marker(ImDrawList& list, std::size_t index, ImVec2 center, float radius, ImU32 color);

}  // namespace tencache::gui
