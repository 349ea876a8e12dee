// What the table's functions share.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/live/rules/access_log.h"
#include "tests/live/rules/device_engines.h"
#include "tests/live/rules/device_memory.h"
#include "tests/live/rules/device_queue.h"
#include "tests/live/rules/failure_plan.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache::rules {

// In a loop (cuStreamSynchronize of a context with CU_CTX_SCHED_AUTO and cores to spare), or asleep until an interrupt
// (events with CU_EVENT_BLOCKING_SYNC).
enum class HowToWait : std::uint8_t { asking, asleep };

// What an event has captured.
struct CapturedWork {
  std::vector<Moment> works;  // the stream's last one, if it has had any, and what it waits for behind that
  VectorClock known;
  Nanoseconds recorded_ns = 0;  // by the host
  bool timed = false, recorded = false;
  HowToWait how = HowToWait::asking;
};

// A stream that records a graph.
struct Capture {
  Line by = 0;  // the thread that began it
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

struct RulesState {
  explicit RulesState(RulesOptions made);

  void let_the_device_run();
  // The calling thread waits for it, and for all that is known with it.
  CUresult wait(std::unique_lock<std::mutex>& lock, const std::vector<Moment>& works, const VectorClock& known,
                HowToWait how);
  void pass_time(const std::vector<Moment>& works, HowToWait how);
  // All that the stream was given and waits for.
  std::vector<Moment> works_of(Line line) const;
  bool over(const std::vector<Moment>& works) const;
  void job_over(const DeviceJob& job) const;
  // The calling thread may not do what is potentially unsafe beside a capture.
  bool capture_prohibits();
  void break_context(CUresult result);

  RulesOptions options;
  std::unique_ptr<HostOrder> own_order;
  HostOrder& host;
  std::mutex mutex;
  std::mutex next_to_call;  // locked before it by who calls: a thread that calls again and again leaves turns to others
  std::condition_variable changed;
  FailurePlan failures;
  DeviceMemory memory;
  Bytes budget = unlimited;
  DeviceQueue queue;
  std::optional<DeviceEngines> engines;  // with a model
  AccessLog log;
  Adversary adversary;
  std::map<CUstream, Line> streams;  // with the legacy stream, whose handle is null
  std::map<CUevent, CapturedWork> events;
  std::map<CUmodule, std::string> modules;
  std::map<CUstream, Capture> captures;
  std::map<Line, CUstreamCaptureMode> capture_modes;  // of threads; GLOBAL at first
  std::string violation;
  CUresult broken = CUDA_SUCCESS;
  bool held = false;
  std::uintptr_t last_object = 0x1000;
  RulesCounts counts;

  static RulesState* active;
};

extern const CUcontext the_context;

// A call of the driver: what each of its functions does first, under the lock that it holds.
class Call {
 public:
  enum class Needs : std::uint8_t { nothing, context };
  explicit Call(const char* function, Needs needs = Needs::context);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Not success: the answer.
  CUresult failed() const { return failed_; }
  RulesState& state() const { return state_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

  // Notes that a rule is broken, and returns the answer.
  CUresult breaks(const std::string& rule, CUresult answer);
  // The calling thread changes memory now.
  void change(const Range& range);
  // Gives a job to a stream. `job.accesses` are checked.
  CUresult submit(CUstream stream, DeviceJob job);
  // Adds where the device's bytes lie; false if they are not accessible.
  bool touch_device(DeviceJob& job, CUdeviceptr address, Bytes bytes, bool write) const;

 private:
  CallStack caller() const;
  void judge(const Access& access, Moment moment, const VectorClock& known);

  const char* function_;
  RulesState& state_;
  std::unique_lock<std::mutex> lock_;
  CUresult failed_ = CUDA_SUCCESS;
  Nanoseconds begin_ns_ = 0;
};

// Return from a function of the table: a call that fails; a rule that is broken.
#define RULES_CALL(...)          \
  Call call(__VA_ARGS__);        \
  RulesState& at = call.state(); \
  (void)at;                      \
  if (call.failed() != CUDA_SUCCESS) return call.failed()
#define RULE(condition, sentence, answer) \
  if (!(condition)) return call.breaks(sentence, answer)

void add_device_rules(CudaDriver& table);
void add_memory_rules(CudaDriver& table);
void add_work_rules(CudaDriver& table);

}  // namespace tencache::rules
