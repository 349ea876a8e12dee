// Timelines that `--timeline` wrote (answers/timeline/chrome_trace.h), read again.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

// One recording a process of the file, in its order. The file is read a block at a time, so that one of a million spans
// needs no more memory than its recordings. Of a file that was cut off, what is there; `note` says so, if it is given.
// Throws Error that says where the file is damaged, or that it is none of tencache's.
std::vector<Recording> read_timeline(const std::string& path, std::string* note = nullptr);

// The same from text that comes in pieces, of a run that is still going on.
class TimelineParser {
 public:
  // `name`: for messages. `most_spans`: of each run no more than twice as many are kept, the last ones; 0: all.
  explicit TimelineParser(const std::string& name, std::size_t most_spans = 0);
  ~TimelineParser();
  TimelineParser(const TimelineParser&) = delete;
  TimelineParser& operator=(const TimelineParser&) = delete;

  void feed(std::string_view text);
  bool complete() const;        // the text is a whole file
  std::string cut_off() const;  // says that it is not
  // What came so far; of each recording at most the last so many spans, cut at an iteration's start. Copies.
  std::vector<Recording> snapshot(std::size_t most_spans) const;
  std::uint64_t spans_ever_seen() const;
  std::vector<Recording> take();  // the end: throws Error if no recording is there

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

}  // namespace tencache::gui
