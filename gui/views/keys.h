// Keys by the letter on them. From 1.87 on ImGui has names for all keys; before, letters are the window system's
// numbers, which are those of their capitals.
#pragma once

#include <imgui.h>

namespace tencache::gui {

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

}  // namespace tencache::gui
