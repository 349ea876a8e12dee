// Where the files that ship with TenCache (machines, models, …) are.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tencache {

// Where files of this kind ("machines") are looked for, existing or not: $TENCACHE_CONFIGS/KIND if that is set, else
// beside the installed program, then in the source tree. Throws Error if $TENCACHE_CONFIGS has no such folder.
std::vector<std::string> config_folders(const std::string& kind);

// Of a program that is not tencache's own, such as Python: this folder (which holds "machines" and so on) is where an
// installed program's would be. Before the first use, from one thread.
void set_installed_configs(const std::string& folder);

// Name to path of each "<name>.yaml", by name; the first folder that has the name wins.
std::vector<std::pair<std::string, std::string>> shipped_files(const std::string& kind);
// The path of a file or folder that stands beside the folder of machines. Throws Error where there is none.
std::string config_file(const std::string& name);
// That an unknown name was given: the nearest of those that ship and of `more`, or the folders where nothing does.
// `what`: "machine"; `file`: how a file of that name is given.
[[noreturn]] void fail_unknown(const std::string& kind, const std::string& what, const std::string& name,
                               const std::string& file, const std::vector<std::string>& more = {});
// The path of what ships under that name, however it is spelt (core/names.h).
std::optional<std::string> find_shipped(const std::string& kind, const std::string& name);
// The path itself, or of what ships under that name. Throws as fail_unknown.
std::string find_config(const std::string& kind, const std::string& what, const std::string& name_or_file);

// What contains a slash or ends in ".yaml", ".yml" or ".json" is a path, anything else the name of a shipped file.
bool is_config_path(const std::string& name_or_file);

}  // namespace tencache
