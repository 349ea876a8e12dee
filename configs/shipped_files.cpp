#include "configs/shipped_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/names.h"
#include "core/text.h"

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

std::string config_file(const std::string& name) {
  std::vector<std::string> looked;
  for (const std::string& folder : config_folders("machines")) {
    looked.push_back((fs::path(folder).parent_path() / name).string());
    std::error_code ignored;
    if (fs::exists(looked.back(), ignored)) return looked.back();
  }
  throw Error(name + " of TenCache's configs is not to be found; looked for " + join(looked));
}

std::vector<std::pair<std::string, std::string>> shipped_files(const std::string& kind) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& folder : config_folders(kind)) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() != ".yaml") continue;
      const std::string name = entry.path().stem().string();
      const bool known = std::ranges::any_of(found, [&](const auto& other) { return other.first == name; });
      if (!known) found.emplace_back(name, entry.path().string());
    }
  }
  std::ranges::sort(found);
  return found;
}

void fail_unknown(const std::string& kind, const std::string& what, const std::string& name, const std::string& file,
                  const std::vector<std::string>& more) {
  std::vector<std::string> names;
  for (const auto& [known, path] : shipped_files(kind)) names.push_back(known);
  std::string valid;
  if (names.empty()) {
    valid = "valid names are none to be found: looked in";
    for (const std::string& folder : config_folders(kind)) valid += " " + folder;
  } else {
    names.insert(names.end(), more.begin(), more.end());
    valid =
        valid_names(name, names, "`tencache " + kind + "`" + (kind == "machines" ? " (cards: `tencache gpus`)" : ""));
  }
  throw Error("unknown " + what + " '" + name + "'; " + valid + "; a file is given by its path, for instance ./" +
              file);
}

std::string find_config(const std::string& kind, const std::string& what, const std::string& name_or_file) {
  if (is_config_path(name_or_file)) return name_or_file;
  if (const auto path = find_shipped(kind, name_or_file)) return *path;
  fail_unknown(kind, what, name_or_file, name_or_file + ".yaml");
}

std::optional<std::string> find_shipped(const std::string& kind, const std::string& name) {
  const auto files = shipped_files(kind);
  std::vector<std::string> names;
  for (const auto& [known, path] : files) names.push_back(known);
  const std::optional<std::string> found = match_name(name, names);
  if (!found) return std::nullopt;
  return std::ranges::find(files, *found, [](const auto& file) { return file.first; })->second;
}

bool is_config_path(const std::string& name_or_file) {
  return name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".yaml") ||
         name_or_file.ends_with(".yml") || name_or_file.ends_with(".json");
}

}  // namespace tencache
