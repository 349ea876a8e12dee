// Commands that need the user's Python: they run there, in the package `tencache`.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace tencache {

// A subcommand that is `python3 -m tencache WORDS ARGUMENTS`, in place of this process, in the Python that is found
// first. It is called as the last of the words.
void add_python_command(CLI::App& parent, Command& chosen, const std::vector<std::string>& words, const char* summary,
                        const char* footer);

}  // namespace tencache
