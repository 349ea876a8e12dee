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

#include "sim/sweep/sweep_row.h"

namespace tencache {

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  virtual void send(int to, const std::string& bytes) = 0;
  // Waits for the next message and sets who sent it.
  virtual std::string receive(int& from) = 0;
};

// Null where the environment names no MPI job, or one of a single process. Throws Error where there are several and
// this build has no MPI.
std::unique_ptr<Ranks> open_ranks();

// Rank 0: hands out work, in order, to whoever asks. Whatever happens, the others are told to end when it goes.
class RankLeader {
 public:
  explicit RankLeader(Ranks& ranks);
  ~RankLeader();
  RankLeader(const RankLeader&) = delete;
  RankLeader& operator=(const RankLeader&) = delete;

  // One task after the other is sent; `take` gets the answers as they come. Throws Error if another rank failed.
  void distribute(const std::vector<std::string>& tasks, const std::function<void(std::string&&)>& take);

 private:
  void end(int rank);

  Ranks& ranks_;
  std::vector<bool> ended_;  // by rank
};

// The other ranks: answers tasks until there are no more. What `prepare` or the answer throws, rank 0 is told.
using Answer = std::function<std::string(const std::string& task)>;
void follow(Ranks& ranks, const std::function<Answer()>& prepare);

// Rows as text and back, to the bit.
std::string encode_rows(const std::vector<SweepRow>& rows);
std::vector<SweepRow> decode_rows(const std::string& text);

}  // namespace tencache

// What the library with MPI offers: the ranks of this job, to be deleted by the caller.
extern "C" tencache::Ranks* tencache_open_ranks();
