#include "cli/console.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "answers/embedding.h"
#include "core/error.h"

namespace tencache {
namespace {

// To stdout, or what stands for it.
void put(std::string_view text) {
  if (Embedding* embedding = current_embedding()) {
    embedding->output += text;
    return;
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw Error(std::string("cannot write to standard output: ") + std::strerror(errno));
}

}  // namespace

void print(std::string_view text) { put(printable_lines(text)); }

void print_json(const Json& document) { put(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

}  // namespace tencache
