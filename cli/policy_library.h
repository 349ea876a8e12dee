// `--policy-library F`, any number of times: each library is loaded as the command line is read.
#pragma once

#include "configs/load_policy_library.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tencache {

void add_policy_library_option(CLI::App& command);

}  // namespace tencache
