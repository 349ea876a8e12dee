#include <imgui.h>

#include "gui/views/view.h"

namespace tencache::gui {

void draw_no_run(const Session& session, const char* what_to_do) {
  ImGui::TextDisabled("%s", session.busy()       ? "Working…"
                            : session.watching() ? "Waiting for the first iterations of the run…"
                                                 : what_to_do);
}

std::vector<std::unique_ptr<View>> make_views() {
  std::vector<std::unique_ptr<View>> views;
  views.push_back(make_timeline_view());
  views.push_back(make_occupancy_view());
  views.push_back(make_what_if_view());
  views.push_back(make_comparison_view());
  views.push_back(make_sensitivity_view());
  views.push_back(make_cost_view());
  views.push_back(make_browser_view());
  views.push_back(make_table_view());
  return views;
}

}  // namespace tencache::gui
