// The processes of a sweep under mpirun, one of which (rank 0) distributes the units and writes the results.
//
// MPI stands behind an interface, in a library that is loaded where the environment says that there are several
// processes: nothing else of the program knows of it, or waits for it to load.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "studies/sweep/sweep_row.h"

namespace tencache {

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  // Both from any thread; of several that wait, any one gets the message.
  virtual void send(int to, const std::string& bytes) = 0;
  // Waits for the next message and sets who sent it.
  virtual std::string receive(int& from) = 0;
};

// Null where the environment names no MPI job, or one of a single process. Throws Error where there are several and
// this build has no MPI.
std::unique_ptr<Ranks> open_ranks();

// Answers a task.
using Answer = std::function<std::string(const std::string& task)>;

// Rank 0: hands out work, in order, to whoever asks, its own threads among them. Whatever happens, the others are told
// to end when it goes.
class RankLeader {
 public:
  // `threads`: of each rank, the same of all.
  RankLeader(Ranks& ranks, std::size_t threads);
  ~RankLeader();
  RankLeader(const RankLeader&) = delete;
  RankLeader& operator=(const RankLeader&) = delete;

  // One task after the other is handed out; `take` gets the answers as they come, on any thread. `answer` is what this
  // rank's threads call. Throws Error if another rank failed, else what `take` or `answer` threw.
  void distribute(const std::vector<std::string>& tasks, const std::function<void(std::string&&)>& take,
                  const Answer& answer);

 private:
  void end(int rank);

  Ranks& ranks_;
  std::size_t threads_;
  std::size_t open_;  // threads of other ranks that were not told to end
};

// The other ranks: answers tasks on threads until there are no more. What `prepare` or the answer throws, rank 0 is
// told.
void follow(Ranks& ranks, const std::function<Answer()>& prepare, std::size_t threads);

// Rows as text and back, to the bit.
std::string encode_rows(const std::vector<SweepRow>& rows);
std::vector<SweepRow> decode_rows(const std::string& text);

}  // namespace tencache

// What the library with MPI offers: the ranks of this job, to be deleted by the caller.
extern "C" tencache::Ranks* tencache_open_ranks();
