#include "core/remark.h"

#include <unistd.h>

#include <cstdio>

#include "core/text.h"

namespace tencache {
namespace {

thread_local std::string* sink_of_thread = nullptr;

}  // namespace

void remark(std::string_view text) {
  const std::string line = printable(text) + "\n";
  if (sink_of_thread != nullptr) {
    *sink_of_thread += line;
  } else {
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

RemarkSink::RemarkSink(std::string& lines) : before_(sink_of_thread) { sink_of_thread = &lines; }
RemarkSink::~RemarkSink() { sink_of_thread = before_; }

ProgressLine::ProgressLine() : terminal_(sink_of_thread == nullptr && isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressLine::show(std::string_view text) {
  if (!terminal_) return;
  const std::string line = "\r\033[K" + printable(text);
  std::fwrite(line.data(), 1, line.size(), stderr);
  shown_ = true;
}

}  // namespace tencache
