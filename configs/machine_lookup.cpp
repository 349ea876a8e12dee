#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "configs/machine_yaml.h"
#include "core/error.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

constexpr Bytes maximum_machine_file_bytes = 4 * MiB;

bool is_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".yaml") || text.ends_with(".yml");
}

MachineSpec read_machine_file(const std::string& path) {
  return parse_machine(read_file(path, maximum_machine_file_bytes), path);
}

// Name to path; the first folder that has the name wins.
std::vector<std::pair<std::string, std::string>> shipped_machines() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& folder : machine_folders()) {
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

}  // namespace

std::vector<std::string> machine_folders() {
  if (const char* configs = std::getenv("TENCACHE_CONFIGS"); configs != nullptr && *configs != '\0') {
    const fs::path folder = fs::path(configs) / "machines";
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
      throw Error("TENCACHE_CONFIGS is " + std::string(configs) +
                  ", which has no folder machines; correct or unset it");
    }
    return {folder.string()};
  }
  std::vector<std::string> folders;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    folders.push_back((program.parent_path().parent_path() / "share" / "tencache" / "configs" / "machines").string());
  }
  folders.push_back((fs::path(TENCACHE_CONFIGS_OF_THE_SOURCE_TREE) / "machines").string());
  return folders;
}

MachineSpec read_machine(const std::string& name_or_file) {
  if (is_path(name_or_file)) return read_machine_file(name_or_file);
  const auto machines = shipped_machines();
  for (const auto& [name, path] : machines) {
    if (name == name_or_file) return read_machine_file(path);
  }
  std::string names;
  for (const auto& [name, path] : machines) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) {
    names = "none are to be found: looked in";
    for (const std::string& folder : machine_folders()) names += " " + folder;
  }
  throw Error("unknown machine '" + name_or_file + "'; valid names are " + names +
              "; a file is given by its path, for instance ./" + name_or_file + ".yaml");
}

std::vector<MachineSpec> list_machines() {
  std::vector<MachineSpec> result;
  for (const auto& [name, path] : shipped_machines()) result.push_back(read_machine_file(path));
  return result;
}

}  // namespace tencache
