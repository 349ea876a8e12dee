// A view: one tab of the dashboard, one file in this folder.
//
// To add one:
//   1. what it shows and can be tested without a screen goes to gui/model (no ImGui there);
//   2. gui/views/<name>_view.cpp derives from View and only draws that, with ImGui and ImDrawList, into the window that
//      is open when `draw` is called; a function `make_<name>_view` below creates it;
//   3. one line in views.cpp and one in CMakeLists.txt; a test in tests/faces/gui_view_test.cpp that renders it and
//      looks for its colours and labels.
// Views share the session: cursor, window of time, selection, search. They keep for themselves only how they look
// (which column is sorted). Everything is drawn from `theme`, in its colours and multiplied by its scale. A frame must
// stay within a few milliseconds: whatever takes longer is prepared when Session::generation() changes, or in the
// background.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gui/model/session.h"
#include "gui/views/theme.h"

namespace tencache::gui {

class View {
 public:
  virtual ~View() = default;
  virtual const char* name() const = 0;   // of --view: "timeline"
  virtual const char* title() const = 0;  // of the tab: "Timeline"
  virtual void draw(Session& session, const Theme& theme) = 0;
  // Keys of its own for the help overlay, as pairs of key and what it does.
  virtual std::vector<std::pair<const char*, const char*>> keys() const { return {}; }
  // What "export CSV" writes; empty: nothing to export.
  virtual std::string csv(const Session&) const { return {}; }
};

// In the place of runs, where there are none: what is under way, or else what to do.
void draw_no_run(const Session& session, const char* what_to_do);

std::unique_ptr<View> make_timeline_view();
std::unique_ptr<View> make_occupancy_view();
std::unique_ptr<View> make_what_if_view();
std::unique_ptr<View> make_comparison_view();
std::unique_ptr<View> make_sensitivity_view();
std::unique_ptr<View> make_cost_view();
std::unique_ptr<View> make_browser_view();
std::unique_ptr<View> make_table_view();

// All of them, in the order of the tabs.
std::vector<std::unique_ptr<View>> make_views();

}  // namespace tencache::gui
