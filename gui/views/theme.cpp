#include "gui/views/theme.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gui/model/palette.h"

namespace tencache::gui {
namespace {

constexpr ImU32 rgb(unsigned value) { return IM_COL32((value >> 16) & 255, (value >> 8) & 255, value & 255, 255); }

ImVec4 vec(ImU32 color) { return ImGui::ColorConvertU32ToFloat4(color); }

}  // namespace

Theme make_theme(bool light, float scale) {
  Theme theme;
  theme.light = light;
  theme.scale = scale;
  const auto of = [light](std::string_view name) { return rgb(colour(name, light)); };
  theme.background = of("background");
  theme.panel = of("panel");
  theme.lane = of("lane");
  theme.grid = of("grid");
  theme.border = of("border");
  theme.text = of("text");
  theme.faint_text = of("faint");
  theme.accent = theme.range = of("accent");
  theme.error = of("error");
  theme.good = light ? rgb(0x007a58) : rgb(0x35c79a);
  theme.gap = of("gap");
  theme.selection = light ? rgb(0x000000) : rgb(0xffffff);
  theme.match = rgb(0xff2fd0);
  theme.cursor = light ? rgb(0x333a42) : rgb(0xd9dee5);
  theme.ghost = light ? rgb(0x6b7480) : rgb(0x9aa4b0);
  const auto fill = [&of](auto& list, const char* prefix) {
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = of(prefix + std::to_string(i));
  };
  fill(theme.palette.phases, "p");
  fill(theme.palette.causes, "c");
  fill(theme.palette.roles, "r");
  theme.palette.series = {of("c1"), of("p0"), of("p3"), of("c2"), of("c0"), of("p2"), light ? of("c5") : of("c4")};
  return theme;
}

void apply_theme(const Theme& theme) {
  ImGuiStyle& style = ImGui::GetStyle();
  style = ImGuiStyle();
  if (theme.light) {
    ImGui::StyleColorsLight();
  } else {
    ImGui::StyleColorsDark();
  }
  style.WindowRounding = 0;
  style.FrameRounding = 3;
  style.GrabRounding = 3;
  style.TabRounding = 3;
  style.PopupRounding = 4;
  style.WindowBorderSize = 0;
  style.PopupBorderSize = 1;
  style.FrameBorderSize = theme.light ? 1.0f : 0.0f;
  style.WindowPadding = {8, 6};
  style.FramePadding = {7, 3};
  style.ItemSpacing = {8, 5};
  style.ScaleAllSizes(theme.scale);
  const auto set = [&style](ImGuiCol index, ImU32 color) { style.Colors[index] = vec(color); };
  set(ImGuiCol_WindowBg, with_alpha(theme.background, 0));  // the picture begins with it
  set(ImGuiCol_ChildBg, with_alpha(theme.background, 0));
  set(ImGuiCol_PopupBg, theme.panel);
  set(ImGuiCol_Border, theme.border);
  set(ImGuiCol_Text, theme.text);
  set(ImGuiCol_TextDisabled, theme.faint_text);
  set(ImGuiCol_FrameBg, theme.lane);
  set(ImGuiCol_FrameBgHovered, mixed(theme.lane, theme.accent, 0.2f));
  set(ImGuiCol_FrameBgActive, mixed(theme.lane, theme.accent, 0.35f));
  set(ImGuiCol_Button, theme.lane);
  set(ImGuiCol_ButtonHovered, mixed(theme.lane, theme.accent, 0.35f));
  set(ImGuiCol_ButtonActive, mixed(theme.lane, theme.accent, 0.6f));
  set(ImGuiCol_Tab, theme.lane);
  set(ImGuiCol_TabHovered, mixed(theme.lane, theme.accent, 0.5f));
  set(ImGuiCol_TabActive, mixed(theme.lane, theme.accent, 0.4f));
  set(ImGuiCol_Header, mixed(theme.lane, theme.accent, 0.3f));
  set(ImGuiCol_HeaderHovered, mixed(theme.lane, theme.accent, 0.4f));
  set(ImGuiCol_HeaderActive, mixed(theme.lane, theme.accent, 0.5f));
  set(ImGuiCol_CheckMark, theme.accent);
  set(ImGuiCol_SliderGrab, theme.accent);
  set(ImGuiCol_SliderGrabActive, theme.accent);
  set(ImGuiCol_Separator, theme.border);
  set(ImGuiCol_ScrollbarBg, theme.background);
  set(ImGuiCol_ScrollbarGrab, theme.border);
  set(ImGuiCol_TableHeaderBg, theme.lane);
  set(ImGuiCol_TableBorderStrong, theme.border);
  set(ImGuiCol_TableBorderLight, theme.grid);
  set(ImGuiCol_TextSelectedBg, mixed(theme.lane, theme.accent, 0.5f));
}

void Fonts::load(float scale) {
  namespace fs = std::filesystem;
  ImFontAtlas& atlas = *ImGui::GetIO().Fonts;
  atlas.Clear();
  static const ImWchar ranges[] = {0x20,   0xff,   0x2010, 0x2027, 0x2030, 0x203a, 0x2190, 0x2199, 0x2260, 0x2265,
                                   0x2500, 0x259f, 0x25a0, 0x25ff, 0x2713, 0x2717, 0x0370, 0x03ff, 0};
  const auto open = [&](const char* file, float size) -> ImFont* {
    for (const char* folder : {"/usr/share/fonts/truetype/dejavu/", "/usr/share/fonts/TTF/", "/usr/share/fonts/dejavu/",
                               "/usr/share/fonts/dejavu-sans-fonts/"}) {
      const std::string path = std::string(folder) + file;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      ImFontConfig config;
      config.OversampleH = 2;
      config.OversampleV = 1;
      config.PixelSnapH = true;
      return atlas.AddFontFromFileTTF(path.c_str(), size, &config, ranges);
    }
    ImFontConfig config;
    config.SizePixels = size;
    return atlas.AddFontDefault(&config);
  };
  const float size = std::max(8.0f, std::round(13.5f * scale));
  regular = open("DejaVuSans.ttf", size);
  bold = open("DejaVuSans-Bold.ttf", size);
  mono = open("DejaVuSansMono.ttf", size);
}

ImU32 Theme::slot(const Track& track, StallCause cause_of_link, std::size_t slot) const {
  if (track.is_link()) {
    const ImU32 full = palette.of(cause_of_link);
    return slot == urgent_slot ? full : paler(*this, full);
  }
  if (slot < gap_slot) return palette.phases[slot];
  return slot == gap_slot ? gap : palette.causes[slot - first_stall_slot];
}

ImU32 paler(const Theme& theme, ImU32 color) { return mixed(color, theme.lane, 0.45f); }

ImU32 with_alpha(ImU32 color, float alpha) {
  const auto a = static_cast<ImU32>(std::lround(std::clamp(alpha, 0.0f, 1.0f) * 255.0f));
  return (color & ~IM_COL32_A_MASK) | (a << IM_COL32_A_SHIFT);
}

ImU32 mixed(ImU32 a, ImU32 b, float share_of_b) {
  ImU32 color = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const auto of_a = static_cast<float>((a >> shift) & 255), of_b = static_cast<float>((b >> shift) & 255);
    color |= static_cast<ImU32>(std::lround(of_a + (of_b - of_a) * share_of_b)) << shift;
  }
  return color;
}

ImU32 readable_on(ImU32 color) {
  const ImVec4 c = vec(color);
  return 0.299f * c.x + 0.587f * c.y + 0.114f * c.z > 0.55f ? IM_COL32(10, 12, 14, 255) : IM_COL32(255, 255, 255, 255);
}

void draw_hatching(ImDrawList& list, ImVec2 min, ImVec2 max, ImU32 color, float spacing) {
  const float height = max.y - min.y;
  list.PushClipRect(min, max, true);
  // Lines stand on a fixed lattice, so that neighbours and scrolling show no seams.
  const float first = std::floor((min.x - height) / spacing) * spacing;
  const float end = std::min(max.x, min.x + 8000);
  for (float x = first; x < end; x += spacing) list.AddLine({x, max.y}, {x + height, min.y}, color, spacing * 0.28f);
  list.PopClipRect();
}

bool draw_clipped_text(ImDrawList& list, ImVec2 position, float width, ImU32 color, const char* begin,
                       const char* end) {
  if (begin == end || width <= 0) return true;
  if (ImGui::CalcTextSize(begin, end).x <= width) {
    list.AddText(position, color, begin, end);
    return true;
  }
  static const char dots[] = "…";
  const float room = width - ImGui::CalcTextSize(dots).x;
  if (room <= 0) return false;
  const char* cut = end;
  const float size = ImGui::GetFontSize();
  const ImVec2 fitting = ImGui::GetFont()->CalcTextSizeA(size, room, 0, begin, end, &cut);
  if (cut <= begin + 1) return false;
  list.AddText(position, color, begin, cut);
  list.AddText({position.x + fitting.x, position.y}, color, dots);
  return false;
}

std::string shortened(const std::string& text, float width) {
  if (ImGui::CalcTextSize(text.c_str()).x <= width) return text;
  std::vector<std::size_t> begins;  // of characters
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) begins.push_back(i);
  }
  const auto keeping = [&](std::size_t characters) {  // more of the beginning
    const std::size_t after = characters / 2;
    return text.substr(0, begins[characters - after]) + "…" +
           (after == 0 ? std::string() : text.substr(begins[begins.size() - after]));
  };
  std::size_t least = 0, most = begins.size();  // of characters: what fits, what does not
  while (most > least + 1) {
    const std::size_t middle = (least + most) / 2;
    (ImGui::CalcTextSize(keeping(middle).c_str()).x <= width ? least : most) = middle;
  }
  return least == 0 ? std::string() : keeping(least);
}

}  // namespace tencache::gui
