#include "gui/views/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gui/model/describe.h"

namespace tencache::gui {
namespace {

constexpr double zoom_per_notch = 0.8;
constexpr double pan_per_notch = 0.1;  // of what is shown

}  // namespace

double round_from(double at_least) {
  const double power = std::pow(10.0, std::floor(std::log10(at_least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= at_least) return factor * power;
  }
  return 10 * power;
}

float TimeAxis::clamped_x(double time_ns) const {
  return left + static_cast<float>(std::clamp((time_ns - begin_ns) / pixel_ns(), -16.0, width + 16.0));
}

TimeAxis axis_of(const Session& session, float left, float width) {
  return {left, std::max(1.0f, std::floor(width)), session.window.begin_ns, session.window.end_ns};
}

float ruler_height(const Theme& theme) { return ImGui::GetFontSize() + theme.px(6); }

void draw_ruler(ImDrawList& list, const Theme& theme, const TimeAxis& axis, float top, float bottom) {
  const float font = ImGui::GetFontSize();
  const double step = round_from(std::max(1.0, axis.pixel_ns() * theme.px(110)));
  const float height = ruler_height(theme);
  for (double tick = std::ceil(axis.begin_ns / step); tick * step <= axis.end_ns; ++tick) {
    const double time = tick * step;
    const float x = std::floor(axis.x(time)) + 0.5f;
    list.AddLine({x, top + height - theme.px(4)}, {x, bottom}, tick == 0 ? theme.faint_text : theme.grid);
    const std::string text = time_text(time, step);
    const float width = ImGui::CalcTextSize(text.c_str()).x;
    if (x + theme.px(3) + width < axis.left + axis.width) {
      list.AddText({x + theme.px(3), top + (height - font) / 2 - theme.px(1)}, theme.faint_text, text.c_str());
    }
  }
}

void draw_steps(ImDrawList& list, const Theme& theme, const TimeAxis& axis, const Run& run, Nanoseconds origin_ns,
                float top, float bottom) {
  const std::vector<StepBegin>& steps = run.steps();
  const auto x_of = [&](std::size_t i) {
    return i == steps.size() ? axis.left + axis.width
                             : axis.clamped_x(static_cast<double>(steps[i].time_ns - origin_ns));
  };
  const auto begin_ns = static_cast<Nanoseconds>(axis.begin_ns) + origin_ns;
  const auto first = std::ranges::lower_bound(steps, begin_ns, {}, &StepBegin::time_ns);
  float last = -std::numeric_limits<float>::infinity();
  for (auto i = static_cast<std::size_t>(first - steps.begin()); i < steps.size(); ++i) {
    const float x = std::floor(x_of(i)) + 0.5f;
    if (x > axis.left + axis.width) break;
    const bool prefill = steps[i].phase == Phase::prefill;
    if (x - last < theme.px(prefill ? 2 : 8)) continue;
    last = x;
    list.AddLine({x, top}, {x, bottom}, prefill ? theme.text : theme.faint_text);
    const std::string name = step_name(steps[i]);
    if (ImGui::CalcTextSize(name.c_str()).x + theme.px(6) > x_of(i + 1) - x) continue;
    const ImVec2 at{x + theme.px(3), top + theme.px(1)};
    const ImVec2 size = ImGui::CalcTextSize(name.c_str());
    list.AddRectFilled({at.x - 1, at.y}, {at.x + size.x + 1, at.y + size.y}, theme.background);
    list.AddText(at, theme.text, name.c_str());
  }
}

StallCause cause_of_track(const Run& run, const Track& track) {
  if (!track.is_link()) return StallCause::memory;
  return cause_of(run.machine(), static_cast<LinkId>(track.lane() - first_link_lane));
}

void draw_columns(ImDrawList& list, const Theme& theme, const TimeAxis& axis, const Track& track, StallCause cause,
                  const VisibleTrack& visible, float top, float height, float alpha) {
  std::vector<float> base(axis.pixels(), 0.0f);
  const float bottom = top + height;
  for (std::size_t slot = 0; slot < slot_count; ++slot) {
    const ImU32 color = mixed(theme.lane, theme.slot(track, cause, slot), alpha);  // parts meet in a pixel
    draw_parts(list, axis, bottom, color, [&](std::size_t pixel) {
      const float share = visible.share(pixel, slot);
      if (share <= 0) return std::pair(0.0f, 0.0f);
      float from = std::round(base[pixel] * height);
      base[pixel] = std::min(1.0f, base[pixel] + share);
      const float to = std::max(std::round(base[pixel] * height), 1.0f);
      // A line belongs to whatever has anything, over what is below: a stall does not vanish for being short.
      from = std::min(from, to - 1);
      return std::pair(from, to);
    });
  }
}

bool typed(char character) {
  const ImGuiIO& io = ImGui::GetIO();
  return !io.WantTextInput && io.InputQueueCharacters.contains(static_cast<ImWchar>(character));
}

bool handle_time_input(Session& session, const TimeAxis& axis, bool hovered) {
  ImGuiIO& io = ImGui::GetIO();
  const bool active = ImGui::IsItemActive();
  if (hovered || active) session.cursor_ns = axis.time(io.MousePos.x);
  const double length = session.window.length_ns();
  if (hovered) {
    if (io.MouseWheel != 0 && io.KeyShift) {
      session.window.pan(-static_cast<double>(io.MouseWheel) * pan_per_notch * length);
    } else if (io.MouseWheel != 0) {
      session.window.zoom(std::pow(zoom_per_notch, static_cast<double>(io.MouseWheel)), axis.time(io.MousePos.x));
    }
    if (io.MouseWheelH != 0) session.window.pan(static_cast<double>(io.MouseWheelH) * pan_per_notch * length);
  }
  bool clicked = false;
  if (active && ImGui::IsMouseDragging(ImGuiMouseButton_Left)) {
    if (io.KeyShift) {
      const double begin = axis.time(io.MouseClickedPos[0].x), end = axis.time(io.MousePos.x);
      session.time_range = {std::min(begin, end), std::max(begin, end)};
    } else {
      session.window.pan(-static_cast<double>(io.MouseDelta.x) * axis.pixel_ns());
    }
  } else if (hovered && ImGui::IsMouseReleased(ImGuiMouseButton_Left)) {
    const ImVec2 from = io.MouseClickedPos[0];
    clicked = std::abs(from.x - io.MousePos.x) + std::abs(from.y - io.MousePos.y) < 4;
  }
  if (hovered && ImGui::IsMouseDragging(ImGuiMouseButton_Right)) {
    const double begin = axis.time(io.MouseClickedPos[1].x), end = axis.time(io.MousePos.x);
    session.time_range = {std::min(begin, end), std::max(begin, end)};
  }
  if (!io.WantTextInput && !io.KeyCtrl) {
    const double anchor = session.cursor_ns.value_or((axis.begin_ns + axis.end_ns) / 2);
    const double seconds = std::min(0.1f, io.DeltaTime);
    const auto down = [](char letter, ImGuiKey key) {
      return ImGui::IsKeyDown(key_of(letter)) || ImGui::IsKeyDown(ImGui::GetKeyIndex(key));
    };
    if (down('W', ImGuiKey_UpArrow)) session.window.zoom(std::exp(-3 * seconds), anchor);
    if (down('S', ImGuiKey_DownArrow)) session.window.zoom(std::exp(3 * seconds), anchor);
    if (down('A', ImGuiKey_LeftArrow)) session.window.pan(-length * seconds);
    if (down('D', ImGuiKey_RightArrow)) session.window.pan(length * seconds);
    if (ImGui::IsKeyPressed(key_of('F'), false)) session.fit();
    if (ImGui::IsKeyPressed(key_of('0'), false)) session.fit_all();
    if (typed('[') && session.shown().aligned() > 0) session.align(session.shown().aligned() - 1);
    if (typed(']')) session.align(session.shown().aligned() + 1);
    if (ImGui::IsKeyPressed(key_of('N'))) session.select_next_match(io.KeyShift ? -1 : 1);
    if (ImGui::IsKeyPressed(key_of('G'), false)) session.show_selection();
    if (ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape), false)) {
      session.selection = {};
      session.time_range.reset();
    }
  }
  return clicked;
}

void draw_cursor_and_range(ImDrawList& list, const Theme& theme, const Session& session, const TimeAxis& axis,
                           float top, float bottom) {
  if (session.time_range) {
    const float begin = axis.clamped_x(session.time_range->first), end = axis.clamped_x(session.time_range->second);
    list.AddRectFilled({begin, top}, {end, bottom}, with_alpha(theme.range, 0.15f));
    list.AddLine({begin, top}, {begin, bottom}, theme.range, theme.px(1.5f));
    list.AddLine({end, top}, {end, bottom}, theme.range, theme.px(1.5f));
  }
  if (session.cursor_ns && *session.cursor_ns >= axis.begin_ns && *session.cursor_ns <= axis.end_ns) {
    const float x = std::floor(axis.x(*session.cursor_ns)) + 0.5f;
    list.AddLine({x, top}, {x, bottom}, with_alpha(theme.cursor, 0.6f));
  }
}

void draw_iteration_choice(Session& session, const Theme& theme) {
  if (ImGui::ArrowButton("##before", ImGuiDir_Left) && session.shown().aligned() > 0) {
    session.align(session.shown().aligned() - 1);
  }
  ImGui::SameLine(0, theme.px(4));
  const std::uint64_t first = session.shown().first_iteration();
  ImGui::TextUnformatted(
      fmt::format("iteration {} of {}", first + session.shown().aligned() + 1, first + session.shown().iterations())
          .c_str());
  ImGui::SameLine(0, theme.px(4));
  if (ImGui::ArrowButton("##after", ImGuiDir_Right)) session.align(session.shown().aligned() + 1);
}

void draw_bold(const Theme& theme, std::string_view text) {
  ImGui::PushFont(theme.fonts.bold);
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopFont();
}

void draw_facts(const Theme& theme, const std::vector<std::pair<std::string, std::string>>& facts, float width) {
  float labels = 0;
  for (const auto& [label, value] : facts) labels = std::max(labels, ImGui::CalcTextSize(label.c_str()).x);
  const float wrap = ImGui::GetCursorPosX() + (width > 0 ? width : theme.px(520));
  ImGui::BeginGroup();  // offsets count from its left
  for (const auto& [label, value] : facts) {
    ImGui::PushTextWrapPos(wrap);
    if (label.empty()) {
      draw_bold(theme, value);
    } else {
      ImGui::TextDisabled("%s", label.c_str());
      ImGui::SameLine(labels + theme.px(12));
      ImGui::TextUnformatted(value.c_str());
    }
    ImGui::PopTextWrapPos();
  }
  ImGui::EndGroup();
}

void draw_facts_tooltip(const Theme& theme, const std::vector<std::pair<std::string, std::string>>& facts) {
  ImGui::BeginTooltip();
  draw_facts(theme, facts);
  ImGui::EndTooltip();
}

}  // namespace tencache::gui
