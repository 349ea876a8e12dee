// The dashboard as one window's content: tabs of views around one session. Knows no window system: a real window and
// the headless renderer both call `frame`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gui/model/session.h"
#include "gui/views/theme.h"
#include "gui/views/view.h"

namespace tencache::gui {

class App {
 public:
  // ImGui's context exists and keeps existing.
  App(bool light, float scale);

  Session& session() { return session_; }
  const Theme& theme() const { return theme_; }
  // Throws Error that lists the valid names.
  void choose_view(const std::string& name);
  // A file that the user asks for: the view that shows it best comes up.
  void open(const std::string& path);
  std::string view() const { return views_[view_]->name(); }
  void set_theme(bool light, float scale);

  // Draws everything into the display. Between ImGui's NewFrame and Render.
  void frame();
  // The font atlas was filled anew since the last call: the renderer makes its texture again, before a frame.
  bool fonts_changed();
  // A picture of this frame was asked for: its file, once.
  std::string take_picture_request() { return std::exchange(picture_request_, {}); }
  bool closed() const { return closed_; }
  // Something moves by itself; otherwise nothing needs to be drawn until there is input.
  bool animated() const { return session_.busy() || session_.watching(); }
  bool help_shown = false;

 private:
  void draw_bar();
  void draw_status();
  void draw_help();
  void draw_open_popup();
  void export_csv();
  void export_picture();

  Session session_;
  std::vector<std::unique_ptr<View>> views_;
  std::size_t view_ = 0, wanted_view_ = 0;
  bool view_forced_ = true, view_chosen_ = false;
  Theme theme_;
  bool wanted_light_;
  float wanted_scale_;
  bool theme_changed_ = true, fonts_changed_ = false, closed_ = false, open_wanted_ = false;
  std::string picture_request_, path_to_open_;
  std::vector<std::string> recent_;
};

// The files that were opened last, kept between runs in $XDG_STATE_HOME/tencache/recent (or ~/.local/state): the latest
// first; files that are gone are left out. Empty where there is no such list.
std::vector<std::string> recent_files();
// Puts the file first. Does nothing where the list cannot be written.
void add_recent_file(const std::string& path);

}  // namespace tencache::gui
