#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gui/views/canvas.h"
#include "gui/views/chart.h"
#include "gui/views/plot.h"

namespace tencache::gui {
namespace {

struct Curve {
  const ChartLine* line = nullptr;
  std::string label;
  std::size_t colour = 0;  // lines of one name share it
};

// Lines of all panels, in the order of names.
std::vector<Curve> curves_of(const LineChart& chart) {
  std::vector<Curve> curves;
  std::vector<std::string> names;
  for (const ChartPanel& panel : chart.panels) {
    for (const ChartLine& line : panel.lines) {
      if (!line.reference && std::ranges::find(names, line.name) == names.end()) names.push_back(line.name);
    }
  }
  for (const ChartPanel& panel : chart.panels) {
    for (const ChartLine& line : panel.lines) {
      const auto colour = static_cast<std::size_t>(std::ranges::find(names, line.name) - names.begin());
      curves.push_back({&line, line.name + (panel.title.empty() ? "" : ", " + panel.title), colour});
    }
  }
  return curves;
}

ImU32 color_of(const Theme& theme, const std::vector<Curve>& curves, std::size_t curve, std::size_t pointed_at) {
  if (curves[curve].line->reference) return theme.ghost;
  const ImU32 color = theme.palette.line(curves[curve].colour);
  return pointed_at == none || pointed_at == curve ? color : mixed(color, theme.lane, 0.65f);
}

Plot plot_of(const Theme& theme, const LineChart& chart, const std::vector<Curve>& curves, bool logarithmic,
             ImVec2 corner, ImVec2 size) {
  double x_least = std::numeric_limits<double>::infinity(), x_most = 0, y_least = x_least, y_most = 0;
  float labels = 0;
  for (const Curve& curve : curves) {
    labels = std::max(labels, ImGui::CalcTextSize(curve.label.c_str()).x);
    for (const LinePoint& point : curve.line->points) {
      x_least = std::min(x_least, point.x);
      x_most = std::max(x_most, point.x);
      if (!point.has_place()) continue;
      y_least = std::min(y_least, point.y);
      y_most = std::max(y_most, point.y);
    }
  }
  if (y_most <= 0) y_least = y_most = 1;
  Plot plot;
  plot.min = {corner.x + plot_margin(theme).x, corner.y + ImGui::GetFontSize() + theme.px(10)};
  plot.max = {corner.x + size.x - labels - theme.px(26), corner.y + size.y - plot_margin(theme).y};
  plot.x_axis = PlotAxis::around(x_least, x_most, true);
  plot.x_axis.binary = chart.x_unit == FigureUnit::bytes;
  plot.x_axis.text = [unit = chart.x_unit](double value) { return with_unit(value, unit); };
  plot.x_axis.label = chart.x_label;
  plot.y_axis = PlotAxis::around(y_least, y_most, logarithmic);
  plot.y_axis.text = [unit = chart.y_unit](double value) { return with_unit(value, unit); };
  plot.y_axis.label = chart.y_label;
  return plot;
}

// Where the x axis has what is there now.
void draw_here(ImDrawList& list, const Theme& theme, const LineChart& chart, const Plot& plot) {
  if (!chart.here || chart.here->first < plot.x_axis.from || chart.here->first > plot.x_axis.to) return;
  const float x = plot.x(chart.here->first);
  for (float y = plot.min.y; y < plot.max.y; y += theme.px(8)) {
    list.AddLine({x, y}, {x, std::min(plot.max.y, y + theme.px(4))}, theme.text);
  }
  const float width = ImGui::CalcTextSize(chart.here->second.c_str()).x;
  const bool left = x + width + theme.px(8) > plot.max.x;
  list.AddText({left ? x - width - theme.px(6) : x + theme.px(6), plot.min.y - ImGui::GetFontSize() - theme.px(6)},
               theme.text, chart.here->second.c_str());
}

void draw_curve(ImDrawList& list, const Theme& theme, const Plot& plot, const ChartLine& line, std::size_t index,
                ImU32 color, bool pointed_at) {
  const LinePoint* before = nullptr;
  for (const LinePoint& point : line.points) {
    if (!point.has_place()) {  // a cross at the top
      const ImVec2 at{plot.x(point.x), plot.min.y + theme.px(8) + theme.px(5) * static_cast<float>(index)};
      const float r = theme.px(3);
      list.AddLine({at.x - r, at.y - r}, {at.x + r, at.y + r}, color, theme.px(1.5f));
      list.AddLine({at.x - r, at.y + r}, {at.x + r, at.y - r}, color, theme.px(1.5f));
      before = nullptr;
      continue;
    }
    const ImVec2 at = plot.at(point.x, point.y);
    if (before != nullptr) {
      list.AddLine(plot.at(before->x, before->y), at, color, theme.px(pointed_at ? 3.0f : 2.0f));
    }
    if (!line.reference) draw_marker(list, index, at, theme.px(3.5f), color);
    before = &point;
  }
  if (!line.mark) return;
  const ImVec2 at = plot.at(line.mark->x, line.mark->y);
  list.AddCircle(at, theme.px(8), theme.lane, 0, theme.px(5));
  list.AddCircle(at, theme.px(8), theme.text, 0, theme.px(1.5f));
}

// At the right ends of the lines, moved apart where they would overlap. Sets what the mouse points at.
void draw_labels(ImDrawList& list, const Theme& theme, const Plot& plot, const std::vector<Curve>& curves,
                 std::size_t& pointed_at) {
  struct Label {
    std::size_t curve;
    float end, y;
  };
  std::vector<Label> labels;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto& points = curves[i].line->points;
    const auto last = std::ranges::find_if(points.rbegin(), points.rend(), &LinePoint::has_place);
    const float y = last == points.rend() ? plot.min.y : plot.y(last->y);
    labels.push_back({i, y, y});
  }
  std::ranges::stable_sort(labels, {}, &Label::end);
  const float font = ImGui::GetFontSize(), line = font + theme.px(2);
  for (std::size_t i = 1; i < labels.size(); ++i) labels[i].y = std::max(labels[i].y, labels[i - 1].y + line);
  float most = plot.max.y;  // and up again from the bottom
  for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
    label->y = std::min(label->y, most);
    most = label->y - line;
  }
  pointed_at = none;
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  for (const Label& label : labels) {
    const bool on_it = mouse.x > plot.max.x && std::abs(mouse.y - label.y) < line / 2;
    if (on_it && ImGui::IsWindowHovered()) pointed_at = label.curve;
  }
  for (const Label& label : labels) {
    const float x = plot.max.x + theme.px(20);
    const ImU32 color = color_of(theme, curves, label.curve, pointed_at);
    list.AddLine({plot.max.x + theme.px(2), label.end}, {x - theme.px(10), label.y}, color);
    if (curves[label.curve].line->reference) {
      list.AddLine({x - theme.px(10), label.y}, {x - theme.px(2), label.y}, color, theme.px(2));
    } else {
      draw_marker(list, label.curve, {x - theme.px(6), label.y}, theme.px(3.5f), color);
    }
    list.AddText({x + theme.px(2), label.y - font / 2}, theme.text, curves[label.curve].label.c_str());
  }
}

void draw_tooltip(const Theme& theme, const LineChart& chart, const Plot& plot, const std::vector<Curve>& curves,
                  std::size_t& pointed_at) {
  if (!ImGui::IsItemHovered()) return;
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const LinePoint* nearest = nullptr;
  float least = theme.px(24);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::vector<const LinePoint*> points;
    for (const LinePoint& point : curves[i].line->points) points.push_back(&point);
    if (curves[i].line->mark) points.push_back(&*curves[i].line->mark);
    for (const LinePoint* point : points) {
      if (!point->has_place()) continue;
      const ImVec2 at = plot.at(point->x, point->y);
      const float distance = std::hypot(at.x - mouse.x, at.y - mouse.y);
      if (distance >= least) continue;
      least = distance;
      nearest = point;
      pointed_at = i;
    }
  }
  if (nearest == nullptr) return;
  Facts facts{{"", curves[pointed_at].label},
              {chart.x_label, with_unit(nearest->x, chart.x_unit)},
              {chart.y_label, with_unit(nearest->y, chart.y_unit)}};
  const Facts& more = curves[pointed_at].line->facts;
  facts.insert(facts.end(), more.begin(), more.end());
  draw_facts_tooltip(theme, facts);
}

}  // namespace

bool wants_logarithm(const LineChart& chart) {
  constexpr double most_times_on_a_linear_axis = 8;
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const ChartPanel& panel : chart.panels) {
    for (const ChartLine& line : panel.lines) {
      for (const LinePoint& point : line.points) {
        if (!point.has_place()) continue;
        least = std::min(least, point.y);
        most = std::max(most, point.y);
      }
    }
  }
  return most > most_times_on_a_linear_axis * least;
}

void draw_chart(const Theme& theme, const LineChart& chart, ImVec2 size, bool logarithmic, std::size_t& pointed_at) {
  const std::vector<Curve> curves = curves_of(chart);
  const Plot plot = plot_of(theme, chart, curves, logarithmic, ImGui::GetCursorScreenPos(), size);
  ImDrawList& list = *ImGui::GetWindowDrawList();
  draw_axes(list, theme, plot);
  draw_here(list, theme, chart, plot);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    draw_curve(list, theme, plot, *curves[i].line, i, color_of(theme, curves, i, pointed_at), i == pointed_at);
  }
  draw_labels(list, theme, plot, curves, pointed_at);
  ImGui::InvisibleButton("lines", size);
  draw_tooltip(theme, chart, plot, curves, pointed_at);
}

}  // namespace tencache::gui
