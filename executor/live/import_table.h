// The functions that libraries of this process import by name: each library has a table of their addresses, which the
// loader fills in. Here an address in it is replaced, for functions of libc that cannot be called as they are while
// tensors are paged.
//
// Not replaced: calls from within libc, from static programs, and system calls that a library makes itself.
#pragma once

#include <span>

namespace tencache {

struct ImportedFunction {
  const char* name;
  void* replacement;
};

// In all libraries that were loaded since the last call, except the one that this function is part of (whose calls are
// what replacements call). Of the same functions each time. Cheap where nothing was loaded. Any thread may call.
void replace_imports(std::span<const ImportedFunction> functions);

}  // namespace tencache
