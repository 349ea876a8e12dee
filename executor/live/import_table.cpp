#include "executor/live/import_table.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

namespace tencache {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t slot_of_call = R_X86_64_JUMP_SLOT, slot_of_address = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr std::uint32_t slot_of_call = R_AARCH64_JUMP_SLOT, slot_of_address = R_AARCH64_GLOB_DAT;
#else
constexpr std::uint32_t slot_of_call = ~0u, slot_of_address = ~0u;  // none is replaced
#endif

// The tables of a library that is loaded.
struct Library {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  std::span<const ElfW(Rela)> relocations, calls;

  explicit Library(const dl_phdr_info& info) : base(info.dlpi_addr) {
    for (const ElfW(Phdr) & header : std::span(info.dlpi_phdr, info.dlpi_phnum)) {
      if (header.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(base + header.p_vaddr));
    }
  }
  bool usable() const { return symbols != nullptr && names != nullptr; }

 private:
  void read(const ElfW(Dyn) * entry) {
    const ElfW(Rela)* of_addresses = nullptr;
    const ElfW(Rela)* of_calls = nullptr;
    std::size_t address_bytes = 0, own_addresses = 0, call_bytes = 0;
    for (; entry->d_tag != DT_NULL; ++entry) {
      // The loader has made addresses of them, but not of what the kernel maps itself (vdso).
      const auto at = entry->d_un.d_ptr < base ? 0 : entry->d_un.d_ptr;
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols = reinterpret_cast<const ElfW(Sym)*>(at);
          break;
        case DT_STRTAB:
          names = reinterpret_cast<const char*>(at);
          break;
        case DT_RELA:
          of_addresses = reinterpret_cast<const ElfW(Rela)*>(at);
          break;
        case DT_RELASZ:
          address_bytes = entry->d_un.d_val;
          break;
        case DT_RELACOUNT:
          own_addresses = entry->d_un.d_val;
          break;
        case DT_JMPREL:
          of_calls = reinterpret_cast<const ElfW(Rela)*>(at);
          break;
        case DT_PLTRELSZ:
          call_bytes = entry->d_un.d_val;
          break;
        default:
          break;
      }
    }
    if (of_addresses != nullptr) {
      relocations = std::span(of_addresses, address_bytes / sizeof(ElfW(Rela))).subspan(own_addresses);
    }
    if (of_calls != nullptr) calls = {of_calls, call_bytes / sizeof(ElfW(Rela))};
  }
};

std::uintptr_t page_of(std::uintptr_t address) {
  static const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return address / page_bytes * page_bytes;
}

void replace(void** slot, void* replacement, bool read_only) {
  void* const page = reinterpret_cast<void*>(page_of(reinterpret_cast<std::uintptr_t>(slot)));
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (read_only && ::mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return;
  std::atomic_ref(*slot).store(replacement);
  if (read_only) ::mprotect(page, page_bytes, PROT_READ);
}

// Whole pages of what the loader has filled in are protected.
bool is_read_only(const dl_phdr_info& info, ElfW(Addr) address) {
  for (const ElfW(Phdr) & header : std::span(info.dlpi_phdr, info.dlpi_phnum)) {
    const auto begin = page_of(info.dlpi_addr + header.p_vaddr);
    const auto end = page_of(info.dlpi_addr + header.p_vaddr + header.p_memsz);
    if (header.p_type == PT_GNU_RELRO && address >= begin && address < end) return true;
  }
  return false;
}

bool holds(const dl_phdr_info& info, const void* address) {
  for (const ElfW(Phdr) & header : std::span(info.dlpi_phdr, info.dlpi_phnum)) {
    const auto begin = info.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && reinterpret_cast<ElfW(Addr)>(address) - begin < header.p_memsz) return true;
  }
  return false;
}

class Replacer {
 public:
  void replace_in_new(std::span<const ImportedFunction> functions) {
    const std::lock_guard lock(mutex_);
    functions_ = functions;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* self) { return static_cast<Replacer*>(self)->visit(*info); }, this);
    loads_before_ = loads_;
  }

 private:
  // Not 0: enough.
  int visit(const dl_phdr_info& info) {
    if (loads_before_ == info.dlpi_adds) return 1;
    loads_ = info.dlpi_adds;
    if (std::exchange(unloads_, info.dlpi_subs) != info.dlpi_subs) done_.clear();  // addresses are used again
    const Library library(info);
    if (!library.usable() || holds(info, reinterpret_cast<const void*>(&replace_imports))) return 0;
    if (!done_.insert({info.dlpi_addr, library.names}).second) return 0;
    for (const auto& part : {library.relocations, library.calls}) {
      for (const ElfW(Rela) & entry : part) replace_one(info, library, entry);
    }
    return 0;
  }

  void replace_one(const dl_phdr_info& info, const Library& library, const ElfW(Rela) & entry) const {
    const std::uint32_t kind = ELF64_R_TYPE(entry.r_info);
    if (kind != slot_of_call && kind != slot_of_address) return;
    const ElfW(Sym)& symbol = library.symbols[ELF64_R_SYM(entry.r_info)];
    if (symbol.st_shndx != SHN_UNDEF) return;  // its own
    for (const ImportedFunction& function : functions_) {
      if (std::strcmp(library.names + symbol.st_name, function.name) != 0) continue;
      const ElfW(Addr) slot = info.dlpi_addr + entry.r_offset;
      replace(reinterpret_cast<void**>(slot), function.replacement, is_read_only(info, slot));
    }
  }

  std::mutex mutex_;
  std::span<const ImportedFunction> functions_;
  unsigned long long loads_ = 0, loads_before_ = 0, unloads_ = 0;  // of libraries by the process
  std::set<std::pair<ElfW(Addr), const char*>> done_;
};

}  // namespace

void replace_imports(std::span<const ImportedFunction> functions) {
  static Replacer* const replacer = new Replacer;  // called to the end of the process
  replacer->replace_in_new(functions);
}

}  // namespace tencache
