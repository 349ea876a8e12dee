// Where machine files are found; for the reader of machine files.
#pragma once

#include <string>

namespace tencache {

// The text of a machine file. Throws Error if it cannot be read or is far too large.
std::string read_machine_text(const std::string& path);

// The file that `base: …` in `from_file` names: a path relative to that file's folder, or the name of a shipped
// machine. Throws Error that lists the valid names.
std::string find_base_machine(const std::string& base, const std::string& from_file);

}  // namespace tencache
