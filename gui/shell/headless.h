// Drawing without a display: an OpenGL context of EGL without a surface, and ImGui on it. What the screenshots and the
// tests use, so both show what the window shows.
#pragma once

#include <functional>
#include <memory>

#include "gui/shell/picture.h"

struct ImGuiContext;

namespace tencache::gui {

class Headless {
 public:
  // Makes ImGui's context too. Throws Error that says why there is no EGL.
  Headless(int width, int height);
  ~Headless();
  Headless(const Headless&) = delete;
  Headless& operator=(const Headless&) = delete;

  // One frame of 1/60 s; `draw` runs between NewFrame and Render. Mouse and keys are those of ImGui's IO.
  void frame(const std::function<void()>& draw);
  Picture picture() const;
  void fonts_changed();  // after the atlas was filled anew

 private:
  struct Context;
  std::unique_ptr<Context> context_;
  int width_, height_;
  unsigned framebuffer_ = 0, color_ = 0;
  ImGuiContext* imgui_ = nullptr;
};

}  // namespace tencache::gui
