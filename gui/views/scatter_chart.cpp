#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "gui/views/canvas.h"
#include "gui/views/chart.h"
#include "gui/views/plot.h"

namespace tencache::gui {
namespace {

std::size_t series_of(const ScatterChart& chart, const ChartDot& dot) {
  return static_cast<std::size_t>(std::ranges::find(chart.series, dot.series) - chart.series.begin());
}

Plot plot_of(const Theme& theme, const ScatterChart& chart, ImVec2 corner, ImVec2 size) {
  const auto [x_least, x_most] = std::ranges::minmax(chart.dots, {}, &ChartDot::x);
  const auto [y_least, y_most] = std::ranges::minmax(chart.dots, {}, &ChartDot::y);
  Plot plot;
  plot.min = {corner.x + plot_margin(theme).x, corner.y + ImGui::GetFontSize() + theme.px(10)};
  plot.max = {corner.x + size.x - theme.px(12), corner.y + size.y - plot_margin(theme).y};
  plot.x_axis = PlotAxis::around(x_least.x, x_most.x, chart.logarithmic);
  plot.x_axis.text = [unit = chart.x_unit](double value) { return with_unit(value, unit); };
  plot.x_axis.label = chart.x_label;
  plot.y_axis = PlotAxis::around(y_least.y, y_most.y, chart.logarithmic);
  plot.y_axis.text = [unit = chart.y_unit](double value) { return with_unit(value, unit); };
  plot.y_axis.label = chart.y_label;
  return plot;
}

// Above the plot, where no dot is.
void draw_legend(ImDrawList& list, const Theme& theme, const ScatterChart& chart, const Plot& plot) {
  const float font = ImGui::GetFontSize(), y = plot.min.y - font - theme.px(6), gap = theme.px(6);
  float right = plot.max.x;
  const auto entry = [&](const std::string& label, float sign, const auto& draw) {
    const float left = right - sign - gap - ImGui::CalcTextSize(label.c_str()).x;
    if (label.empty() || left < plot.min.x + ImGui::CalcTextSize(plot.y_axis.label.c_str()).x) return;  // no room
    draw(ImVec2(left, y + font / 2));
    list.AddText({left + sign + gap, y}, theme.text, label.c_str());
    right = left - theme.px(18);
  };
  entry(chart.front, theme.px(24), [&](ImVec2 at) {
    list.AddLine(at, {at.x + theme.px(24), at.y}, theme.text, theme.px(1.5f));
    list.AddCircle({at.x + theme.px(12), at.y}, theme.px(5), theme.text, 0, theme.px(1.5f));
  });
  if (std::ranges::none_of(chart.dots, &ChartDot::reference)) return;
  entry(chart.reference, theme.px(8), [&](ImVec2 at) {
    list.AddCircle({at.x + theme.px(4), at.y}, theme.px(4), theme.text, 0, theme.px(1));
  });
}

// Steps: what lies beyond them is beaten by a dot of the front.
void draw_front(ImDrawList& list, const Theme& theme, const ScatterChart& chart, const Plot& plot,
                LabelPlacer& labels) {
  const auto line = [&](ImVec2 from, ImVec2 to) {
    list.AddLine(from, to, theme.text, theme.px(1.5f));
    labels.keep_free({std::min(from.x, to.x), std::min(from.y, to.y)},
                     {std::max(from.x, to.x), std::max(from.y, to.y)});
  };
  const ChartDot* before = nullptr;
  for (const ChartDot& dot : chart.dots) {
    if (!dot.marked) continue;
    const ImVec2 at = plot.at(dot.x, dot.y);
    if (before == nullptr) {
      line({at.x, plot.min.y}, at);
    } else {
      const ImVec2 from = plot.at(before->x, before->y);
      line(from, {at.x, from.y});
      line({at.x, from.y}, at);
    }
    before = &dot;
  }
  if (before == nullptr) return;
  const ImVec2 at = plot.at(before->x, before->y);
  line(at, {plot.max.x, at.y});
}

// What the marked dots are; of those at one place all. Where there is no room, the table beside it has them.
void draw_names(ImDrawList& list, const Theme& theme, const ScatterChart& chart, const Plot& plot,
                LabelPlacer& labels) {
  for (auto dot = chart.dots.begin(); dot != chart.dots.end();) {
    const ImVec2 at = plot.at(dot->x, dot->y);
    const bool named = dot->marked && !dot->label.empty();
    std::string text = named ? dot->label : "";
    for (++dot; dot != chart.dots.end(); ++dot) {
      const ImVec2 next = plot.at(dot->x, dot->y);
      if (std::abs(next.x - at.x) + std::abs(next.y - at.y) > 2) break;
      if (named) text += "; " + dot->label;
    }
    if (!named) continue;
    text = shortened(text, (plot.max.x - plot.min.x) / 3);
    const std::optional<ImVec2> corner = labels.place(at, theme.px(11), ImGui::CalcTextSize(text.c_str()));
    if (corner) list.AddText(*corner, theme.text, text.c_str());
  }
}

void draw_dot(ImDrawList& list, const Theme& theme, const ScatterChart& chart, const ChartDot& dot, ImVec2 at) {
  if (dot.series.empty()) {
    draw_marker(list, dot.marked ? 3 : 0, at, theme.px(dot.marked ? 6.0f : 3.5f),
                dot.marked ? theme.accent : theme.ghost);
    return;
  }
  const std::size_t series = series_of(chart, dot);
  const ImU32 color = theme.palette.line(series);
  if (dot.reference) {
    list.AddCircle(at, theme.px(4), color, 0, theme.px(1));
  } else {
    draw_marker(list, series, at, theme.px(dot.marked ? 5.5f : 4.0f), with_alpha(color, dot.marked ? 1.0f : 0.6f));
  }
  if (dot.marked) list.AddCircle(at, theme.px(8), theme.text, 0, theme.px(1.5f));
}

}  // namespace

void draw_chart(const Theme& theme, const ScatterChart& chart, ImVec2 size, std::string& chosen) {
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  ImDrawList& list = *ImGui::GetWindowDrawList();
  ImGui::InvisibleButton("dots", size);
  if (chart.dots.empty()) return;
  const Plot plot = plot_of(theme, chart, corner, size);
  draw_axes(list, theme, plot);
  LabelPlacer labels(plot.min, plot.max);
  draw_legend(list, theme, chart, plot);
  if (!chart.front.empty()) draw_front(list, theme, chart, plot, labels);
  const ChartDot* nearest = nullptr;
  float least = theme.px(14);
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  for (const bool marked : {false, true}) {
    for (const ChartDot& dot : chart.dots) {
      if (dot.marked != marked) continue;
      const ImVec2 at = plot.at(dot.x, dot.y);
      labels.keep_point_free(at, theme.px(marked ? 8.0f : 4.0f));
      draw_dot(list, theme, chart, dot, at);
      if (!dot.key.empty() && dot.key == chosen) list.AddCircle(at, theme.px(12), theme.match, 0, theme.px(2.5f));
      const float distance = std::hypot(at.x - mouse.x, at.y - mouse.y);
      if (distance >= least) continue;
      least = distance;
      nearest = &dot;
    }
  }
  draw_names(list, theme, chart, plot, labels);
  if (!ImGui::IsItemHovered()) return;
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) chosen = nearest == nullptr ? "" : nearest->key;
  if (nearest == nullptr || nearest->facts.empty()) return;
  draw_facts_tooltip(theme, nearest->facts);
}

}  // namespace tencache::gui
