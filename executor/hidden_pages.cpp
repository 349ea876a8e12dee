#include "executor/hidden_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"

namespace tencache {
namespace {

void reserve(std::byte* at, Bytes bytes) {
  if (::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw Error("cannot give " + format_bytes(bytes) + " of addresses back: " + std::strerror(errno));
  }
}

void move(const HiddenPages& pages, const HiddenPages::Part& part) {
  // Before anybody can see them.
  if (pages.read_only) set_writable(part.from, part.bytes, false);
  try {
    move_pages(part.from, part.to, part.bytes);
  } catch (const Error&) {
    if (pages.read_only) set_writable(part.from, part.bytes, true);
    throw;
  }
  if (!pages.at_home) return reserve(part.from, part.bytes);
  if (pages.read_only) set_writable(part.from, part.bytes, true);
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

void move_pages(std::byte* from, std::byte* to, Bytes bytes) {
  // Without MREMAP_DONTUNMAP the addresses left would be free for anybody.
  if (::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == MAP_FAILED) {
    throw Error("cannot move " + format_bytes(bytes) + " of memory to its address: " + std::strerror(errno) +
                (errno == EINVAL   ? "; live Python programs need Linux 5.13 or newer"
                 : errno == ENOMEM ? "; too many mappings: raise vm.max_map_count (sysctl)"
                                   : ""));
  }
}

void set_writable(std::byte* at, Bytes bytes, bool writable) {
  if (::mprotect(at, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
    throw Error("cannot protect " + format_bytes(bytes) + ": " + std::strerror(errno));
  }
}

void show(HiddenPages& pages) {
  const std::lock_guard lock(pages.mutex);
  std::size_t moved = 0;
  try {
    if (pages.file >= 0) map(pages);
    for (; pages.file < 0 && moved < pages.parts.size(); ++moved) move(pages, pages.parts[moved]);
  } catch (const Error&) {
    while (moved != 0) {
      const HiddenPages::Part& part = pages.parts[--moved];
      move_pages(part.to, part.from, part.bytes);
      if (pages.read_only) set_writable(part.from, part.bytes, true);
      reserve(part.to, part.bytes);
    }
    throw;
  }
  pages.shown = true;
}

bool shown_or_later(HiddenPages& pages, bool read_only) {
  const std::lock_guard lock(pages.mutex);
  if (!pages.shown) pages.read_only = read_only;
  return pages.shown;
}

}  // namespace tencache
