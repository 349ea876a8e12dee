#include "executor/mapped_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

namespace tencache {
namespace {

FileDescriptor open_to_read(const char* path) { return FileDescriptor(::open(path, O_RDONLY | O_CLOEXEC)); }

bool read_at(const FileDescriptor& file, void* to, std::size_t bytes, std::uint64_t offset) {
  return ::pread(file.get(), to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Then the file no longer has the page's content, whether it is in memory or in swap.
bool is_written(std::uint64_t page) {
  constexpr std::uint64_t swapped = 1ull << 62, present = 1ull << 63, of_the_file = 1ull << 61;
  return (page & swapped) != 0 || ((page & present) != 0 && (page & of_the_file) == 0);
}

bool any_written(const void* address, std::size_t bytes) {
  const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t first = begin / page_bytes, end = (begin + bytes + page_bytes - 1) / page_bytes;
  const FileDescriptor pages = open_to_read("/proc/self/pagemap");  // which is read in whole entries only
  std::vector<std::uint64_t> entries(1024);
  for (std::uintptr_t page = first; page < end;) {
    const std::size_t count = std::min<std::uintptr_t>(entries.size(), end - page);
    const std::size_t wanted = count * sizeof(std::uint64_t);
    if (!read_at(pages, entries.data(), wanted, page * sizeof(std::uint64_t))) return true;
    if (std::any_of(entries.data(), entries.data() + count, is_written)) return true;
    page += count;
  }
  return false;
}

std::uint64_t inode_of(const FileDescriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::optional<MappedFile> private_mapping_at(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long first = 0, last = 0, offset = 0, inode = 0;
    char access[5] = {};
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %llx %*s %llu %n", &first, &last, access, &offset, &inode, &path_at) !=
        5) {
      continue;
    }
    if (begin < first || begin >= last) continue;
    if (inode == 0 || access[3] != 'p' || bytes > last - begin) return std::nullopt;
    return MappedFile{line.substr(static_cast<std::size_t>(path_at)), inode, offset + (begin - first)};
  }
  return std::nullopt;
}

FileDescriptor open_unwritten(const MappedFile& file, const void* address, std::size_t bytes) {
  if (any_written(address, bytes)) return {};
  FileDescriptor opened = open_to_read(file.path.c_str());
  if (inode_of(opened) != file.inode) return {};
  // Inodes of different file systems may be the same.
  std::vector<std::byte> sample(std::min<std::size_t>(bytes, 4096));
  const auto same = [&](std::size_t at) {
    return read_at(opened, sample.data(), sample.size(), file.offset + at) &&
           std::memcmp(sample.data(), static_cast<const std::byte*>(address) + at, sample.size()) == 0;
  };
  return same(0) && same(bytes - sample.size()) ? std::move(opened) : FileDescriptor();
}

}  // namespace tencache
