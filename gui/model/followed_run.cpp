#include "gui/model/followed_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/thread_annotations.h"
#include "executor/file_descriptor.h"
#include "gui/model/timeline_file.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_spans = 300'000;
constexpr std::size_t block_bytes = 1 << 20;
constexpr std::chrono::milliseconds between_looks{100};

}  // namespace

struct FollowedRun::State {
  State(const std::string& path, FileDescriptor descriptor)
      : name(path), file(std::move(descriptor)), parser(path, most_spans) {}

  std::string name;
  FileDescriptor file;
  TimelineParser parser;  // the thread's own
  Mutex mutex;
  Condition changed;
  std::vector<RunPointer> runs TENCACHE_GUARDED_BY(mutex);
  std::string note TENCACHE_GUARDED_BY(mutex), error TENCACHE_GUARDED_BY(mutex);
  bool over TENCACHE_GUARDED_BY(mutex) = false, stopped TENCACHE_GUARDED_BY(mutex) = false;
  std::thread thread;

  void read_to_end() {
    std::string block(block_bytes, '\0');
    for (;;) {
      const ssize_t size = ::read(file.get(), block.data(), block.size());
      if (size < 0) throw Error(name, 0, "cannot be read to its end");
      if (size == 0) return;
      parser.feed(std::string_view(block).substr(0, static_cast<std::size_t>(size)));
    }
  }

  void show_what_came() {
    std::vector<RunPointer> indexed;
    for (Recording& recording : parser.snapshot(most_spans)) {
      indexed.push_back(std::make_shared<const Run>(std::move(recording)));
    }
    if (indexed.empty()) return;
    const MutexLock lock(mutex);
    runs = std::move(indexed);
    changed.notify_all();
  }

  // Until the run is over, or nobody follows it any more.
  void follow() {
    for (std::uint64_t shown = 0;;) {
      const bool goes_on = is_being_written(file.get());  // before the last words are read
      read_to_end();
      if (parser.spans_ever_seen() != shown) show_what_came();
      shown = parser.spans_ever_seen();
      if (parser.complete()) return;
      MutexLock lock(mutex);
      if (!goes_on) note = parser.cut_off();
      if (!goes_on) return;
      const auto next_look = std::chrono::steady_clock::now() + between_looks;
      while (!stopped && changed.wait_until(lock, next_look)) {
      }
      if (stopped) return;
    }
  }

  void work() {
    std::string failure;
    try {
      follow();
    } catch (const Error& thrown) {
      failure = thrown.what();
    }
    const MutexLock lock(mutex);
    error = std::move(failure);
    over = true;
    changed.notify_all();
  }
};

std::unique_ptr<FollowedRun> FollowedRun::follow(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open() || !is_being_written(file.get())) return nullptr;
  return std::unique_ptr<FollowedRun>(new FollowedRun(std::make_unique<State>(path, std::move(file))));
}

FollowedRun::FollowedRun(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->thread = std::thread([this] { state_->work(); });
}

FollowedRun::~FollowedRun() {
  {
    const MutexLock lock(state_->mutex);
    state_->stopped = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

std::vector<RunPointer> FollowedRun::take() {
  const MutexLock lock(state_->mutex);
  return std::exchange(state_->runs, {});
}

bool FollowedRun::over() const {
  const MutexLock lock(state_->mutex);
  return state_->over;
}

std::string FollowedRun::note() const {
  const MutexLock lock(state_->mutex);
  return state_->note;
}

std::string FollowedRun::error() const {
  const MutexLock lock(state_->mutex);
  return state_->error;
}

void FollowedRun::wait() const {
  MutexLock lock(state_->mutex);
  while (!state_->over && state_->runs.empty()) state_->changed.wait(lock);
}

}  // namespace tencache::gui
