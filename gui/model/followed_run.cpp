#include "gui/model/followed_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_spans = 300'000;
constexpr std::size_t block_bytes = 1 << 20;
constexpr std::chrono::milliseconds between_looks{100};

}  // namespace

void FollowedRun::read_to_end() {
  std::string block(block_bytes, '\0');
  for (;;) {
    const ssize_t size = ::read(file_.get(), block.data(), block.size());
    if (size < 0) throw Error(name_, 0, "cannot be read to its end");
    if (size == 0) return;
    parser_.feed(std::string_view(block).substr(0, static_cast<std::size_t>(size)));
  }
}

void FollowedRun::show_what_came() {
  std::vector<RunPointer> indexed;
  for (Recording& recording : parser_.snapshot(most_spans)) {
    indexed.push_back(std::make_shared<const Run>(std::move(recording)));
  }
  if (indexed.empty()) return;
  const MutexLock lock(mutex_);
  runs_ = std::move(indexed);
  changed_.notify_all();
}

// Until the run is over, or nobody follows it any more.
void FollowedRun::read_until_over() {
  for (std::uint64_t shown = 0;;) {
    const bool goes_on = is_being_written(file_.get());  // before the last words are read
    read_to_end();
    if (parser_.spans_ever_seen() != shown) show_what_came();
    shown = parser_.spans_ever_seen();
    if (parser_.complete()) return;
    MutexLock lock(mutex_);
    if (!goes_on) note_ = parser_.cut_off();
    if (!goes_on) return;
    const auto next_look = std::chrono::steady_clock::now() + between_looks;
    while (!stopped_ && changed_.wait_until(lock, next_look)) {
    }
    if (stopped_) return;
  }
}

void FollowedRun::work() {
  std::string failure;
  try {
    read_until_over();
  } catch (const Error& thrown) {
    failure = thrown.what();
  }
  const MutexLock lock(mutex_);
  error_ = std::move(failure);
  over_ = true;
  changed_.notify_all();
}

std::unique_ptr<FollowedRun> FollowedRun::follow(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open() || !is_being_written(file.get())) return nullptr;
  return std::make_unique<FollowedRun>(path, std::move(file));
}

FollowedRun::FollowedRun(const std::string& path, FileDescriptor descriptor)
    : name_(path), file_(std::move(descriptor)), parser_(path, most_spans), thread_([this] { work(); }) {}

FollowedRun::~FollowedRun() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::vector<RunPointer> FollowedRun::take() {
  const MutexLock lock(mutex_);
  return std::exchange(runs_, {});
}

bool FollowedRun::over() const {
  const MutexLock lock(mutex_);
  return over_;
}

std::string FollowedRun::note() const {
  const MutexLock lock(mutex_);
  return note_;
}

std::string FollowedRun::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

void FollowedRun::wait() const {
  MutexLock lock(mutex_);
  while (!over_ && runs_.empty()) changed_.wait(lock);
}

}  // namespace tencache::gui
