#include "gui/views/plot.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "gui/model/describe.h"
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

namespace {

// Multiples of a round step.
std::vector<double> even_ticks(const PlotAxis& axis, std::size_t most) {
  const double at_least = (axis.to - axis.from) / static_cast<double>(most);
  const double step = axis.binary ? std::exp2(std::ceil(std::log2(at_least))) : round_from(at_least);
  std::vector<double> list;
  for (double tick = std::ceil(axis.from / step); tick * step <= axis.to; ++tick) list.push_back(tick * step);
  return list;
}

// Those factors times powers of the base.
std::vector<double> power_ticks(const PlotAxis& axis, double base, std::initializer_list<double> factors) {
  std::vector<double> list;
  for (double power = std::pow(base, std::floor(std::log(axis.from) / std::log(base))); power <= axis.to;
       power *= base) {
    for (const double factor : factors) {
      if (factor * power >= axis.from && factor * power <= axis.to) list.push_back(factor * power);
    }
  }
  return list;
}

}  // namespace

std::vector<double> PlotAxis::ticks(std::size_t most) const {
  most = std::max<std::size_t>(most, 2);
  if (!logarithmic) return even_ticks(*this, most);
  constexpr std::size_t few = 3;
  std::vector<double> list = binary ? power_ticks(*this, 2, {1}) : power_ticks(*this, 10, {1, 2, 5});
  if (list.size() < few) return even_ticks(*this, most);
  if (!binary && list.size() > most) list = power_ticks(*this, 10, {1, 5});
  for (double base = binary ? 4 : 10; list.size() > most; base *= binary ? 2 : 10) list = power_ticks(*this, base, {1});
  return list;
}

float Plot::x(double value) const { return min.x + static_cast<float>(x_axis.share(value)) * (max.x - min.x); }
float Plot::y(double value) const { return max.y - static_cast<float>(y_axis.share(value)) * (max.y - min.y); }

ImVec2 plot_margin(const Theme& theme) { return {theme.px(78), 2 * ImGui::GetFontSize() + theme.px(14)}; }

void draw_axes(ImDrawList& list, const Theme& theme, const Plot& plot) {
  const float font = ImGui::GetFontSize();
  list.AddRectFilled(plot.min, plot.max, theme.lane);
  float end = plot.min.x - plot_margin(theme).x;  // of the text before
  for (const double tick : plot.x_axis.ticks(static_cast<std::size_t>((plot.max.x - plot.min.x) / theme.px(95)))) {
    const float x = std::floor(plot.x(tick)) + 0.5f;
    list.AddLine({x, plot.min.y}, {x, plot.max.y}, theme.grid);
    const std::string text = round_figure(plot.x_axis.text(tick));
    const float width = ImGui::CalcTextSize(text.c_str()).x;
    const float left = std::min(x - width / 2, plot.max.x + theme.px(4) - width);
    if (left < end) continue;  // the line alone says enough
    list.AddText({left, plot.max.y + theme.px(4)}, theme.faint_text, text.c_str());
    end = left + width + theme.px(8);
  }
  for (const double tick : plot.y_axis.ticks(static_cast<std::size_t>((plot.max.y - plot.min.y) / theme.px(42)))) {
    const float y = std::floor(plot.y(tick)) + 0.5f;
    list.AddLine({plot.min.x, y}, {plot.max.x, y}, theme.grid);
    const std::string text = round_figure(plot.y_axis.text(tick));
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

void LabelPlacer::keep_point_free(ImVec2 center, float radius) {
  keep_free({center.x - radius, center.y - radius}, {center.x + radius, center.y + radius});
}

bool LabelPlacer::is_free(const Box& box) const {
  if (box.min.x < min_.x || box.min.y < min_.y || box.max.x > max_.x || box.max.y > max_.y) return false;
  return std::ranges::none_of(taken_, [&box](const Box& other) {
    return box.min.x < other.max.x && other.min.x < box.max.x && box.min.y < other.max.y && other.min.y < box.max.y;
  });
}

std::optional<ImVec2> LabelPlacer::place(ImVec2 point, float distance, ImVec2 size) {
  const float right = point.x + distance, left = point.x - distance - size.x, middle = point.x - size.x / 2;
  const float above = point.y - distance / 4 - size.y, below = point.y + distance / 4;
  const float far_above = point.y - distance - size.y, far_below = point.y + distance;
  for (const ImVec2 corner : {ImVec2(right, above), ImVec2(right, below), ImVec2(left, above), ImVec2(left, below),
                              ImVec2(middle, far_above), ImVec2(middle, far_below)}) {
    const Box box{corner, {corner.x + size.x, corner.y + size.y}};
    if (!is_free(box)) continue;
    taken_.push_back(box);
    return corner;
  }
  return std::nullopt;
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
