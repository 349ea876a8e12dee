// What ranks of one program share while each runs live on the same host: its CPU memory, and the disks and links that
// the machine says are shared (Resource::shared).
//
// Ranks meet in a file of shared memory, /dev/shm/tencache-USER-…, named by their run. In it each has an entry that it
// alone writes: how much CPU memory it holds, and over which links it copies right now. A rank holds its part of the
// memory from the start. What another one gives back it may take, in steps. A rank with too little says so, and those
// with more than they use give back between two of their program's steps. Paced copies of all ranks share resources
// max-min fairly (core/bandwidth.h), as in a simulation.
//
// Locks of the file's bytes show who lives, and who changes the sum of the memory. The kernel releases them when their
// process ends, however it ends, so a rank that was killed holds nothing. The file loses its name when all have come,
// and when the last one goes. If all ranks are killed before that, the next run removes it.
//
// Threading: `rate`, and Copying, from any thread, everything else from one at a time. A process has one for a run.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bandwidth.h"
#include "core/machine_spec.h"
#include "core/thread_annotations.h"
#include "core/units.h"
#include "executor/file_descriptor.h"

namespace tencache {

inline constexpr std::size_t most_ranks_of_a_host = 64;

// One rank's machine where all ranks copy alike: it has its part of each shared resource, and links are no faster than
// that. For policies and predictions.
MachineSpec part_of_host(const MachineSpec& host, std::size_t rank);

class HostShare {
 public:
  // `host`: with as many ranks as run on it. `cpu_memory`: in bytes, this rank's part of it, as large as every other's;
  // 0: none is shared. Throws Error where the file is another user's, another version's, or that of a run with other
  // ranks, memory or links, and where this rank runs already.
  HostShare(const std::string& run, std::size_t rank, const MachineSpec& host, Bytes cpu_memory);
  // Gives everything back.
  ~HostShare();
  HostShare(const HostShare&) = delete;
  HostShare& operator=(const HostShare&) = delete;

  // Where ranks of that run meet.
  static std::string file_of(const std::string& run);

  std::size_t ranks() const { return ranks_; }

  // ---- CPU memory.
  Bytes held() const;
  Bytes most_held() const { return most_held_; }
  Bytes pool() const { return ranks() * part_; }  // of all ranks
  Bytes step() const { return step_; }
  // A step more, or what is left. False if nothing is: others hear of it. While that is so, the dead are looked for
  // once in a while only.
  bool take_more();
  void has_enough();  // others hear of it
  // Holds so much from now on, which is less.
  void give_back_to(Bytes bytes);
  // Another rank has too little.
  bool wanted() const;

  // ---- Copies. Of links that share something with other ranks.
  bool shares(LinkId link) const { return !bandwidth_.alone(flow(rank_, link)); }
  std::vector<std::string> shared_links() const;
  // While it lives this rank copies over the link; of no share: nothing.
  class Copying {
   public:
    Copying(HostShare* share, LinkId link) : share_(share), link_(link) {
      if (share_ != nullptr) share_->begin(link_);
    }
    ~Copying() {
      if (share_ != nullptr) share_->end(link_);
    }
    Copying(const Copying&) = delete;
    Copying& operator=(const Copying&) = delete;

   private:
    HostShare* share_;
    LinkId link_;
  };
  // The link's bandwidth now, beside what all ranks copy; while this one does.
  BytesPerSecond rate(LinkId link);

 private:
  enum class State : std::uint32_t { absent, joined, left };  // absent: not come yet
  struct Entry;
  struct Segment;
  class Door;

  void begin(LinkId link);
  void end(LinkId link);
  void open(const std::string& run, std::uint64_t links_hash);
  void join(const std::string& run, bool fresh, std::uint64_t links_hash);
  bool lives(std::size_t rank) const;
  Bytes left(bool buries = true) const;
  std::uint32_t flow(std::size_t rank, LinkId link) const { return static_cast<std::uint32_t>(rank * links_ + link); }

  std::string name_;  // of the file, as shm_open has it
  std::size_t rank_, ranks_, links_;
  std::vector<std::string> link_names_;
  Bytes part_, step_, most_held_ = 0;
  std::uint32_t refused_ = 0;  // in a row
  int process_;
  FileDescriptor file_;
  Segment* segment_ = nullptr;
  Mutex mutex_;
  Bandwidth bandwidth_;
  std::vector<BytesPerSecond> caps_ TENCACHE_GUARDED_BY(mutex_);  // by flow
  std::vector<std::uint32_t> masks_ TENCACHE_GUARDED_BY(mutex_);  // by rank: links that `bandwidth_` knows to run
};

}  // namespace tencache
