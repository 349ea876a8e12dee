// What is drawn on the lanes of the timeline: spans with their names, marks of what is searched and selected, arrows
// from copies to the ops that use them, and the errors between two runs.
#pragma once

#include <imgui.h>

#include <vector>

#include "gui/model/session.h"
#include "gui/views/bars.h"
#include "gui/views/canvas.h"
#include "gui/views/theme.h"

namespace tencache::gui {

// Where a lane is drawn.
struct Lane {
  std::size_t run = 0, track = 0;
  float top = 0, height = 0;
};

// `visible`: scratch.
void draw_lane(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis, const Lane& lane,
               VisibleTrack& visible);
// A strip, up where the prediction took longer than the measured op did; full height is a factor of two.
void draw_errors(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis, float top,
                 float height);
// Of what is selected.
void draw_arrows(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis,
                 const std::vector<Lane>& lanes);

// Only what occurs, so that it stays short. Of a generation: it asks all tracks.
std::vector<LegendItem> timeline_legend(const Session& session, const Theme& theme);

}  // namespace tencache::gui
