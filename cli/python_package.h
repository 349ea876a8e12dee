// Commands that need the user's Python: they run there, in the package `tencache`.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"

namespace tencache {

// `python3 -m tencache COMMAND ARGUMENTS`, in place of this process, in the Python that is found first. Throws Error
// where there is none.
ExitCode run_in_python(const std::vector<std::string>& command, const std::vector<std::string>& arguments);

}  // namespace tencache
