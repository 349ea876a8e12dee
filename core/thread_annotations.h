// Which lock guards what, said so that Clang checks it (-Wthread-safety: tests/thread_safety_test.py, ./dev lint).
//
//   Mutex mutex_;
//   int count_ TENCACHE_GUARDED_BY(mutex_) = 0;
//   void add() TENCACHE_REQUIRES(mutex_);         // the caller holds it
//   void assert_held() const TENCACHE_ASSERTS(mutex_) {}  // its caller's owner guards it with this mutex
//
// libstdc++'s own types carry no such attributes, so Mutex, MutexLock and Condition wrap them and cost nothing more.
// Lambdas are checked as functions of their own: wait in a loop rather than with a predicate, or annotate the lambda.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define TENCACHE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define TENCACHE_THREAD_ATTRIBUTE(x)
#endif

#define TENCACHE_GUARDED_BY(mutex) TENCACHE_THREAD_ATTRIBUTE(guarded_by(mutex))
#define TENCACHE_REQUIRES(...) TENCACHE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define TENCACHE_EXCLUDES(...) TENCACHE_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define TENCACHE_ACQUIRE(...) TENCACHE_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TENCACHE_RELEASE(...) TENCACHE_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define TENCACHE_ASSERTS(...) TENCACHE_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define TENCACHE_UNCHECKED_LOCKS TENCACHE_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace tencache {

class TENCACHE_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() TENCACHE_ACQUIRE() { mutex_.lock(); }
  void unlock() TENCACHE_RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex; may let go of it meanwhile.
class TENCACHE_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TENCACHE_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() TENCACHE_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void lock() TENCACHE_ACQUIRE() { lock_.lock(); }
  void unlock() TENCACHE_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// Waiting lets go of the lock and takes it again, which needs no annotation: it is held before and after.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // `limit`: a time of any clock. False at the time limit.
  template <typename TimePoint>
  bool wait_until(MutexLock& lock, const TimePoint& limit) {
    return condition_.wait_until(lock.lock_, limit) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace tencache
