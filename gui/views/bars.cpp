#include "gui/views/bars.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  std::vector<double> seconds{parts.compute_seconds, parts.gap_seconds};
  seconds.insert(seconds.end(), parts.stall_seconds.begin(), parts.stall_seconds.end());
  draw_bar_parts(theme, scale, top, height, seconds, [&](std::size_t part, ImVec2 min, ImVec2 max) {
    const ImU32 color = part == 0 ? theme.palette.compute() : part == 1 ? theme.gap : theme.palette.causes[part - 2];
    draw_swatch(list, theme, min, max, color, part >= 2, alpha);
  });
  if (scale.cuts(std::accumulate(seconds.begin(), seconds.end(), 0.0))) draw_arrow(list, theme, scale, top, height);
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
    draw_swatch(list, theme, {at.x, y}, {at.x + box, y + box}, entry.color, entry.hatched);
    if (entry.pale) list.AddRectFilled({at.x, y}, {at.x + box / 2, y + box}, paler(theme, entry.color));
    list.AddText({at.x + box + theme.px(5), y}, theme.text, entry.label.c_str());
    ImGui::Dummy({width, ImGui::GetFrameHeight()});
  }
}

std::vector<LegendItem> legend_of(const Theme& theme, const std::vector<TimeParts>& bars) {
  std::vector<LegendItem> entries{{theme.palette.compute(), "compute"}, {theme.gap, "host time"}};
  for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
    if (std::ranges::none_of(bars, [cause](const TimeParts& bar) { return bar.stall_seconds[cause] > 0; })) continue;
    entries.push_back(
        {theme.palette.causes[cause], std::string("waits for ") + label_of(static_cast<StallCause>(cause)), true});
  }
  return entries;
}

}  // namespace tencache::gui
