#include "gui/views/plot.h"

#include <algorithm>
#include <cmath>

#include "gui/views/canvas.h"

namespace tencache::gui {

PlotAxis PlotAxis::around(double least, double most, bool logarithmic) {
  PlotAxis axis;
  axis.logarithmic = logarithmic;
  if (logarithmic) {
    const double room = std::max(1.05, std::pow(most / least, 0.06));
    axis.from = least / room;
    axis.to = most * room;
  } else {
    axis.to = most > 0 ? most * 1.08 : 1;
  }
  return axis;
}

double PlotAxis::share(double value) const {
  if (!logarithmic) return (value - from) / (to - from);
  return std::log(value / from) / std::log(to / from);
}

std::vector<double> PlotAxis::ticks(std::size_t most) const {
  std::vector<double> list;
  most = std::max<std::size_t>(most, 2);
  if (!logarithmic) {
    const double step = round_step((to - from) / static_cast<double>(most));
    for (double tick = std::ceil(from / step); tick * step <= to; ++tick) list.push_back(tick * step);
    return list;
  }
  const double base = binary ? 2 : 10;
  for (double power = std::pow(base, std::floor(std::log(from) / std::log(base))); power <= to; power *= base) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if ((!binary || factor == 1) && factor * power >= from && factor * power <= to) list.push_back(factor * power);
    }
  }
  for (std::size_t keep = 2; list.size() > most; ++keep) {  // every second, third, …
    std::vector<double> fewer;
    for (std::size_t i = 0; i < list.size(); i += keep) fewer.push_back(list[i]);
    if (fewer.size() <= most) return fewer;
  }
  return list;
}

float Plot::x(double value) const { return min.x + static_cast<float>(x_axis.share(value)) * (max.x - min.x); }
float Plot::y(double value) const { return max.y - static_cast<float>(y_axis.share(value)) * (max.y - min.y); }

ImVec2 plot_margin(const Theme& theme) { return {theme.px(78), 2 * ImGui::GetFontSize() + theme.px(14)}; }

void draw_axes(ImDrawList& list, const Theme& theme, const Plot& plot) {
  const float font = ImGui::GetFontSize();
  list.AddRectFilled(plot.min, plot.max, theme.lane);
  for (const double tick : plot.x_axis.ticks(static_cast<std::size_t>((plot.max.x - plot.min.x) / theme.px(95)))) {
    const float x = std::floor(plot.x(tick)) + 0.5f;
    list.AddLine({x, plot.min.y}, {x, plot.max.y}, theme.grid);
    const std::string text = plot.x_axis.text(tick);
    const float width = ImGui::CalcTextSize(text.c_str()).x;
    list.AddText({x - width / 2, plot.max.y + theme.px(4)}, theme.faint_text, text.c_str());
  }
  for (const double tick : plot.y_axis.ticks(static_cast<std::size_t>((plot.max.y - plot.min.y) / theme.px(42)))) {
    const float y = std::floor(plot.y(tick)) + 0.5f;
    list.AddLine({plot.min.x, y}, {plot.max.x, y}, theme.grid);
    const std::string text = plot.y_axis.text(tick);
    const float width = ImGui::CalcTextSize(text.c_str()).x;
    list.AddText({plot.min.x - width - theme.px(6), y - font / 2}, theme.faint_text, text.c_str());
  }
  list.AddRect(plot.min, plot.max, theme.border);
  const float width = ImGui::CalcTextSize(plot.x_axis.label.c_str()).x;
  list.AddText({(plot.min.x + plot.max.x - width) / 2, plot.max.y + font + theme.px(7)}, theme.text,
               plot.x_axis.label.c_str());
  list.AddText({plot.min.x - plot_margin(theme).x + theme.px(6), plot.min.y - font - theme.px(6)}, theme.text,
               plot.y_axis.label.c_str());
}

void draw_marker(ImDrawList& list, std::size_t index, ImVec2 center, float radius, ImU32 color) {
  const float r = radius, x = center.x, y = center.y;
  switch (index % 5) {
    case 0:
      return list.AddCircleFilled(center, r, color);
    case 1:
      return list.AddRectFilled({x - 0.85f * r, y - 0.85f * r}, {x + 0.85f * r, y + 0.85f * r}, color);
    case 2:
      return list.AddTriangleFilled({x, y - 1.2f * r}, {x + 1.1f * r, y + 0.8f * r}, {x - 1.1f * r, y + 0.8f * r},
                                    color);
    case 3:
      return list.AddQuadFilled({x, y - 1.3f * r}, {x + 1.3f * r, y}, {x, y + 1.3f * r}, {x - 1.3f * r, y}, color);
    default:
      return list.AddTriangleFilled({x, y + 1.2f * r}, {x - 1.1f * r, y - 0.8f * r}, {x + 1.1f * r, y - 0.8f * r},
                                    color);
  }
}

}  // namespace tencache::gui
