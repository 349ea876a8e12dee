// A CUDA driver without a GPU, for tests of what stands on the driver. It is a fake: "device memory" is memory of this
// process, streams are threads with queues, kernels are the host's version of those in executor/cuda. What it keeps of
// a real driver is what our code must get right: mapping, access rights, order within a stream and none between
// streams, events, a limit of memory, a context for each thread, error codes, and that what is under way must not be
// unmapped.
//
// One at a time. What a real driver would answer with undefined behaviour is noted in `misuse`.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/units.h"
#include "executor/cuda/cuda_driver.h"

namespace tencache {

struct FakeCudaOptions {
  Bytes memory = 256 * MiB;
  Bytes granularity = 2 * MiB;
  int devices = 1;
  bool can_map = true;
  bool direct_memory = false;  // other devices reach mapped memory
};

struct FakeCudaCounts {
  std::uint64_t uploads = 0, downloads = 0, kernels = 0;
  std::uint64_t unpinned_copies = 0;  // from or to host memory that is not page-locked
  std::uint64_t creations = 0;        // cuMemCreate that succeeded
  // Of what exists now:
  std::size_t handles = 0, mappings = 0, reservations = 0, pinned = 0, allocations = 0, streams = 0, events = 0,
              modules = 0, contexts = 0;
  Bytes memory = 0;
};

struct FakeCudaRange {
  CUdeviceptr begin = 0;
  Bytes bytes = 0;
};

// Memory of the device, what is mapped of it, and page-locked memory of the host.
struct FakeCudaMemory {
  struct Handle {
    Bytes bytes = 0;
    int memory = -1;
    bool mapped = false, released = false;
  };
  struct Mapping {
    Bytes bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    bool accessible = false;
  };

  bool accessible(FakeCudaRange range) const;
  bool is_pinned(const void* host, Bytes bytes) const;
  // Frees what is released and mapped nowhere.
  void forget(CUmemGenericAllocationHandle handle);
  bool can_hold(Bytes more) const { return used + more <= options.memory; }
  bool whole(Bytes bytes) const { return bytes != 0 && bytes % options.granularity == 0; }
  void count(FakeCudaCounts& counts) const;
  void free_all();

  FakeCudaOptions options;
  Bytes used = 0;
  std::map<CUdeviceptr, Bytes> reservations{};
  std::map<CUmemGenericAllocationHandle, Handle> handles{};
  std::map<CUdeviceptr, Mapping> mappings{};
  std::map<CUdeviceptr, std::pair<Bytes, std::unique_ptr<std::uint64_t[]>>> allocations{};
  std::map<const std::byte*, Bytes> pinned{};
};

// Calls that are to fail.
class FakeCudaFailures {
 public:
  void add(const std::string& function, CUresult result, std::uint64_t calls) {
    failures_[function].push_back({result, calls});
  }
  // What the call answers; CUDA_SUCCESS: it does not fail.
  CUresult next(const std::string& function);

 private:
  struct Failure {
    CUresult result;
    std::uint64_t calls;
  };
  std::map<std::string, std::deque<Failure>> failures_;
};

class FakeCudaDriver {
 public:
  explicit FakeCudaDriver(FakeCudaOptions options = {});
  ~FakeCudaDriver();
  FakeCudaDriver(const FakeCudaDriver&) = delete;
  FakeCudaDriver& operator=(const FakeCudaDriver&) = delete;

  const CudaDriver& table() const { return table_; }

  // The call of that function after the next `calls` of them fails with `result`, once. A fault of a kernel
  // (CUDA_ERROR_LAUNCH_FAILED) breaks the context, as in a real driver: nothing that waits in a stream runs any more,
  // and every later call fails in the same way.
  void fail(const std::string& function, CUresult result, std::uint64_t calls = 0);
  // Streams finish the job that they run and begin no other until `go_on`.
  void hold();
  void go_on();
  // Returns when so many jobs wait in streams or run.
  void wait_for_jobs(std::size_t count);

  // Of the calling thread.
  static bool context_is_current();
  // The first misuse; empty if there was none.
  std::string misuse() const;
  using Counts = FakeCudaCounts;
  Counts counts() const;

 private:
  friend struct FakeCudaCalls;
  struct Job {
    std::vector<FakeCudaRange> touches;  // device memory
    std::function<void()> run;
  };
  struct Stream {
    std::deque<Job> jobs;  // the first one runs, if `running`
    bool running = false;
    bool closing = false;
    std::thread thread;

    bool touches(FakeCudaRange range) const;
    void drop_waiting() { jobs.resize(running ? 1 : 0); }
  };
  struct Event {
    std::uint64_t recorded = 0, reached = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  // All under the mutex.
  CUresult enter(const char* function, bool needs_context = true);
  CUresult refuse(const char* function, const std::string& what, CUresult result);
  bool busy(FakeCudaRange range) const;
  CUresult push(const char* function, CUstream stream, Job job);
  void serve(Stream& stream);

  FakeCudaOptions options_;
  CudaDriver table_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FakeCudaFailures failures_;
  std::string misuse_;
  bool held_ = false;
  CUresult broken_ = CUDA_SUCCESS;
  FakeCudaMemory memory_;
  std::map<CUstream, std::unique_ptr<Stream>> streams_;
  std::map<CUevent, Event> events_;
  std::map<CUmodule, std::string> modules_;
  std::uintptr_t next_ = 0x1000;
  std::size_t contexts_ = 0;
  Counts counts_;
};

}  // namespace tencache
