// `tencache-torch`, the program that trains: a program of its own because LibTorch takes 0.4 s to load.
//
//   tencache-torch train CONFIG --machine M --policy P [--set k=v]… [--gpu-memory S] [--steps n] [--timeline F]
//                  [--prediction F] [--json]
//   tencache-torch record CONFIG -o T
#pragma once

#include <string>
#include <vector>

namespace tencache {

// Looks beside this program, in ../libexec/tencache and in the build tree. Throws Error if this build has none.
std::string find_torch_program();

// Runs it with these arguments and our standard streams, and waits. Returns its exit code; 128 + n if signal n ended
// it. Throws Error if it cannot be started.
int run_program(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace tencache
