#include "gui/shell/recent_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

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
