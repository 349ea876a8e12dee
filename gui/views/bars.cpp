#include "gui/views/bars.h"

#include <algorithm>
#include <cmath>

#include "gui/model/describe.h"

namespace tencache::gui {

float BarScale::x(double seconds) const {
  return left + static_cast<float>(std::clamp(seconds / longest_seconds, 0.0, 1.0)) * width;
}

void draw_swatch(ImDrawList& list, const Theme& theme, ImVec2 min, ImVec2 max, ImU32 color, bool hatched, float alpha) {
  list.AddRectFilled(min, max, with_alpha(color, alpha));
  if (hatched && max.x - min.x > 5) {
    draw_hatching(list, min, max, with_alpha(readable_on(color), 0.35f * alpha), theme.px(7));
  }
}

ImU32 color_of(const Theme& theme, const Ink& ink) {
  switch (ink.kind) {
    case Ink::Kind::compute:
      return theme.palette.compute();
    case Ink::Kind::host:
      return theme.gap;
    case Ink::Kind::stall:
      return ink.pale ? mixed(theme.palette.causes[ink.which], theme.lane, 0.6f) : theme.palette.causes[ink.which];
    case Ink::Kind::role:
      return theme.palette.roles[ink.which];
    case Ink::Kind::marked:
      return theme.accent;
    case Ink::Kind::memory:
      return theme.palette.series[2];
    case Ink::Kind::link:
      return theme.palette.series[1];
    case Ink::Kind::plain:
    case Ink::Kind::pale:
      break;
  }
  return theme.ghost;
}

void draw_ink(ImDrawList& list, const Theme& theme, ImVec2 min, ImVec2 max, const Ink& ink, float alpha) {
  const ImU32 color = color_of(theme, ink);
  if (ink.kind == Ink::Kind::pale) {
    list.AddRectFilled(min, max, theme.lane);
    list.AddRect(min, max, color);
    return;
  }
  draw_swatch(list, theme, min, max, color, ink.kind == Ink::Kind::stall, alpha);
}

void draw_plain_bar(ImDrawList& list, const BarScale& scale, float top, float height, double seconds, ImU32 color) {
  list.AddRectFilled({scale.left, top}, {scale.x(seconds), top + height}, color);
}

float arrow_width(const Theme& theme) { return theme.px(7); }

void draw_arrow(ImDrawList& list, const Theme& theme, const BarScale& scale, float top, float height) {
  const float x = scale.left + scale.width;
  list.AddTriangleFilled({x, top}, {x + arrow_width(theme), top + height / 2}, {x, top + height}, theme.text);
}

void draw_time_bar(ImDrawList& list, const Theme& theme, const BarScale& scale, float top, float height,
                   const TimeParts& parts, float alpha) {
  const std::vector<ChartPart> drawn = chart_parts(parts);
  std::vector<double> seconds;
  for (const ChartPart& part : drawn) seconds.push_back(part.value);
  draw_bar_parts(theme, scale, top, height, seconds, [&](std::size_t part, ImVec2 min, ImVec2 max) {
    draw_ink(list, theme, min, max, drawn[part].ink, alpha);
  });
  if (scale.cuts(parts.busy_seconds() + parts.stalled_seconds())) draw_arrow(list, theme, scale, top, height);
}

void draw_whisker(ImDrawList& list, const Theme& theme, const BarScale& scale, float y, double low, double high) {
  const float end = theme.px(4), line = theme.px(1.5f), from = scale.x(low), to = scale.x(high);
  list.AddLine({from, y}, {to, y}, theme.selection, line);
  list.AddLine({from, y - end}, {from, y + end}, theme.selection, line);
  if (scale.cuts(high)) {
    draw_arrow(list, theme, scale, y - end, 2 * end);
  } else {
    list.AddLine({to, y - end}, {to, y + end}, theme.selection, line);
  }
}

void draw_legend(const Theme& theme, const std::vector<LegendItem>& entries) {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const float box = ImGui::GetFontSize(), space = theme.px(12);
  bool first = true;
  for (const LegendItem& entry : entries) {
    const float width = box + theme.px(5) + ImGui::CalcTextSize(entry.label.c_str()).x;
    if (!first) ImGui::SameLine(0, space);
    if (!first && ImGui::GetContentRegionAvail().x < width) ImGui::NewLine();
    first = false;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float y = at.y + ImGui::GetStyle().FramePadding.y;
    if (entry.outline) {
      list.AddRect({at.x, y}, {at.x + box, y + box}, entry.color);
    } else {
      draw_swatch(list, theme, {at.x, y}, {at.x + box, y + box}, entry.color, entry.hatched);
    }
    if (entry.pale) list.AddRectFilled({at.x, y}, {at.x + box / 2, y + box}, paler(theme, entry.color));
    list.AddText({at.x + box + theme.px(5), y}, theme.text, entry.label.c_str());
    ImGui::Dummy({width, ImGui::GetFrameHeight()});
  }
}

LegendItem legend_item(const Theme& theme, const ChartPart& part) {
  return {.color = color_of(theme, part.ink),
          .label = part.label,
          .hatched = part.ink.kind == Ink::Kind::stall,
          .outline = part.ink.kind == Ink::Kind::pale};
}

std::vector<LegendItem> legend_of(const Theme& theme, const std::vector<TimeParts>& bars) {
  TimeParts all;
  for (const TimeParts& bar : bars) {
    all.compute_seconds += bar.compute_seconds;
    all.gap_seconds += bar.gap_seconds;
    for (const StallCause cause : all_causes) all.stall_seconds[cause] += bar.stall_seconds[cause];
  }
  std::vector<LegendItem> entries;
  for (const ChartPart& part : chart_parts(all)) entries.push_back(legend_item(theme, part));
  return entries;
}

}  // namespace tencache::gui
