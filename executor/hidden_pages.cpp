#include "executor/hidden_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"

namespace tencache {
namespace {

void move(const HiddenPages::Part& part, bool read_only) {
  // Before anybody can see them.
  if (read_only && ::mprotect(part.from, part.bytes, PROT_READ) != 0) {
    throw Error("cannot protect " + format_bytes(part.bytes) + ": " + std::strerror(errno));
  }
  // Without MREMAP_DONTUNMAP the addresses left would be free for anybody.
  if (::mremap(part.from, part.bytes, part.bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, part.to) ==
      MAP_FAILED) {
    throw Error("cannot move " + format_bytes(part.bytes) + " of memory to its address: " + std::strerror(errno) +
                (errno == EINVAL ? "; live Python programs need Linux 5.13 or newer" : ""));
  }
  if (::mmap(part.from, part.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    throw Error("cannot give " + format_bytes(part.bytes) + " of addresses back: " + std::strerror(errno));
  }
}

void map(const HiddenPages& pages) {
  const HiddenPages::Part& part = pages.parts.front();
  const int access = pages.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
  if (::mmap(part.to, part.bytes, access, flags, pages.file, static_cast<off_t>(pages.offset)) == MAP_FAILED) {
    throw Error("cannot map " + format_bytes(part.bytes) + " of memory at its address: " + std::strerror(errno) +
                (errno == ENOMEM ? "; too many mappings: raise vm.max_map_count (sysctl)" : ""));
  }
  if (::madvise(part.to, part.bytes, MADV_DONTFORK) != 0) {
    throw Error(std::string("cannot keep memory from child processes: ") + std::strerror(errno));
  }
}

}  // namespace

void show(HiddenPages& pages) {
  const std::lock_guard lock(pages.mutex);
  pages.shown = true;  // in parts, if the system refuses one
  if (pages.file >= 0) return map(pages);
  for (const HiddenPages::Part& part : pages.parts) move(part, pages.read_only);
}

bool shown_or_later(HiddenPages& pages, bool read_only) {
  const std::lock_guard lock(pages.mutex);
  if (!pages.shown) pages.read_only = read_only;
  return pages.shown;
}

}  // namespace tencache
