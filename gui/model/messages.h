// The last thing worth saying to the user, and what went wrong that a later message must not hide.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tencache::gui {

class Messages {
 public:
  const std::string& last() const { return last_; }
  bool last_is_error() const { return last_is_error_; }
  // Since nothing was under way and something new began.
  const std::vector<std::string>& errors() const { return errors_; }

  void say(std::string text, bool error = false) {
    if (error) errors_.push_back(text);
    last_ = std::move(text);
    last_is_error_ = error;
    misfit_ = false;
  }
  // What hides no error.
  void remark(std::string text) {
    if (errors_.empty()) say(std::move(text));
  }
  // An answer, not a mishap.
  void say_misfit(std::string text) {
    last_ = std::move(text);
    last_is_error_ = misfit_ = true;
  }
  // What was said of a misfit holds no more.
  void forget_misfit(const std::string& instead) {
    if (!misfit_ && !last_.empty()) return;
    last_ = errors_.empty() ? instead : errors_.back();
    last_is_error_ = !errors_.empty();
    misfit_ = false;
  }
  // Something new after all that was asked for is done: old errors have been read.
  void begin() {
    if (!std::exchange(settled_, false)) return;
    errors_.clear();
    if (last_is_error_) say("");
  }
  void settle(bool settled) { settled_ = settled; }

 private:
  std::string last_;
  bool last_is_error_ = false, misfit_ = false, settled_ = false;
  std::vector<std::string> errors_;
};

}  // namespace tencache::gui
