// A CUDA driver without a GPU, made of rules: what cuda.h and NVIDIA's documentation say, each with its sentence beside
// it (device_rules.cpp, memory_rules.cpp, work_rules.cpp). Every argument is checked. Memory is this process's, jobs of
// the device run inside calls of the driver, on the thread that calls, whenever the adversary says so and the rules
// allow it. So the driver starts no thread and needs no time.
//
// Judges: happens-before (access_log.h), an adversary (adversary.h), poison (device_memory.h), and bounds (`budget`,
// `counts().implied_waits`). What a rule or a judge finds is in `violation`. What happens-before sees of the host is
// what the driver is called with, and what the caller's HostOrder knows; the host's own loads and stores are judged by
// their values, under all strategies.
//
// One driver at a time. Any thread may call.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/units.h"
#include "executor/cuda/cuda_driver.h"
#include "tests/live/rules/adversary.h"
#include "tests/live/rules/device_job.h"
#include "tests/live/rules/host_order.h"
#include "tests/live/rules/model_gpu.h"

namespace tencache::rules {

// Hears when things happened, on a driver that keeps time.
class RulesWatch {
 public:
  virtual ~RulesWatch() = default;
  virtual void job_over(const DeviceJob& job) = 0;
  // `line`: the thread of the host that called.
  virtual void returned(const char* function, Line line, Nanoseconds begin_ns, Nanoseconds end_ns) = 0;
};

struct RulesOptions {
  Bytes memory = 256 * MiB;
  Bytes granularity = 2 * MiB;
  int devices = 1;
  bool can_map = true;
  bool direct_memory = false;  // other devices reach mapped memory
  Strategy strategy = Strategy::random;
  std::uint64_t seed = 1;
  JobCost cost = {};
  HostOrder* host = nullptr;  // outlives the driver; null: an ObservedOrder
  // Time passes as it says, in place of strategy and cost. `host` has a clock. Both outlive the driver.
  const ModelGpu* model = nullptr;
  RulesWatch* watch = nullptr;
  // Without content memory is books only: nothing can be touched, and copies and fills move nothing.
  bool content = true;
  bool call_stacks = true;  // in reports; only where the code under test keeps frame pointers on coroutines' stacks
};

struct RulesCounts {
  std::uint64_t calls = 0;
  std::uint64_t uploads = 0, downloads = 0, kernels = 0;
  std::uint64_t moves = 0;            // copies within the device
  std::uint64_t unpinned_copies = 0;  // from or to host memory that is not page-locked
  std::uint64_t creations = 0;        // cuMemCreate that succeeded
  std::uint64_t waits = 0;            // of the host or of a stream, for a stream or an event
  std::uint64_t implied_waits = 0;    // of them those after which the waiter knew what it had known before
  std::uint64_t stream_waits = 0, implied_stream_waits = 0;  // of them those of streams
  // Of what exists now:
  std::size_t handles = 0, mappings = 0, reservations = 0, pinned = 0, allocations = 0, streams = 0, events = 0,
              modules = 0, contexts = 0;
  Bytes memory = 0;
};

struct RulesState;

class RulesDriver {
 public:
  explicit RulesDriver(RulesOptions options = {});
  ~RulesDriver();
  RulesDriver(const RulesDriver&) = delete;
  RulesDriver& operator=(const RulesDriver&) = delete;

  const CudaDriver& table() const { return table_; }

  // A kernel of the program that is not of executor/cuda: it accesses these addresses of the device. Other threads go
  // on meanwhile as in any call.
  struct ProgramAccess {
    CUdeviceptr begin = 0;
    Bytes bytes = 0;
    bool write = false;
  };
  CUresult launch(CUstream stream, DeviceJob job, std::span<const ProgramAccess> accesses);

  // The call of that function after the next `calls` of them fails with `result`, once. A fault of a kernel
  // (CUDA_ERROR_LAUNCH_FAILED) breaks the context: nothing that waits in a stream runs any more, and every later call
  // fails in the same way.
  void fail(const std::string& function, CUresult result, std::uint64_t calls = 0);
  // The most physical memory that may be created (cuMemCreate) at any time.
  void set_budget(Bytes bytes);
  // The program leaked some of its memory: nobody gets its addresses again.
  void keep_addresses();
  // The device does nothing until `go_on`, and who waits for it waits.
  void hold();
  void go_on();
  // Returns when so many jobs are under way.
  void wait_for_jobs(std::size_t count);

  // Of the calling thread.
  bool context_is_current() const;
  // The first: a broken rule, with the call stack, or two accesses without order, with both. Empty if there was none.
  std::string violation() const;
  // Empty, or what was not given back, or the violation.
  std::string leftovers() const;
  RulesCounts counts() const;

 private:
  std::unique_ptr<RulesState> state_;
  CudaDriver table_;
};

}  // namespace tencache::rules
