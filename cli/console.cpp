#include "cli/console.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

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

PatienceLine::PatienceLine(std::string command) : command_(std::move(command)) {
  doing("");
  if (line_.is_seen()) watcher_ = std::thread([this] { watch(); });
}

PatienceLine::~PatienceLine() {
  if (!watcher_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  watcher_.join();
}

void PatienceLine::watch() {
  constexpr int first_s = 2;
  const auto begin = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  for (int seconds = first_s; !is_over_; ++seconds) {
    while (!is_over_ && ended_.wait_until(lock, begin + std::chrono::seconds(seconds))) {
    }
    if (is_over_ || line_.is_covered()) continue;
    const std::string what = what_is_done();
    line_.show(command_ + (what.empty() ? "" : ": " + what) + ", " + std::to_string(seconds) + " s");
  }
}

void print_json(const Json& document) { put(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

}  // namespace tencache
