#include "answers/embedding.h"

#include "core/check.h"
#include "core/remark.h"

namespace tencache {
namespace {

thread_local Embedding* embedding_of_thread = nullptr;

ExitCode (*command_line)(int argc, const char* const* argv) = nullptr;

}  // namespace

ExitCode run_embedded(const std::vector<std::string>& words, Embedding& embedding) {
  TENCACHE_CHECK(command_line != nullptr);
  std::vector<const char*> arguments{"tencache"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  struct Restore {
    Embedding* before = embedding_of_thread;
    ~Restore() { embedding_of_thread = before; }
  } const restore;
  embedding_of_thread = &embedding;
  const RemarkSink sink(embedding.remarks);
  return command_line(static_cast<int>(arguments.size()), arguments.data());
}

Embedding* current_embedding() { return embedding_of_thread; }

void set_embedded_command_line(ExitCode (*run)(int argc, const char* const* argv)) { command_line = run; }

}  // namespace tencache
