// Which build of the program this is.
#pragma once

#include <string>

namespace tencache {

// Changes with the code: what the linker wrote into the object that this function is in (the program, or the library of
// it that another program has loaded) as GNU build ID, or else the SHA-256 of that object's file; lower-case hex.
std::string build_id();

}  // namespace tencache
