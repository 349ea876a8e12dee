#include "traces/file/output_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

// Absolute first: of a relative name without an existing part weakly_canonical() leaves "./".
std::filesystem::path canonical(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
}

// What a signal that ends the program is to remove; one that finds no place here may stay behind.
struct Remembered {
  std::atomic<bool> there = false;
  std::string file, folder;
};
std::array<Remembered, 8> remembered;
std::mutex of_remembered;

// Calls nothing but what a signal handler may.
void remove_and_end(int signal) {
  for (const Remembered& one : remembered) {
    if (!one.there) continue;
    ::unlink(one.file.c_str());
    ::rmdir(one.folder.c_str());
  }
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

void remember(const std::string& file, const std::string& folder) {
  const std::lock_guard lock(of_remembered);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    // Whoever ignores a signal or has a handler of their own, such as Python, goes on.
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) {
      std::signal(signal, remove_and_end);
    }
  }
  const auto place = std::ranges::find_if(remembered, [](const Remembered& one) { return !one.there; });
  if (place == remembered.end()) return;
  place->file = file;
  place->folder = folder;
  place->there = true;
}

void forget(const std::string& file) {
  const std::lock_guard lock(of_remembered);
  for (Remembered& one : remembered) {
    if (one.there && one.file == file) one.there = false;
  }
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

std::string TemporaryFile::path() {
  if (!path_.empty()) return path_;
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) folder = "/tmp";
  std::string own = (folder / "tencache-XXXXXX").string();
  if (mkdtemp(own.data()) == nullptr) {
    throw Error(folder.string() + ": no folder for temporary files can be made there: " + std::strerror(errno) +
                "; make room or set TMPDIR");
  }
  folder_ = own;
  path_ = own + "/tencache" + suffix_;
  remember(path_, folder_);
  return path_;
}

TemporaryFile::~TemporaryFile() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  forget(path_);
}

}  // namespace tencache
