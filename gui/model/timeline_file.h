// Timelines that `--timeline` wrote (cli/chrome_trace.h), read again.
#pragma once

#include <string>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

// One recording a process of the file, in its order. The file is read a block at a time, so that one of a million spans
// needs no more memory than its recordings. Throws Error that says where the file is damaged, or that it is none of
// tencache's.
std::vector<Recording> read_timeline(const std::string& path);

}  // namespace tencache::gui
