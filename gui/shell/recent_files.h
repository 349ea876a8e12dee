// The files that were opened last, kept between runs in $XDG_STATE_HOME/tencache/recent (or ~/.local/state).
#pragma once

#include <string>
#include <vector>

namespace tencache::gui {

// The latest first; files that are gone are left out. Empty where there is no such list.
std::vector<std::string> recent_files();
// Puts the file first. Does nothing where the list cannot be written.
void add_recent_file(const std::string& path);

}  // namespace tencache::gui
