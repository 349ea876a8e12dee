// studies/sweep/ranks.h over MPI, as a library of its own.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <time.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "studies/sweep/ranks.h"

namespace {

constexpr int tag = 1;
constexpr long first_pause_ns = 20'000, longest_pause_ns = 1'000'000;

class MpiRanks final : public tencache::Ranks {
 public:
  MpiRanks() {
    int level = 0;  // threads of a rank ask by turns
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    if (level < MPI_THREAD_SERIALIZED) {
      std::fputs("tencache: this MPI takes calls of one thread only; use another, or --shard i/n\n", stderr);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &count_);
  }
  ~MpiRanks() override { MPI_Finalize(); }

  int rank() const override { return rank_; }
  int count() const override { return count_; }

  void send(int to, const std::string& bytes) override {
    const std::lock_guard lock(mutex_);
    MPI_Send(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD);
  }

  // MPI waits by asking without a pause; a waiting rank would take a core from one that works.
  std::string receive(int& from) override {
    long pause_ns = first_pause_ns;
    std::string message;
    while (!receive_if_there(message, from)) {
      const timespec pause{.tv_sec = 0, .tv_nsec = pause_ns};
      nanosleep(&pause, nullptr);
      if (pause_ns < longest_pause_ns) pause_ns *= 2;
    }
    return message;
  }

 private:
  bool receive_if_there(std::string& message, int& from) {
    const std::lock_guard lock(mutex_);
    MPI_Status status;
    int there = 0, bytes = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &status);
    if (there == 0) return false;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    message.resize(static_cast<std::size_t>(bytes));
    MPI_Recv(message.data(), bytes, MPI_BYTE, status.MPI_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    from = status.MPI_SOURCE;
    return true;
  }

  std::mutex mutex_;  // calls of MPI, one at a time
  int rank_ = 0, count_ = 1;
};

}  // namespace

extern "C" tencache::Ranks* tencache_open_ranks() { return new MpiRanks; }
