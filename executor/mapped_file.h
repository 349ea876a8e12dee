// Memory that is a private mapping of a file: its pages are the file's until the process writes them.
//
// What the system says of it (/proc/self/maps and pagemap, proc(5)). Where it says nothing, nothing is known: then there
// is no such mapping, or it was written. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "executor/file_descriptor.h"

namespace tencache {

struct MappedFile {
  std::string path;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // in the file, of the first byte that was asked for
};

// The file that all of the bytes lie in, in one mapping; nullopt: they do not, or the mapping is shared.
std::optional<MappedFile> private_mapping_at(const void* address, std::size_t bytes);

// Opens the file for reading if it has what these bytes, at least one, of its mapping say: no page of them was written,
// and the path still leads to the file that is mapped. Not open otherwise.
FileDescriptor open_unwritten(const MappedFile& file, const void* address, std::size_t bytes);

}  // namespace tencache
