// Files that a command writes: looked at before anything runs, so that no result is lost to a wrong path.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tencache {

// Throws Error that names `option` and `path` if the file cannot be written, or is one of `others`: the command's
// inputs and its other outputs, of which empty ones are none. An existing file stays as it is. An empty `path` is fine.
void check_output(const std::string& option, const std::string& path, const std::vector<std::string>& others);

// A name in a folder of its own among the temporary files, which only its owner may enter: made when the name is first
// asked for, gone with this object, and with the program where SIGINT, SIGTERM or SIGHUP ends it.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string suffix) : suffix_(std::move(suffix)) {}
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path();

 private:
  std::string suffix_, folder_, path_;
};

}  // namespace tencache
