// What a program says beside its result: notes and progress, on stderr.
#pragma once

#include <string>
#include <string_view>

namespace tencache {

// One line on stderr, as printable() gives it, or where this thread's RemarkSink takes it.
void remark(std::string_view text);

// While it lives, remarks of its thread are added to `lines`, each with its end of line, and no progress is shown.
// Sinks nest; the innermost takes all.
class RemarkSink {
 public:
  explicit RemarkSink(std::string& lines);
  ~RemarkSink();
  RemarkSink(const RemarkSink&) = delete;
  RemarkSink& operator=(const RemarkSink&) = delete;

 private:
  std::string* before_;
};

// No line of progress is shown from now on, or lines are again.
void hide_progress(bool hidden);

// What the program is at, for who wonders why it takes long: as the thread that said so last has it.
void doing(std::string_view what);
std::string what_is_done();

// A line on stderr that is written over and over, only where stderr is a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  // clears the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view text);
  bool is_seen() const { return terminal_; }  // if it is shown
  bool is_covered() const;                    // by another one

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace tencache
