#include "configs/shipped_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"

namespace tencache {

namespace fs = std::filesystem;

namespace {

std::string& installed_configs() {
  static std::string folder;
  return folder;
}

}  // namespace

void set_installed_configs(const std::string& folder) { installed_configs() = folder; }

std::vector<std::string> config_folders(const std::string& kind) {
  if (const char* configs = std::getenv("TENCACHE_CONFIGS"); configs != nullptr && *configs != '\0') {
    const fs::path folder = fs::path(configs) / kind;
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
      throw Error("TENCACHE_CONFIGS is " + std::string(configs) + ", which has no folder " + kind +
                  "; correct or unset it");
    }
    return {folder.string()};
  }
  std::vector<std::string> folders;
  if (installed_configs().empty()) {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    fs::path prefix = program.parent_path().parent_path();              // of bin/tencache
    if (prefix.filename() == "libexec") prefix = prefix.parent_path();  // of libexec/tencache/tencache-gui
    if (!error) folders.push_back((prefix / "share" / "tencache" / "configs" / kind).string());
  } else {
    folders.push_back((fs::path(installed_configs()) / kind).string());
  }
  folders.push_back((fs::path(TENCACHE_CONFIGS_OF_THE_SOURCE_TREE) / kind).string());
  return folders;
}

std::vector<std::pair<std::string, std::string>> shipped_files(const std::string& kind) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& folder : config_folders(kind)) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() != ".yaml") continue;
      const std::string name = entry.path().stem().string();
      const bool known =
          std::any_of(found.begin(), found.end(), [&](const auto& other) { return other.first == name; });
      if (!known) found.emplace_back(name, entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_config_path(const std::string& name_or_file) {
  return name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".yaml") ||
         name_or_file.ends_with(".yml") || name_or_file.ends_with(".json");
}

}  // namespace tencache
