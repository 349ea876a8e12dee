#include "studies/sweep/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>
#include <string_view>

#include "traces/file/file_io.h"

namespace tencache {
namespace {

// An object that the dynamic loader has in memory.
struct Object {
  std::string file = "/proc/self/exe";
  std::string id;  // empty: it has none
};

// The notes of a segment follow one another, each a header, a name and a description, padded to 4 bytes.
std::string id_in_notes(const char* at, const char* end) {
  const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
  while (at + sizeof(ElfW(Nhdr)) <= end) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof note);
    const char* name = at + sizeof note;
    const char* description = name + padded(note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && std::string_view(name, note.n_namesz) == std::string_view("GNU\0", 4)) {
      std::string id;
      for (std::size_t i = 0; i < note.n_descsz; ++i) {
        id += fmt::format("{:02x}", static_cast<unsigned char>(description[i]));
      }
      return id;
    }
    at = description + padded(note.n_descsz);
  }
  return "";
}

// Fills in `found` where the object holds this code.
int look_at(dl_phdr_info* object, std::size_t, void* found) {
  const auto here = reinterpret_cast<std::uintptr_t>(&build_id);
  bool ours = false;
  std::string id;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD) ours = ours || (here >= begin && here < begin + segment.p_memsz);
    if (segment.p_type == PT_NOTE && id.empty()) {
      const char* notes = reinterpret_cast<const char*>(begin);
      id = id_in_notes(notes, notes + segment.p_memsz);
    }
  }
  if (!ours) return 0;
  auto& result = *static_cast<Object*>(found);
  if (*object->dlpi_name != '\0') result.file = object->dlpi_name;  // the program's own is empty
  result.id = id;
  return 1;
}

}  // namespace

std::string build_id() {
  static const std::string id = [] {
    Object object;
    dl_iterate_phdr(look_at, &object);
    return object.id.empty() ? sha256_of_file(object.file) : object.id;
  }();
  return id;
}

}  // namespace tencache
