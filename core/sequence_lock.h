// Data that one thread at a time changes and that any thread may read without waiting for it: a reader that was beside
// a change reads again. The data are atomics, stored with release and loaded with acquire. While they change they may be
// in any state: a reader must come to its end whatever it sees. (Boehm, "Can seqlocks get along with programming
// language memory models?", MSPC 2012.)
#pragma once

#include <atomic>
#include <cstdint>

namespace tencache {

class SequenceLock {
 public:
  // The data change while it lives. One at a time.
  class Change {
   public:
    explicit Change(SequenceLock& lock) : lock_(lock), before_(lock.version_.load(std::memory_order_relaxed)) {
      lock_.version_.store(before_ + 1, std::memory_order_relaxed);
    }
    ~Change() { lock_.version_.store(before_ + 2, std::memory_order_release); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    SequenceLock& lock_;
    std::uint64_t before_;
  };

  // What `look` returns of data that did not change meanwhile.
  template <typename Look>
  auto read(const Look& look) const {
    while (true) {
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      const auto seen = look();
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return seen;
    }
  }

 private:
  std::atomic<std::uint64_t> version_ = 0;  // odd: a change goes on
};

}  // namespace tencache
