// What views with a time axis share: the mapping between time and pixels, the ruler, and the keys and mouse of zooming
// and panning, so that they feel the same everywhere.
#pragma once

#include <imgui.h>

#include <algorithm>
#include <utility>

#include "gui/model/session.h"
#include "gui/views/bars.h"
#include "gui/views/theme.h"

namespace tencache::gui {

// Keys by the letter on them. From 1.87 on ImGui has names for all keys; before, letters are the window system's
// numbers, which are those of their capitals.
#if IMGUI_VERSION_NUM >= 18700
inline ImGuiKey key_of(char letter) {
  if (letter >= 'A' && letter <= 'Z') return static_cast<ImGuiKey>(ImGuiKey_A + (letter - 'A'));
  if (letter >= '0' && letter <= '9') return static_cast<ImGuiKey>(ImGuiKey_0 + (letter - '0'));
  if (letter == '=') return ImGuiKey_Equal;
  if (letter == '-') return ImGuiKey_Minus;
  return ImGuiKey_None;
}
#else
inline int key_of(char letter) { return letter; }
#endif

struct TimeAxis {
  float left = 0, width = 1;  // pixels
  double begin_ns = 0, end_ns = 1;

  double pixel_ns() const { return (end_ns - begin_ns) / width; }
  float x(double time_ns) const { return left + static_cast<float>((time_ns - begin_ns) / pixel_ns()); }
  // Within what a drawing list can take, for ends far outside.
  float clamped_x(double time_ns) const;
  double time(float x) const { return begin_ns + (x - left) * pixel_ns(); }
  std::size_t pixels() const { return static_cast<std::size_t>(width); }
};

TimeAxis axis_of(const Session& session, float left, float width);

// The least of 1, 2 or 5 times a power of ten that is as much.
double round_from(double at_least);

// Times along the top and lines down to `bottom`.
void draw_ruler(ImDrawList& list, const Theme& theme, const TimeAxis& axis, float top, float bottom);
float ruler_height(const Theme& theme);

// The beginnings of a text generation's steps, as lines over lanes from `top` to `bottom`, with their names where there
// is room for these; times count from `origin_ns`. Lines that would stand too close are left out.
void draw_steps(ImDrawList& list, const Theme& theme, const TimeAxis& axis, const Run& run, Nanoseconds origin_ns,
                float top, float bottom);

// The cause whose colour a link's copies have.
StallCause cause_of_track(const Run& run, const Track& track);
// A part of each pixel's column, such as one colour of a stack; equal neighbours are one rectangle. `part_of(pixel)`
// says from where to where above `bottom`, in whole pixels; called once for each, from the left.
template <typename PartOf>
void draw_parts(ImDrawList& list, const TimeAxis& axis, float bottom, ImU32 color, PartOf part_of) {
  std::size_t begin = 0;
  std::pair<float, float> part{0.0f, 0.0f};
  const auto flush = [&](std::size_t end) {
    if (part.second <= part.first) return;
    list.AddRectFilled({axis.left + static_cast<float>(begin), bottom - part.second},
                       {axis.left + static_cast<float>(end), bottom - part.first}, color);
  };
  for (std::size_t pixel = 0; pixel < axis.pixels(); ++pixel) {
    const std::pair<float, float> next = part_of(pixel);
    if (next == part) continue;
    flush(pixel);
    begin = pixel;
    part = next;
  }
  flush(axis.pixels());
}

// What does not fill a pixel: shares of each pixel, stacked; equal neighbours are one rectangle.
void draw_columns(ImDrawList& list, const Theme& theme, const TimeAxis& axis, const Track& track, StallCause cause,
                  const VisibleTrack& visible, float top, float height, float alpha);
// A whole lane without names; times count from `origin_ns`. `visible`: scratch. For each span that is wide enough to be
// seen, `on_item(item, min, max, color)` draws what goes over it; `strength(item)` weakens colours, 1 is full.
template <typename OnItem, typename Strength>
void draw_track(ImDrawList& list, const Theme& theme, const TimeAxis& axis, const Run& run, const Track& track,
                Nanoseconds origin_ns, float top, float height, VisibleTrack& visible, float alpha, OnItem on_item,
                Strength strength) {
  const auto origin = static_cast<double>(origin_ns);
  const StallCause cause = cause_of_track(run, track);
  track.collect(axis.begin_ns + origin, axis.end_ns + origin, axis.pixels(), visible);
  list.AddRectFilled({axis.left, top}, {axis.left + axis.width, top + height}, theme.lane);
  draw_columns(list, theme, axis, track, cause, visible, top, height, alpha);
  const float row = height / track.row_count(), rows_gap = track.row_count() > 1 ? 1.0f : 0.0f;
  for (const std::uint32_t index : visible.items) {
    const TrackItem& item = track.items()[index];
    const ImVec2 min{std::max(axis.left, axis.clamped_x(static_cast<double>(item.begin_ns) - origin)),
                     top + row * item.row};
    const ImVec2 max{std::min(axis.left + axis.width, axis.clamped_x(static_cast<double>(item.end_ns) - origin)),
                     top + row * (item.row + 1.0f) - rows_gap};
    const ImU32 color = mixed(theme.lane, theme.slot(track, cause, item.slot), strength(item));
    const bool stall = run.spans()[item.span].kind == SpanKind::stall;
    // A hairline between neighbours once there is room for one.
    draw_swatch(list, theme, min, {max.x - min.x > theme.px(24) ? max.x - 1 : max.x, max.y}, color, stall);
    on_item(item, min, max, color);
  }
}

// Whether this character was typed, elsewhere than into a box. Signs stand on other keys of other keyboards, so that
// only the letters and digits may be asked for by key.
bool typed(char character);

// Zoom, pan, select a range and point with the mouse, of the area of the last item; zoom and pan with keys where no
// text is typed. Sets the session's cursor while the mouse is in the area. Returns true if the area was clicked without
// being dragged.
bool handle_time_input(Session& session, const TimeAxis& axis, bool hovered);
// The cursor's line and the selected range, over what was drawn.
void draw_cursor_and_range(ImDrawList& list, const Theme& theme, const Session& session, const TimeAxis& axis,
                           float top, float bottom);

// Which iteration is looked at, with arrows to the one before and after.
void draw_iteration_choice(Session& session, const Theme& theme);

// Facts in two columns, the first as a title; used by tooltips and panels. `width` 0: as wide as needed.
void draw_facts(const Theme& theme, const std::vector<std::pair<std::string, std::string>>& facts, float width = 0);
void draw_facts_tooltip(const Theme& theme, const std::vector<std::pair<std::string, std::string>>& facts);
void draw_bold(const Theme& theme, std::string_view text);

}  // namespace tencache::gui
