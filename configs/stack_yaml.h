// configs/stacks.yaml: what software costs beside its kernels.
#pragma once

#include <string>

#include "traces/generate/generate.h"

namespace tencache {

// The shipped file. Throws Error with file and line if it is broken.
StackFigures read_stack_figures();
// The same from text; `file` is for messages.
StackFigures parse_stack_figures(const std::string& text, const std::string& file);

}  // namespace tencache
