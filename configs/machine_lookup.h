// Where machines are found; for the reader of machine files.
#pragma once

#include <string>

#include "configs/desktop.h"

namespace tencache {

// What `--machine …` or `base: …` in `from_file` names: a path (of a base relative to that file's folder), a shipped
// machine, a card that a desktop can have, or `here`. Throws Error with the nearest names, and if the file cannot be
// read or is far too large.
MachineText find_machine(const std::string& name_or_file, const std::string& from_file);

}  // namespace tencache
