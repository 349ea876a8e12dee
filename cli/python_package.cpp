#include "cli/python_package.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tencache {

ExitCode run_in_python(const std::vector<std::string>& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"python3", "-m", "tencache"};
  words.insert(words.end(), command.begin(), command.end());
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv.front(), argv.data());
  throw Error(fmt::format("{}: cannot start python3: {}", fmt::join(command, " "), std::strerror(errno)));
}

}  // namespace tencache
