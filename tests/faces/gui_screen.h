// The dashboard on a screen that nobody sees: drawn by EGL, with a mouse and a keyboard that the test moves.
#pragma once

#include <imgui.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "gui/shell/app.h"
#include "gui/shell/headless.h"
#include "gui/views/canvas.h"

namespace tencache::gui {

class Screen {
 public:
  // Throws Error where there is no EGL.
  Screen(int width, int height, bool light = false, float scale = 1)
      : headless_(width, height), app_(std::make_unique<App>(light, scale)) {}

  App& app() { return *app_; }
  Session& session() { return app_->session(); }
  const Theme& theme() const { return app_->theme(); }
  ImGuiIO& io() { return ImGui::GetIO(); }

  void frames(int count = 3) {
    for (int i = 0; i < count; ++i) {
      if (app_->fonts_changed()) headless_.fonts_changed();
      headless_.frame([this] { app_->frame(); });
    }
  }
  Picture picture() {
    frames();
    return headless_.picture();
  }

  void move(float x, float y) {
    io().MousePos = {x, y};
    frames(2);
  }
  void click(float x, float y, int button = 0) {
    move(x, y);
    io().MouseDown[button] = true;
    frames(2);
    io().MouseDown[button] = false;
    frames(2);
  }
  void drag(float from_x, float from_y, float to_x, float to_y, int button = 0) {
    move(from_x, from_y);
    io().MouseDown[button] = true;
    frames(1);
    for (int step = 1; step <= 4; ++step) {
      io().MousePos = {from_x + (to_x - from_x) * static_cast<float>(step) / 4,
                       from_y + (to_y - from_y) * static_cast<float>(step) / 4};
      frames(1);
    }
    io().MouseDown[button] = false;
    frames(2);
  }
  void wheel(float x, float y, float notches) {
    move(x, y);
    io().MouseWheel = notches;
    frames(2);
  }
#if IMGUI_VERSION_NUM >= 18700
  void hold(ImGuiKey key, bool down) { io().AddKeyEvent(key, down); }
  void press_special(ImGuiKey key) { press_key(key); }
  void hold_shift(bool down) { hold(ImGuiMod_Shift, down); }
#else
  void hold(int key, bool down) { io().KeysDown[key] = down; }
  void press_special(ImGuiKey key) { press_key(io().KeyMap[key]); }
  void hold_shift(bool down) { io().KeyShift = down; }
#endif
  template <typename Key>
  void press_key(Key key) {
    hold(key, true);
    frames(1);
    hold(key, false);
    frames(1);
  }
  // Keys are letters by their capitals.
  void press(char letter) { press_key(key_of(letter)); }
  void type(const std::string& text) {
    for (const char c : text) {
      io().AddInputCharacter(static_cast<unsigned>(c));
      frames(1);
    }
  }

  // Where the text stands in the picture, in the font of labels; {-1, -1} if it does not. Every stroke of the letters
  // must have the colour, and what lies between them must not.
  // `most_x`: how far right it may begin.
  ImVec2 find_text(const std::string& text, ImU32 color, const Picture& picture, int most_x = 1 << 20) {
    const Picture letters = draw_alone(text);
    int right = 0, bottom = 0, left = letters.width, top = letters.height;
    for (int y = 0; y < letters.height; ++y) {
      for (int x = 0; x < letters.width; ++x) {
        if (letters.at(x, y)[0] < 128) continue;
        right = std::max(right, x), bottom = std::max(bottom, y), left = std::min(left, x), top = std::min(top, y);
      }
    }
    struct Point {
      int x, y;
    };
    std::vector<Point> strokes, holes;
    for (int y = top; y <= bottom; ++y) {
      for (int x = left; x <= right; ++x) {
        if (letters.at(x, y)[0] > 215) strokes.push_back({x - left, y - top});
        if (letters.at(x, y)[0] < 12) holes.push_back({x - left, y - top});
      }
    }
    for (int y = 0; y + bottom - top < picture.height; ++y) {
      for (int x = 0; x + right - left < picture.width && x <= most_x; ++x) {
        const auto has_color = [&](const Point& p) { return near(picture.at(x + p.x, y + p.y), color, 60); };
        if (std::all_of(strokes.begin(), strokes.end(), has_color) &&
            std::none_of(holes.begin(), holes.end(), has_color)) {
          return {static_cast<float>(x), static_cast<float>(y)};
        }
      }
    }
    return {-1, -1};
  }

  static bool near(const std::uint8_t* pixel, ImU32 color, int tolerance) {
    for (int shift = 0; shift < 24; shift += 8) {
      if (std::abs(static_cast<int>(pixel[shift / 8]) - static_cast<int>((color >> shift) & 255)) > tolerance) {
        return false;
      }
    }
    return true;
  }
  static int count(const Picture& picture, ImU32 color) {
    int pixels = 0;
    for (std::size_t i = 0; i < picture.rgba.size(); i += 4) pixels += near(&picture.rgba[i], color, 3);
    return pixels;
  }

 private:
  Picture draw_alone(const std::string& text) {
    headless_.frame([&] {
      ImDrawList& list = *ImGui::GetForegroundDrawList();
      list.AddRectFilled({0, 0}, io().DisplaySize, IM_COL32_BLACK);
      list.AddText(theme().fonts.regular, theme().fonts.regular->FontSize, {8, 8}, IM_COL32_WHITE, text.c_str());
    });
    Picture picture = headless_.picture();
    return picture;
  }

  Headless headless_;
  std::unique_ptr<App> app_;
};

}  // namespace tencache::gui
