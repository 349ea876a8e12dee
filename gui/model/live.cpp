#include "gui/model/live.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.h"
#include "gui/model/timeline_file.h"
#ifdef TENCACHE_WITH_EXECUTOR
#include "executor/live_socket.h"
#endif

namespace tencache::gui {

bool is_socket(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

#ifdef TENCACHE_WITH_EXECUTOR

namespace {

constexpr std::size_t most_spans = 300'000;
constexpr std::chrono::milliseconds between_snapshots{100};
constexpr std::chrono::milliseconds before_first_snapshot{300};  // a prediction that comes first is then there whole

}  // namespace

struct LiveRun::State {
  explicit State(const std::string& socket) : name(socket), client(socket), parser(socket, most_spans) {}

  std::string name;
  LiveClient client;
  TimelineParser parser;  // the thread's own
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::vector<RunPointer> runs;
  std::string error;
  bool over = false;
  std::thread thread;

  void show_what_came() {
    std::vector<RunPointer> indexed;
    for (Recording& recording : parser.snapshot(most_spans)) {
      indexed.push_back(std::make_shared<const Run>(std::move(recording)));
    }
    if (indexed.empty()) return;
    const std::lock_guard lock(mutex);
    runs = std::move(indexed);
    changed.notify_all();
  }

  void work() {
    std::uint64_t shown = 0;
    auto next = std::chrono::steady_clock::now() + before_first_snapshot;
    try {
      for (std::string_view text = client.read(); !text.empty(); text = client.read()) {
        parser.feed(text);
        if (client.more() && std::chrono::steady_clock::now() < next) continue;
        if (parser.spans_ever_seen() == shown) continue;
        std::this_thread::sleep_until(next);  // what comes now is the end of a piece: it is not left for the next one
        shown = parser.spans_ever_seen();
        show_what_came();
        next = std::chrono::steady_clock::now() + between_snapshots;
      }
      if (parser.spans_ever_seen() != shown) show_what_came();
      if (!parser.complete()) {
        const std::lock_guard lock(mutex);
        error = name + (parser.started() ? ": the run ended in the middle of what it sent; was it killed?"
                                         : ": sent nothing; the run is watched by as many as it takes, or over");
      }
    } catch (const Error& failure) {
      const std::lock_guard lock(mutex);
      error = failure.what();
    }
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  }
};

LiveRun::LiveRun(const std::string& socket) : state_(std::make_unique<State>(socket)) {
  state_->thread = std::thread([this] { state_->work(); });
}

LiveRun::~LiveRun() {
  state_->client.stop();
  state_->thread.join();
}

std::vector<RunPointer> LiveRun::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->runs, {});
}

bool LiveRun::over() const {
  const std::lock_guard lock(state_->mutex);
  return state_->over;
}

std::string LiveRun::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

void LiveRun::wait() const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->over || !state_->runs.empty(); });
}

#else

struct LiveRun::State {};
LiveRun::LiveRun(const std::string& socket) {
  throw Error(socket, 0, "watching a run needs the executor, which this build leaves out (TENCACHE_EXECUTOR)");
}
LiveRun::~LiveRun() = default;
std::vector<RunPointer> LiveRun::take() { return {}; }
bool LiveRun::over() const { return true; }
std::string LiveRun::error() const { return {}; }
void LiveRun::wait() const {}

#endif

}  // namespace tencache::gui
