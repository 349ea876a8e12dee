#include "gui/shell/app.h"

#include <imgui.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/text.h"
#include "gui/views/canvas.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

// "tencache-timeline.csv", or with the first number that is not taken.
std::string free_name(const std::string& stem, const std::string& extension) {
  std::string name = stem + extension;
  for (int i = 2; std::filesystem::exists(name); ++i) name = stem + "-" + std::to_string(i) + extension;
  return name;
}

namespace fs = std::filesystem;
constexpr std::size_t most_files = 12;

fs::path list_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return fs::path(state) / "tencache/recent";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".local/state/tencache/recent";
}

}  // namespace

App::App(bool light, float scale) : views_(make_views()), wanted_light_(light), wanted_scale_(scale) {}

void App::choose_view(const std::string& name) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    names.emplace_back(views_[i]->name());
    if (name != views_[i]->name()) continue;
    view_ = wanted_view_ = i;
    view_forced_ = view_chosen_ = true;
    return;
  }
  throw Error("unknown view '" + name + "'; valid names are " + join(names));
}

void App::open(const std::string& path) {
  view_chosen_ = false;
  session_.open(path);
  add_recent_file(path);
}

void App::set_theme(bool light, float scale) {
  wanted_light_ = light;
  wanted_scale_ = std::clamp(scale, 0.5f, 4.0f);
  theme_changed_ = true;
}

bool App::fonts_changed() {
  if (theme_changed_) {
    theme_changed_ = false;
    theme_ = make_theme(wanted_light_, wanted_scale_);
    apply_theme(theme_);
    theme_.fonts.load(theme_.scale);
    fonts_changed_ = true;
  }
  return std::exchange(fonts_changed_, false);
}

void App::export_csv() {
  const std::string text = views_[view_]->csv(session_);
  if (text.empty()) return session_.say("this view has nothing to export as CSV");
  const std::string file = free_name(std::string("tencache-") + views_[view_]->name(), ".csv");
  try {
    write_file(file, text);
    session_.say("written: " + file);
  } catch (const Error& error) {
    session_.say(error.what(), true);
  }
}

void App::export_picture() {
  picture_request_ = free_name(std::string("tencache-") + views_[view_]->name(), ".png");
  session_.say("written: " + picture_request_);
}

void App::draw_bar() {
  if (!ImGui::BeginMenuBar()) return;
  if (ImGui::BeginMenu("File")) {
    if (ImGui::MenuItem("Open…", "ctrl+O")) open_wanted_ = true;
    if (ImGui::BeginMenu("Recent files", !recent_files().empty())) {
      for (const std::string& file : recent_files()) {
        if (ImGui::MenuItem(file.c_str())) open(file);
      }
      ImGui::EndMenu();
    }
    if (ImGui::MenuItem("Sample")) session_.open_sample();
    ImGui::Separator();
    if (ImGui::MenuItem("Export picture", "ctrl+P")) export_picture();
    if (ImGui::MenuItem("Export CSV", "ctrl+E")) export_csv();
    ImGui::Separator();
    if (ImGui::MenuItem("Quit", "ctrl+Q")) closed_ = true;
    ImGui::EndMenu();
  }
  if (ImGui::BeginMenu("Appearance")) {
    if (ImGui::MenuItem("Light", nullptr, theme_.light)) set_theme(true, theme_.scale);
    if (ImGui::MenuItem("Dark", nullptr, !theme_.light)) set_theme(false, theme_.scale);
    ImGui::Separator();
    if (ImGui::MenuItem("Larger", "+")) set_theme(theme_.light, theme_.scale * 1.15f);
    if (ImGui::MenuItem("Smaller", "-")) set_theme(theme_.light, theme_.scale / 1.15f);
    ImGui::EndMenu();
  }
  if (ImGui::MenuItem("Keys (?)")) help_shown = !help_shown;
  ImGui::EndMenuBar();

  const ImGuiIO& io = ImGui::GetIO();
  if (io.KeyCtrl && ImGui::IsKeyPressed(key_of('O'), false)) open_wanted_ = true;
  if (io.KeyCtrl && ImGui::IsKeyPressed(key_of('P'), false)) export_picture();
  if (io.KeyCtrl && ImGui::IsKeyPressed(key_of('E'), false)) export_csv();
  if (io.KeyCtrl && ImGui::IsKeyPressed(key_of('Q'), false)) closed_ = true;
  if (typed('+') || (io.KeyCtrl && ImGui::IsKeyPressed(key_of('='), false)))
    set_theme(theme_.light, theme_.scale * 1.15f);
  if (typed('-') || (io.KeyCtrl && ImGui::IsKeyPressed(key_of('-'), false)))
    set_theme(theme_.light, theme_.scale / 1.15f);
  if (typed('?')) help_shown = !help_shown;
  if (!io.WantTextInput && io.KeyCtrl) return;
  for (std::size_t i = 0; i < views_.size() && !io.WantTextInput; ++i) {
    if (io.KeyAlt && ImGui::IsKeyPressed(key_of(static_cast<char>('1' + i)), false)) {
      wanted_view_ = i;
      view_forced_ = true;
    }
  }
}

void App::draw_status() {
  const float top = ImGui::GetWindowHeight() - ImGui::GetFrameHeight() - ImGui::GetStyle().WindowPadding.y / 2;
  ImGui::SetCursorPosY(top);
  ImGui::Separator();
  const std::string state = session_.busy() ? "working…  " : session_.watching() ? "live  " : "";
  ImGui::PushStyleColor(ImGuiCol_Text, session_.messages().last_is_error() ? theme_.error : theme_.faint_text);
  const std::string text = state + session_.messages().last();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  draw_clipped_text(*ImGui::GetWindowDrawList(), at, ImGui::GetContentRegionAvail().x,
                    session_.messages().last_is_error() ? theme_.error : theme_.faint_text, text.data(),
                    text.data() + text.size());
  ImGui::PopStyleColor();
  ImGui::Dummy({ImGui::GetContentRegionAvail().x, ImGui::GetFontSize()});
  if (ImGui::IsItemHovered() && !session_.messages().last().empty()) {
    ImGui::BeginTooltip();
    ImGui::PushTextWrapPos(theme_.px(700));
    ImGui::TextUnformatted(session_.messages().last().c_str());
    ImGui::PopTextWrapPos();
    ImGui::EndTooltip();
  }
}

void App::draw_help() {
  if (!help_shown) return;
  const ImVec2 size = ImGui::GetIO().DisplaySize;
  ImGui::SetNextWindowPos({size.x / 2, size.y / 2}, ImGuiCond_Always, {0.5f, 0.5f});
  ImGui::PushStyleColor(ImGuiCol_WindowBg, theme_.panel);
  ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, 1.0f);
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, ImVec2{theme_.px(18), theme_.px(14)});
  if (ImGui::Begin("Keys", &help_shown, ImGuiWindowFlags_AlwaysAutoResize | ImGuiWindowFlags_NoCollapse)) {
    const auto list = [&](const char* title, const std::vector<std::pair<const char*, const char*>>& keys) {
      if (keys.empty()) return;
      draw_bold(theme_, title);
      for (const auto& [key, what] : keys) {
        ImGui::TextUnformatted(key);
        ImGui::SameLine(theme_.px(150));
        ImGui::TextDisabled("%s", what);
      }
      ImGui::Spacing();
    };
    list(views_[view_]->title(), views_[view_]->keys());
    list("Everywhere", {{"ctrl+O", "open a file; or drop one on the window"},
                        {"alt+1 … alt+9", "choose a view"},
                        {"ctrl+E, ctrl+P", "export CSV, export a picture"},
                        {"+, -", "larger, smaller"},
                        {"?", "these keys"},
                        {"ctrl+Q", "quit"}});
  }
  ImGui::End();
  ImGui::PopStyleVar(2);
  ImGui::PopStyleColor();
}

void App::draw_open_popup() {
  if (std::exchange(open_wanted_, false)) {
    recent_ = recent_files();
    ImGui::OpenPopup("Open a file");
  }
  ImGui::SetNextWindowSize({theme_.px(620), 0});
  if (!ImGui::BeginPopupModal("Open a file", nullptr, ImGuiWindowFlags_NoResize)) return;
  ImGui::TextDisabled(
      "What any command writes: a trace, a result (--json), a timeline, a sweep, a table (--csv), a log:");
  if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-1);
  bool chosen = ImGui::InputText("##path", &path_to_open_, ImGuiInputTextFlags_EnterReturnsTrue);
  for (const std::string& file : recent_) {
    if (ImGui::Selectable(file.c_str())) {
      path_to_open_ = file;
      chosen = true;
    }
  }
  chosen = ImGui::Button("Open") || chosen;
  ImGui::SameLine();
  const bool cancelled = ImGui::Button("Cancel") || ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape));
  if (chosen && !path_to_open_.empty()) open(path_to_open_);
  if (chosen || cancelled) ImGui::CloseCurrentPopup();
  ImGui::EndPopup();
}

void App::frame() {
  session_.update();
  // A view that was chosen by name stays when files open.
  if (const auto view = session_.take_view(); !view.name.empty() && (!view_chosen_ || view.asked_for)) {
    choose_view(view.name);
    view_chosen_ = false;
  }
  const ImGuiIO& io = ImGui::GetIO();
  ImGui::SetNextWindowPos({0, 0});
  ImGui::SetNextWindowSize(io.DisplaySize);
  ImGui::Begin("TenCache", nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings |
                   ImGuiWindowFlags_NoBringToFrontOnFocus | ImGuiWindowFlags_MenuBar);
  draw_bar();
  const float status = ImGui::GetFrameHeight() + ImGui::GetStyle().ItemSpacing.y;
  if (ImGui::BeginTabBar("views")) {
    const bool forced = std::exchange(view_forced_, false);
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const bool wanted = forced && i == wanted_view_;
      if (!ImGui::BeginTabItem(views_[i]->title(), nullptr, wanted ? ImGuiTabItemFlags_SetSelected : 0)) continue;
      if (!forced || wanted) view_ = i;
      ImGui::BeginChild("view", {0, ImGui::GetContentRegionAvail().y - status}, false, ImGuiWindowFlags_NoScrollbar);
      views_[i]->draw(session_, theme_);
      ImGui::EndChild();
      ImGui::EndTabItem();
    }
    ImGui::EndTabBar();
  }
  draw_status();
  draw_open_popup();
  ImGui::End();
  draw_help();
}

std::vector<std::string> recent_files() {
  std::vector<std::string> files;
  std::ifstream list(list_file());
  std::error_code error;
  for (std::string line; std::getline(list, line) && files.size() < most_files;) {
    if (!line.empty() && fs::exists(line, error)) files.push_back(line);
  }
  return files;
}

void add_recent_file(const std::string& path) {
  const fs::path list = list_file();
  std::error_code error;
  const std::string absolute = fs::absolute(path, error).lexically_normal().string();
  if (list.empty() || absolute.find('\n') != std::string::npos || !fs::exists(absolute, error)) return;
  std::vector<std::string> files = recent_files();
  std::erase(files, absolute);
  files.insert(files.begin(), absolute);
  std::string text;
  for (std::size_t i = 0; i < std::min(files.size(), most_files); ++i) text += files[i] + "\n";
  try {
    fs::create_directories(list.parent_path(), error);
    write_file(list.string(), text);
  } catch (const Error&) {  // a convenience: nobody's work depends on it
  }
}

}  // namespace tencache::gui
