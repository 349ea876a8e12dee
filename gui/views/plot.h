// Plots of one figure against another: axes with ticks, linear or logarithmic, and markers that differ in shape besides
// their colour.
#pragma once

#include <imgui.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gui/views/theme.h"

namespace tencache::gui {

struct PlotAxis {
  double from = 0, to = 1;
  bool logarithmic = false;
  bool binary = false;  // ticks at powers of two instead of ten
  std::function<std::string(double)> text;
  std::string label;

  double share(double value) const;  // 0 at `from`, 1 at `to`
  // At most so many, all round numbers: of logarithmic axes 1, 2 and 5, 1 and 5 or 1 times powers of ten, and where
  // that are too few, as on linear ones.
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
// Finds room for texts beside points, where they cover neither points nor lines nor one another.
class LabelPlacer {
 public:
  LabelPlacer(ImVec2 min, ImVec2 max) : min_(min), max_(max) {}
  void keep_free(ImVec2 min, ImVec2 max) { taken_.push_back({min, max}); }
  void keep_point_free(ImVec2 center, float radius);
  // The upper left corner of a text of that size beside the point, its place taken from then on; none: no room.
  std::optional<ImVec2> place(ImVec2 point, float distance, ImVec2 size);

 private:
  struct Box {
    ImVec2 min, max;
  };
  bool is_free(const Box& box) const;
  ImVec2 min_, max_;
  std::vector<Box> taken_;
};

// Circle, square, triangle, diamond, …, by the index.
void draw_marker(ImDrawList& list, std::size_t index, ImVec2 center, float radius, ImU32 color);

}  // namespace tencache::gui
