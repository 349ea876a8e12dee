#include "studies/sweep/ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

// The first character of a message from the others; to them a task, or nothing: the end.
constexpr char ready = 'r', answered = 'a', failed = 'f';

// Set by Open MPI's mpirun, by PMIx (Slurm's `srun --mpi=pmix`), and by PMI (MPICH, Intel MPI).
bool under_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return true;
  }
  return false;
}

bool surely_alone() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* value = std::getenv(name); value != nullptr && std::string(value) == "1") return true;
  }
  return false;
}

std::string find_library() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place :
       {"libtencache-mpi.so", "../lib/tencache/libtencache-mpi.so", "../sim/sweep/libtencache-mpi.so"}) {
    const fs::path candidate = folder / place;
    if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal().string();
  }
  throw Error(
      "several processes were started, but this build has no MPI: install libopenmpi-dev and build again, or run "
      "parts with --shard i/n");
}

struct FieldToJson {
  template <typename T>
  nlohmann::json operator()(const T& value) const {
    return value;
  }
  template <typename T>
  nlohmann::json operator()(const std::optional<T>& value) const {
    return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
  }
};

struct FieldOfJson {
  template <typename T>
  void operator()(const nlohmann::json& json, T& value) const {
    value = json.get<T>();
  }
  template <typename T>
  void operator()(const nlohmann::json& json, std::optional<T>& value) const {
    value.reset();
    if (!json.is_null()) value = json.get<T>();
  }
};

}  // namespace

std::unique_ptr<Ranks> open_ranks() {
  if (!under_mpi() || surely_alone()) return nullptr;
  const std::string file = find_library();
  // Global: MPI loads parts of its own, which take its symbols from it.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw Error(std::string("cannot load MPI: ") + dlerror());
  using Open = Ranks* (*)();
  const auto open = reinterpret_cast<Open>(dlsym(library, "tencache_open_ranks"));
  if (open == nullptr) throw Error(file + " is no library of this version");
  std::unique_ptr<Ranks> ranks(open());
  if (ranks->count() == 1) return nullptr;
  return ranks;
}

RankLeader::RankLeader(Ranks& ranks, std::size_t threads)
    : ranks_(ranks), threads_(threads), open_(threads * static_cast<std::size_t>(ranks.count() - 1)) {}

RankLeader::~RankLeader() {
  try {
    while (open_ > 0) {
      int from = 0;
      ranks_.receive(from);
      end(from);
    }
  } catch (...) {  // nobody is left to tell
  }
}

void RankLeader::end(int rank) {
  ranks_.send(rank, "");
  --open_;
}

namespace {

// Tasks in order, to whichever thread asks.
class Queue {
 public:
  explicit Queue(const std::vector<std::string>& tasks) : tasks_(tasks) {}
  const std::string* take() {
    const std::lock_guard lock(mutex_);
    return next_ < tasks_.size() ? &tasks_[next_++] : nullptr;
  }
  // No other task is handed out; the first failure is kept.
  void stop(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    next_ = tasks_.size();
    if (!failure_) failure_ = std::move(failure);
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const std::vector<std::string>& tasks_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

void RankLeader::distribute(const std::vector<std::string>& tasks, const std::function<void(std::string&&)>& take,
                            const Answer& answer) {
  Queue queue(tasks);
  {
    std::vector<std::jthread> own;  // waited for at the block's end, whatever ends it
    for (std::size_t i = 0; i < threads_; ++i) {
      own.emplace_back([&] {
        try {
          while (const std::string* task = queue.take()) take(answer(*task));
        } catch (...) {
          queue.stop(std::current_exception());
        }
      });
    }
    try {
      while (open_ > 0) {
        int from = 0;
        std::string message = ranks_.receive(from);
        const char kind = message.empty() ? failed : message.front();
        message.erase(0, 1);
        if (kind == failed) {
          end(from);
          throw Error("rank " + std::to_string(from) + ": " + message);
        }
        // The next task first: the answer is taken while it runs.
        const std::string* task = queue.take();
        task != nullptr ? ranks_.send(from, *task) : end(from);
        if (kind == answered) take(std::move(message));
      }
    } catch (...) {
      queue.stop(std::current_exception());
    }
  }
  queue.rethrow();
}

void follow(Ranks& ranks, const std::function<Answer()>& prepare, std::size_t threads) {
  std::string first(1, ready);
  Answer answer;
  try {
    answer = prepare();
  } catch (const std::exception& error) {
    first = failed + std::string(error.what());
  }
  const auto work = [&](std::string message) {
    while (true) {
      ranks.send(0, message);
      int from = 0;
      const std::string task = ranks.receive(from);
      if (task.empty()) return;
      try {
        message = answered + answer(task);
      } catch (const std::exception& error) {
        message = failed + std::string(error.what());
      }
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work, first);
  work(first);
}

std::string encode_rows(const std::vector<SweepRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const SweepRow& row : rows) {
    nlohmann::json fields = nlohmann::json::array();
    for_each_field(row, [&](const char*, const auto& field) { fields.push_back(FieldToJson{}(field)); });
    list.push_back(std::move(fields));
  }
  return list.dump();
}

std::vector<SweepRow> decode_rows(const std::string& text) {
  std::vector<SweepRow> rows;
  for (const nlohmann::json& fields : nlohmann::json::parse(text)) {
    std::size_t at = 0;
    for_each_field(rows.emplace_back(), [&](const char*, auto& field) { FieldOfJson{}(fields.at(at++), field); });
  }
  return rows;
}

}  // namespace tencache
