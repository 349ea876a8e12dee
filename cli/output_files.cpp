#include "cli/output_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

// Absolute first: of a relative name without an existing part weakly_canonical() leaves "./".
std::filesystem::path canonical(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
}

}  // namespace

void check_output(const std::string& option, const std::string& path, const std::vector<std::string>& others) {
  if (path.empty()) return;
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool special = fs::exists(path, ignored) && fs::is_other(path, ignored);
  for (const std::string& other : others) {
    if (other.empty() || special) continue;
    const bool same = canonical(path) == canonical(other) || fs::equivalent(path, other, ignored);
    if (same) throw Error(option + ": " + path + " is another file of this command; give it a name of its own");
  }
  if (special) {  // opening a pipe would wake its reader
    if (access(path.c_str(), W_OK) != 0) throw Error(option + ": " + path + ": " + std::strerror(errno));
    return;
  }
  try {
    const AtomicFile probe(path);
  } catch (const Error& error) {
    throw Error(option + ": " + error.what());
  }
}

TemporaryFile::TemporaryFile(const std::string& suffix) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) folder = "/tmp";
  std::string own = (folder / "tencache-XXXXXX").string();
  if (mkdtemp(own.data()) == nullptr) {
    throw Error(fmt::format("{}: no folder for temporary files can be made there: {}; make room or set TMPDIR",
                            folder.string(), std::strerror(errno)));
  }
  path_ = std::filesystem::path(own) / ("tencache" + suffix);
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  std::filesystem::remove_all(path_.parent_path(), ignored);
}

}  // namespace tencache
