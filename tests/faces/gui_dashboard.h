// What tests of the dashboard on a screen begin with.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "tests/faces/gui_cases.h"
#include "tests/faces/gui_screen.h"

namespace tencache::gui {

// Null only where there is no EGL, which there is in continuous integration: all else that goes wrong is an error.
inline std::unique_ptr<Screen> make_screen(int width = 1280, int height = 720, bool light = false, float scale = 1) {
  try {
    return std::make_unique<Screen>(width, height, light, scale);
  } catch (const Error& error) {
    const bool no_egl = std::string(error.what()).find("no EGL display") != std::string::npos;
    if (!no_egl || std::getenv("CI") != nullptr) throw;
    return nullptr;
  }
}

class Dashboard : public testing::Test {
 protected:
  void open(int width = 1280, int height = 720, bool light = false, float scale = 1) {
    screen_.reset();  // one context at a time
    screen_ = make_screen(width, height, light, scale);
    if (screen_ == nullptr) GTEST_SKIP() << "no EGL to draw with";
  }
  void SetUp() override { open(); }
  void show_both() {
    screen_->session().show(
        {simulate_run("predicted: on-demand"), simulate_run("measured: on-demand", slower_machine())});
  }
  bool shows(const std::string& text, const Picture& picture) {
    return screen_->find_text(text, screen_->theme().text, picture).x >= 0;
  }
  bool shows_faintly(const std::string& text, const Picture& picture) {
    return screen_->find_text(text, screen_->theme().faint_text, picture).x >= 0;
  }
  // The middle of a lane: its label, and right of it.
  ImVec2 label_of(const std::string& name) {
    const Picture picture = screen_->picture();
    const ImVec2 at = screen_->find_text(name, screen_->theme().text, picture, 40);
    EXPECT_GE(at.x, 0) << name;
    return {at.x, at.y + 5};
  }

  std::unique_ptr<Screen> screen_;
};

}  // namespace tencache::gui
