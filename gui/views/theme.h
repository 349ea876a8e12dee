// Colours and sizes that all views share. The palette is that of Okabe and Ito (2008) and a few that go with it, which
// people with any of the common colour-vision deficiencies can tell apart (tests/faces/gui_colour_test.cpp); no colour
// means two things in one view: a stall has the colour of the link that it waits for.
#pragma once

#include <imgui.h>

#include <array>
#include <string>

#include "core/timeline.h"
#include "core/trace.h"
#include "gui/model/track.h"

namespace tencache::gui {

// Of what is shown, by what it is.
struct Palette {
  std::array<ImU32, gap_slot> phases{};  // and what is recomputed
  std::array<ImU32, all_causes.size()> causes{};
  std::array<ImU32, role_count> roles{};
  std::array<ImU32, 7> series{};  // of lines and dots that are told apart besides by their shape

  ImU32 compute() const { return phases[static_cast<std::size_t>(Phase::backward)]; }  // where phases are not shown
  ImU32 of(Role role) const { return roles[static_cast<std::size_t>(role)]; }
  ImU32 of(StallCause cause) const { return causes[static_cast<std::size_t>(cause)]; }
  ImU32 line(std::size_t index) const { return series[index % series.size()]; }
};

struct Fonts {
  ImFont* regular = nullptr;
  ImFont* bold = nullptr;
  ImFont* mono = nullptr;

  // Fills the context's font atlas for this scale; DejaVu where it is installed, else ImGui's own.
  void load(float scale);
};

struct Theme {
  bool light = false;
  float scale = 1;  // of fonts and distances

  ImU32 background = 0, panel = 0, lane = 0, grid = 0, border = 0;
  ImU32 text = 0, faint_text = 0, accent = 0, error = 0, good = 0;
  ImU32 gap = 0, selection = 0, match = 0, cursor = 0, range = 0, ghost = 0;
  Palette palette;
  Fonts fonts;

  float px(float at_scale_1) const { return at_scale_1 * scale; }
  // Of a slot of a track (gui/model/track.h).
  ImU32 slot(const Track& track, StallCause cause_of_link, std::size_t slot) const;
};

Theme make_theme(bool light, float scale);
// Sets ImGui's style. Fonts apart: they belong to the renderer's texture.
void apply_theme(const Theme& theme);

// Of copies that were asked for ahead.
ImU32 paler(const Theme& theme, ImU32 color);
ImU32 with_alpha(ImU32 color, float alpha);
ImU32 mixed(ImU32 a, ImU32 b, float share_of_b);
// Black or white, whichever reads better on the color.
ImU32 readable_on(ImU32 color);

// Diagonal lines over a rectangle, which mark stalls besides their colour.
void draw_hatching(ImDrawList& list, ImVec2 min, ImVec2 max, ImU32 color, float spacing);
// As much of the text as fits, with "…"; nothing if not even that does. Returns whether all of it did.
bool draw_clipped_text(ImDrawList& list, ImVec2 position, float width, ImU32 color, const char* begin, const char* end);
// The same with "…" in the middle: names that begin alike end differently.
std::string shortened(const std::string& text, float width);

}  // namespace tencache::gui
