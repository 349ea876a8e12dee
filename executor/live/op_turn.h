// Whose op runs on a live runtime: one at a time. Guarded by the runtime's mutex.
#pragma once

#include <thread>
#include <utility>

namespace tencache {

class OpTurn {
 public:
  bool taken() const { return taken_; }
  void take() { taken_ = true; }
  void give() {
    taken_ = false;
    owner_ = {};
  }
  // The op's own code runs from here on, on this thread.
  void body_begins() { owner_ = std::this_thread::get_id(); }
  bool inside_body() const { return owner_ == std::this_thread::get_id(); }

  // The op has ended for the program, and goes on to the engine until the next call of anybody.
  void linger() { lingers_ = true; }
  bool end_lingering() { return std::exchange(lingers_, false); }

 private:
  bool taken_ = false;  // by an op or by tasks
  bool lingers_ = false;
  std::thread::id owner_;
};

}  // namespace tencache
