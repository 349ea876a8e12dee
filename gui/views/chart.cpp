#include "gui/views/chart.h"

#include <algorithm>

#include "core/text.h"
#include "gui/model/describe.h"
#include "gui/views/bars.h"
#include "gui/views/canvas.h"

namespace tencache::gui {
namespace {

float line_height(const Theme& theme) { return ImGui::GetFontSize() + theme.px(6); }

void draw_chart_legend(const Theme& theme, const BarChart& chart) {
  std::vector<LegendItem> entries;
  for (const ChartPart& part : chart.legend()) entries.push_back(legend_item(theme, part));
  const bool has_mark = std::ranges::any_of(chart.bars, [](const ChartBar& bar) { return bar.between.has_value(); });
  if (has_mark) entries.push_back({theme.error, chart.mark_label});
  draw_legend(theme, entries);
}

// In the font that is set; the whole when pointed at, where it is too long.
void heading(const std::string& text) {
  const std::string shown = shortened(text, ImGui::GetContentRegionAvail().x);
  ImGui::TextUnformatted(shown.c_str());
  if (shown != text && ImGui::IsItemHovered()) ImGui::SetTooltip("%s", text.c_str());
}

// Everything that is known of a bar: what its line has no room for too.
Facts facts_of(const ChartBar& bar) {
  if (!bar.facts.empty()) return bar.facts;
  Facts facts{{"", bar.label}, {"", bar.text}};
  return facts;
}

struct BarColumns {
  float labels = 0, bars = 0, texts = 0;
};

BarColumns columns_of(const Theme& theme, const BarChart& chart, float width) {
  BarColumns columns;
  for (const ChartBar& bar : chart.bars) {
    columns.labels = std::max(columns.labels, ImGui::CalcTextSize(bar.label.c_str()).x);
    columns.texts = std::max(columns.texts, ImGui::CalcTextSize(bar.text.c_str()).x);
  }
  const float gap = theme.px(12);
  columns.labels = std::min(columns.labels, width * 0.42f) + gap;
  columns.texts = std::min(columns.texts, width * 0.36f) + gap;
  columns.bars = std::max(theme.px(60), width - columns.labels - columns.texts);
  return columns;
}

void draw_bar(ImDrawList& list, const Theme& theme, const BarChart& chart, const ChartBar& bar, ImVec2 at,
              const BarColumns& columns) {
  const float height = ImGui::GetFontSize();
  const ImU32 text = bar.marked ? theme.accent : theme.text;
  list.AddText(at, text, shortened(bar.label, columns.labels - theme.px(10)).c_str());
  const BarScale scale{at.x + columns.labels, columns.bars - theme.px(12), chart.axis.most};
  std::vector<double> values;
  for (const ChartPart& part : bar.parts) values.push_back(part.value);
  draw_bar_parts(theme, scale, at.y, height, values, [&](std::size_t part, ImVec2 min, ImVec2 max) {
    draw_ink(list, theme, min, max, bar.parts[part].ink);
  });
  if (scale.cuts(bar.total())) draw_arrow(list, theme, scale, at.y, height);
  if (bar.between && bar.between->first <= chart.axis.most * (1 + 1e-9)) {
    const float half = theme.px(1), left = scale.x(bar.between->first), right = scale.x(bar.between->second);
    list.AddRectFilled({left - half, at.y - theme.px(2)}, {right + half, at.y + height + theme.px(2)},
                       right - left > 2 * half ? with_alpha(theme.error, 0.5f) : theme.error);
  }
  if (bar.interval && bar.interval->first < scale.longest_seconds) {
    draw_whisker(list, theme, scale, at.y + height / 2, bar.interval->first, bar.interval->second);
  }
  const float x = at.x + columns.labels + columns.bars;
  list.AddText({x, at.y}, bar.marked ? theme.accent : theme.faint_text,
               shortened(bar.text, columns.texts - theme.px(4)).c_str());
}

void draw_bars(const Theme& theme, const BarChart& chart) {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const float width = ImGui::GetContentRegionAvail().x;
  const BarColumns columns = columns_of(theme, chart, width);
  const std::string* group = nullptr;
  for (const ChartBar& bar : chart.bars) {
    if (!bar.group.empty() && (group == nullptr || *group != bar.group)) {
      ImGui::PushFont(theme.fonts.bold);
      heading(bar.group);
      ImGui::PopFont();
    }
    group = &bar.group;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImGui::Dummy({width, line_height(theme) - ImGui::GetStyle().ItemSpacing.y});
    if (ImGui::IsItemHovered()) {
      draw_facts_tooltip(theme, facts_of(bar));
    }
    if (ImGui::IsItemVisible()) draw_bar(list, theme, chart, bar, at, columns);
  }
}

}  // namespace

float chart_height(const Theme& theme, const BarChart& chart) {
  const float line = line_height(theme);
  const float text = ImGui::GetFontSize() + ImGui::GetStyle().ItemSpacing.y;
  float height = 3.5f * text;  // title and legend
  const std::string* group = nullptr;
  for (const ChartBar& bar : chart.bars) {
    height += line + (!bar.group.empty() && (group == nullptr || *group != bar.group) ? text : 0);
    group = &bar.group;
  }
  return height;
}

void draw_chart(const Theme& theme, const BarChart& chart, float height) {
  const float top = ImGui::GetCursorPosY();
  ImGui::PushFont(theme.fonts.bold);
  heading(chart.title);
  ImGui::PopFont();
  draw_chart_legend(theme, chart);
  ImGui::BeginChild("bars", {0, height - (ImGui::GetCursorPosY() - top)}, false);
  draw_bars(theme, chart);
  ImGui::EndChild();
}

void draw_map(const Theme& theme, const CellMap& map, float height) {
  const float begin = ImGui::GetCursorPosY();
  ImGui::PushFont(theme.fonts.bold);
  heading(map.title);
  ImGui::PopFont();
  std::vector<LegendItem> entries;
  for (const ChartPart& kind : map.kinds) entries.push_back(legend_item(theme, kind));
  draw_legend(theme, entries);
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const float line = line_height(theme), labels = ImGui::CalcTextSize(map.y_most.c_str()).x + theme.px(12);
  const float room = std::max(4 * line, height - (ImGui::GetCursorPosY() - begin));
  const ImVec2 min{corner.x + labels, corner.y},
      max{corner.x + ImGui::GetContentRegionAvail().x, corner.y + room - line};
  const float width = (max.x - min.x) / static_cast<float>(map.columns.size());
  const float cell = (max.y - min.y) / static_cast<float>(map.rows());
  for (std::size_t column = 0; column < map.columns.size(); ++column) {
    const std::string& cells = map.columns[column];
    const float left = min.x + width * static_cast<float>(column);
    for (std::size_t from = 0; from < cells.size();) {
      std::size_t to = from;
      while (to < cells.size() && cells[to] == cells[from]) ++to;
      if (const auto kind = static_cast<std::size_t>(cells[from] - '0'); kind < map.kinds.size()) {
        draw_ink(list, theme, {left, max.y - cell * static_cast<float>(to)},
                 {left + width, max.y - cell * static_cast<float>(from)}, map.kinds[kind].ink);
      }
      from = to;
    }
  }
  for (const std::uint32_t mark : map.marks) {
    const float x = min.x + width * static_cast<float>(mark);
    list.AddLine({x, min.y}, {x, max.y}, theme.faint_text);
  }
  list.AddText({corner.x, min.y}, theme.faint_text, map.y_most.c_str());
  list.AddText({corner.x, max.y - line}, theme.faint_text, "0");
  list.AddText({min.x, max.y + theme.px(2)}, theme.faint_text, map.x_label.c_str());
  ImGui::Dummy({max.x - corner.x, room});
}

}  // namespace tencache::gui
