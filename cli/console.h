// What goes to the user: results on stdout, progress and remarks on stderr (core/remark.h).
#pragma once

#include <string>
#include <string_view>
#include <thread>

#include "answers/json.h"
#include "answers/text_table.h"
#include "core/remark.h"
#include "core/text.h"
#include "core/thread_annotations.h"

namespace tencache {

// The document of --json. Throws Error if stdout cannot take it.
void print_json(const Json& document);
// Text on stdout, its lines each as printable() gives it. Throws Error if stdout cannot take it.
void print(std::string_view text);

// While it lives, what takes more than two seconds shows what it does (core/remark.h), where nothing else shows more.
class PatienceLine {
 public:
  explicit PatienceLine(std::string command);
  ~PatienceLine();
  PatienceLine(const PatienceLine&) = delete;
  PatienceLine& operator=(const PatienceLine&) = delete;

 private:
  void watch();

  std::string command_;
  ProgressLine line_;
  Mutex mutex_;
  Condition ended_;
  bool is_over_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;  // none where nobody would see it
};

}  // namespace tencache
