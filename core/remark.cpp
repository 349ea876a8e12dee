#include "core/remark.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "core/text.h"
#include "core/thread_annotations.h"

namespace tencache {
namespace {

thread_local std::string* sink_of_thread = nullptr;

struct Doing {
  Mutex mutex;
  std::string what TENCACHE_GUARDED_BY(mutex);
};
Doing& now_doing() {
  static Doing now;
  return now;
}
constexpr const char* start_of_line = "\r\033[K";  // which is empty then
std::atomic<int> shown_lines = 0;
std::atomic<bool> progress_hidden = false;

}  // namespace

void remark(std::string_view text) {
  std::string line = printable(text) + "\n";
  if (sink_of_thread != nullptr) {
    *sink_of_thread += line;
    return;
  }
  if (shown_lines != 0) line.insert(0, start_of_line);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

RemarkSink::RemarkSink(std::string& lines) : before_(sink_of_thread) { sink_of_thread = &lines; }
RemarkSink::~RemarkSink() { sink_of_thread = before_; }

void hide_progress(bool hidden) { progress_hidden = hidden; }

ProgressLine::ProgressLine() : terminal_(sink_of_thread == nullptr && !progress_hidden && isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (!shown_) return;
  std::fputs(start_of_line, stderr);
  --shown_lines;
}

void ProgressLine::show(std::string_view text) {
  if (!terminal_) return;
  const std::string line = start_of_line + printable(text);
  std::fwrite(line.data(), 1, line.size(), stderr);
  if (!shown_) ++shown_lines;
  shown_ = true;
}

bool ProgressLine::is_covered() const { return shown_lines > (shown_ ? 1 : 0); }

void doing(std::string_view what) {
  Doing& now = now_doing();
  const MutexLock lock(now.mutex);
  now.what = what;
}

std::string what_is_done() {
  Doing& now = now_doing();
  const MutexLock lock(now.mutex);
  return now.what;
}

}  // namespace tencache
