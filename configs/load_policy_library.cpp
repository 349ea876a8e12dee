#include "configs/load_policy_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "policies/policy_library.h"
#include "policies/registry.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

struct Loaded {
  std::string file, sha256;
  const PolicyLibrary* library;
};
std::vector<Loaded>& loaded() {
  static std::vector<Loaded> libraries;
  return libraries;
}

void check_abi(const std::string& file, const PolicyLibrary& library) {
  if (library.abi_version != policy_abi_version) {
    throw Error(file, 0,
                fmt::format("was compiled for version {} of the policy interface, this program has version {}; compile "
                            "it against the headers of tencache " TENCACHE_VERSION,
                            library.abi_version, policy_abi_version));
  }
  if (library.abi_layout != policy_abi_layout()) {
    throw Error(file, 0,
                fmt::format("was compiled by {} against headers whose types differ from this program's (compiled by "
                            "{}); compile it against the headers of tencache " TENCACHE_VERSION,
                            library.compiler, __VERSION__));
  }
}

}  // namespace

void load_policy_library(const std::string& name) {
  std::error_code error;
  const std::string file = std::filesystem::weakly_canonical(name, error).string();
  if (error || !std::filesystem::is_regular_file(file))
    throw Error(name, 0, "is not a file; --policy-library needs one");
  for (const Loaded& one : loaded()) {
    if (one.file == file) return;
  }
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::string reason = dlerror();
    if (reason.starts_with(file + ": ")) reason.erase(0, file.size() + 2);
    throw Error(file, 0, "cannot be loaded as a shared library: " + reason);
  }
  using Entry = const PolicyLibrary* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "tencache_policy_library"));
  if (entry == nullptr) {
    dlclose(handle);
    throw Error(file, 0, "is no policy library: it lacks TENCACHE_POLICY({…}), see docs/writing-a-policy.md");
  }
  const PolicyLibrary* library = entry();
  check_abi(file, *library);
  register_policies({library->entries, library->entry_count}, file);
  loaded().push_back({file, sha256_of_file(file), library});
}

PolicyOrigin origin_of_policy(const std::string& policy) {
  for (const Loaded& one : loaded()) {
    for (std::uint32_t i = 0; i < one.library->entry_count; ++i) {
      if (policy == one.library->entries[i].name) return {one.file, one.sha256};
    }
  }
  return {};
}

std::vector<std::string> loaded_policy_libraries() {
  std::vector<std::string> files;
  for (const Loaded& one : loaded()) files.push_back(one.file);
  return files;
}

}  // namespace tencache
