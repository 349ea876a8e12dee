// `--policy-library F`: policies from shared libraries, beside those of the registry.
#pragma once

#include <string>
#include <vector>

namespace tencache {

// Loads the library for the rest of the process and registers its policies; a second time does nothing. The file is
// made absolute: the dynamic loader's search path has no part in it. Throws Error where it is none, was compiled
// against another interface, or has a policy whose name is taken.
void load_policy_library(const std::string& file);

// Of the library that has the policy; empty for the program's own.
struct PolicyOrigin {
  std::string file, sha256;
};
PolicyOrigin origin_of_policy(const std::string& policy);

// Files of all loaded libraries, in order.
std::vector<std::string> loaded_policy_libraries();

}  // namespace tencache
