// The parts of `tencache import`: one for each kind of recording.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "core/trace.h"

namespace tencache {

// `import pytorch`, `import kineto`, `import chakra`, `import trace`.
void add_import_recordings(CLI::App& group, Command& chosen);

// Writes the trace and says what was imported, the notes on stderr or in the document of --json.
ExitCode finish_import(const Trace& trace, const std::vector<std::string>& notes, const std::string& output, bool json);

}  // namespace tencache
