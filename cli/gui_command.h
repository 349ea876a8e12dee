// `tencache gui`: its options, which the command and the program that it starts, tencache-gui, read alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "studies/scenario.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tencache {

struct GuiOptions {
  std::vector<std::string> files;
  Scenario scenario;                 // of traces; without a machine or a policy: the dashboard's choice
  std::vector<std::string> changes;  // NAME=VALUE each, beside what was before
  std::string view;                  // empty: the first
  std::string theme = "dark";
  double scale = 0;  // 0: as the display asks for
  std::string screenshot, size = "1280x720";
};

void add_gui_options(CLI::App& command, GuiOptions& options);
// The same as words of a command line.
std::vector<std::string> gui_words(const GuiOptions& options);
// "1920x1080". Throws Error.
std::pair<int, int> parse_picture_size(const std::string& text);

}  // namespace tencache
