// A live program on the engine: the memory of a training program that this process runs itself, paged between tiers.
//
// The program announces what it does (ops with the tensors that they use, allocations, modules, steps), the engine
// moves tensors, HostMachine does the moving. The GPU tier is a capped arena of ordinary memory, or an accelerator's
// memory; a storage's address in it stays (but for tests: LiveOptions::relocates), its pages come and go. This class
// knows nothing of LibTorch: interception.h announces LibTorch's ops to it.
//
// On an accelerator ops go on when the program believes them over. Before anything else happens to memory that they may
// touch (an op's end reaches the engine, a free is heard) the runtime waits for them (LiveOptions::fence). So an op is
// over when its device is, and its duration is the device's. Where the machine's completions promise order (RunAhead,
// LiveOptions::stream) nobody waits: an op is over when its launches have returned, and the device is told what comes
// after what (program_streams.h). Only code that is no op (pin, unpin) still waits.
//
// Sleep: while all that the program has fits into the GPU tier its ops need not be announced (live_sleep.h). Who
// announces them is told so (set_sleep_listener).
//
// Steps: the program calls `iteration_boundary` once before each step. The first step warms up, the second is recorded,
// from the third on the policy knows the schedule. It is a hint that is checked op by op (step_follower.h).
// Once the schedule is known the policy has been asked, with the whole step as a prediction asks it, where tasks run
// and in which order; until then it is asked about each task alone.
//
// Threading: every function may be called from any thread, but for constructor and destructor. Ops run one at a time:
// the outermost op of a second thread waits for that of the first. Copies run on the machine's threads; a thread of
// this class feeds their completions to the engine. Errors: OutOfMemory when an op or an allocation cannot fit; Error
// when a copy fails for good. Both leave everything consistent, so that the program may catch them and go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/engine.h"
#include "core/error.h"
#include "core/thread_annotations.h"
#include "executor/host_loader.h"
#include "executor/host_machine.h"
#include "executor/live/device_fence.h"
#include "executor/live/engine_feed.h"
#include "executor/live/live_abi.h"
#include "executor/live/live_sleep.h"
#include "executor/live/live_task.h"
#include "executor/live/live_tasks.h"
#include "executor/live/live_tensors.h"
#include "executor/live/occupancy_labels.h"
#include "executor/live/op_gate.h"
#include "executor/live/program_streams.h"
#include "executor/live/released_tensors.h"
#include "executor/live/step_follower.h"
#include "executor/live/touch_server.h"

namespace tencache {

struct LiveOptions {
  EngineOptions engine;        // timeline (whole at on_iteration and after the end), log, progress
  HostMachineOptions machine;  // pacing, files
  HostLoaderOptions loader;
  bool settle = false;  // for tests: an op begins only when no copy is under way
  // The program may sleep, where nothing keeps it awake: an accelerator, a timeline, a log, no raw access
  // (HostMachineOptions; faults are served). Its ops and allocations come from one thread at a time then: where there
  // are several, each waits for the others.
  bool sleep = false;
  // With an accelerator (machine.accelerator): waits for all that the program has started there, on the thread that
  // announced it or another one. Throws Error when the device failed.
  std::function<void()> fence{};
  // With an accelerator: the calling thread's current stream, on which its ops run. Without it the runtime waits for
  // each op, whatever the machine's `run_ahead` says.
  std::function<DeviceStream()> stream{};
  // For tests: the C functions that programs call, given the runtime's own, to which they go on.
  std::function<tencache_live(const tencache_live&)> interpose{};
  // For tests, without an accelerator: before each op all that it uses is moved to other addresses, but for what is
  // exposed, pinned or lent, and for tensors of a size for which this is false. Nobody sleeps, and ops begin as with
  // `settle`.
  std::function<bool(Bytes bytes)> relocates{};
};

// Until now.
struct LiveFigures {
  Counters counters;
  // How often the program left the recorded order, and the first time in words ("step 5: op aten::relu where …").
  std::uint64_t deviations = 0;
  std::string first_deviation;
  // Of steps since the schedule is known: ops, and those of them that the policy knew to come.
  std::uint64_t ops = 0, ops_on_schedule = 0;
  Bytes live_bytes = 0, peak_live_bytes = 0;  // of storages and owned tensors, in pages of the GPU tier
  // The largest working set of one op that has run (what it uses and allocates; of an op in parts, its largest part),
  // and the op's name: the least GPU memory.
  Bytes largest_op_bytes = 0;
  std::string largest_op;
  std::uint64_t touches = 0;  // accesses of code outside ops that faulted
  std::uint64_t exposed = 0;  // tensors whose address got known outside
  std::uint64_t steps_asleep = 0;
  FaultCounts faults;  // injected
};

class LiveRuntime;
// Its functions as C, before it is made, too.
tencache_live live_abi(LiveRuntime& runtime, const MachineSpec& spec, bool on_accelerator, bool moves);

class LiveRuntime {
 public:
  // The policy outlives the runtime. Throws Error when the machine or the policy's layout does not suit.
  LiveRuntime(const MachineSpec& spec, Policy& policy, LiveOptions options = {});
  // Waits for what is under way. Storages that still live are lost: a message on stderr says how many and how many
  // bytes; touching them faults from then on, letting go of them does not.
  ~LiveRuntime();
  LiveRuntime(const LiveRuntime&) = delete;
  LiveRuntime& operator=(const LiveRuntime&) = delete;

  // ---- What the program announces.
  // A step begins (and the one before is over). Call it before each step, the first one included.
  void iteration_boundary();
  // Of the ops from here on. Phases are for recordings and for the optimizer's tasks.
  void set_phase(Phase phase);
  // Modules nest. In backward they are announced too, in the order in which backward runs them.
  void module_begin(std::string_view name);
  void module_end();
  // The op before has chosen experts of the block, a module after which their weights are named ("block.experts.3.up",
  // core/reveal.h): these ("experts.3"), in the order in which they will run. It is their gate: the policy, which was
  // not shown what the recorded step chose, hears of it.
  void chose(std::string_view block, std::span<const std::string> experts);
  // What a tensor is: for policies, and as its name in recordings. Until then it is an activation.
  void mark(TensorId tensor, Role role, std::string_view name);

  // While on, ops belong to no step (a checkpoint between two of them): they are not recorded, and the policy knows no
  // schedule until the next step begins.
  void set_aside(bool on);

  // ---- Tasks. Not with an accelerator, whose memory the host cannot touch.
  // Runs all of them; returns when those on the GPU's lane are done. Those on the CPU's go on beside the program, whose
  // ops wait for the ones that use the same tensors (unless both only read them); tensors that are freed meanwhile live
  // until the tasks that use them are done. All are done on return where the policy has the step block the program
  // (Layout::blocking_step), and until the schedule is known.
  // Code that is no op sees what the tasks wrote: those that use an exposed tensor are done on return, too.
  // Tasks that touch the same tensor (one of them writing it) run in the order given, others may overlap, and
  // reorderable ones that follow each other run in the policy's order. Tasks of the same name and sub-group run where
  // the first of the recorded step does. Not from inside an op. Rethrows what a body threw; of one that went on, the
  // next call that waits for tasks, the next op, or the next step does.
  void run_tasks(std::vector<LiveTask> tasks);
  // Waits for those that went on.
  void finish_tasks();

  // ---- Raw access. Between `pin` and `unpin` the tensors are in the GPU tier and stay there, so that their addresses
  // may be read and written by code that is no op. `written`: their content may change; copies elsewhere become stale
  // now, and none is made. Pinned bytes are missing for ops: out of memory comes earlier. Use RAII: PinnedTensors in
  // interception.h.
  void pin(std::span<const TensorId> tensors, bool written);
  void unpin(std::span<const TensorId> tensors, bool written);
  // Tensors that the calling thread's op uses stay as if pinned when it ends: threads that it started go on reading
  // and writing them. `comes_back`: some thread will call `take_back` whatever this one does, so that calls which lack
  // memory wait for it. `take_back` never waits, and may be called from any thread.
  void lend(std::span<const Use> uses, bool comes_back);
  void take_back(std::span<const Use> uses, bool comes_back) noexcept;
  // With raw access (HostMachineOptions): code that is no op touches the address, which faulted. Brings the tensor in
  // and keeps it there until the next call of any function but this one. False: the address is no tensor's. Counts as
  // no op of the step; waits for tasks as ops do. Throws OutOfMemory as ops do, and Error inside an op of this thread
  // that does not use the tensor.
  bool touch(const void* address, bool written);
  // The address is known outside: writes that no op announces are noticed from now on. Waits for tasks that use it. On
  // an accelerator the tensor is brought in, and stays where it then is as long as it lives: throws OutOfMemory as ops
  // do, and Error inside an op of this thread that does not use the tensor.
  void expose(TensorId tensor);
  // The same for all tensors, and for those that are still to come.
  void expose_all();
  // As HostMachine::address; in tier 0 the storage's data pointer. Where tensors move: while it is pinned, lent, kept
  // or exposed, or the running op uses it.
  std::byte* address(TensorId tensor, TierId tier = 0) const { return feed_.machine().address(tensor, tier); }
  Bytes bytes(TensorId tensor) const;

  // ---- Figures.
  // The second step as a trace, or a later one: `record_next` asks for the coming step to be recorded again (it becomes
  // the schedule, too). Empty until the step is over.
  const Trace& recorded() const;
  bool has_recorded() const;
  // The recorded step with its tasks where the policy places them, in the policy's order: what timelines speak of.
  const Program& program() const;
  void record_next();
  RunResult result() const;
  LiveFigures figures() const;
  const MachineSpec& spec() const { return spec_; }  // with real pages; its log replays on this one
  HostMachine& machine() { return feed_.machine(); }

  // ---- Ops: for interception.h.
  struct Storage {
    TensorId tensor = none;
    std::byte* address = nullptr;
  };
  // Waits until no other thread's op runs and all that the op uses is there. When it throws, the op has not begun.
  // `part_bytes`: the op would run as well in parts, of which the largest uses so much; 0: it would not.
  void begin_op(NameId name, std::span<const Use> uses, Bytes part_bytes = 0);
  void begin_op(std::string_view name, std::span<const Use> uses, Bytes part_bytes = 0) {
    begin_op(name_id(name), uses, part_bytes);
  }
  // The number of an op's name, for as long as the runtime.
  NameId name_id(std::string_view text);
  // `linger`: what the op has allocated is about to be filled by code that is no op. To the engine the op goes on,
  // until the next call of any function of this class.
  void end_op(bool linger = false);
  // A new storage with room in the GPU tier. Inside the calling thread's op (`inside_op`) its room is pinned until that
  // op ends; outside it is an op by itself, which lingers. `bytes` > 0. `kept`: `keep`, too.
  Storage allocate(Bytes bytes, bool inside_op, bool kept = false);
  // A new storage whose content lies in a file, which must not change while the storage lives: the
  // file is its copy in a tier of files, and is read when the content is first needed. Without address where no tier of
  // files is, or none with room for it, and with an accelerator.
  Storage store_in_file(Bytes bytes, SourceFile file);
  // ---- Loading, with an accelerator: content from pageable memory, which nobody changes meanwhile.
  // To an address in its memory, of a tensor that the calling thread's op writes, on the program's stream. The source
  // is not needed any more when it returns.
  void upload(std::byte* device, const std::byte* from, Bytes bytes, DeviceStream stream);
  // A new storage with that content in CPU memory, if others would have to leave the GPU tier for it. Tensor `none`
  // where there is room, or none in CPU memory, or steps have begun, whose ops have to be the same each time: it is to
  // be allocated, and uploaded to. No op of the calling thread runs.
  Storage store(Bytes bytes, const std::byte* from);
  // Lets go of a storage. From any thread, at any time, never waits: the engine hears of it with the next call.
  void release(TensorId tensor) noexcept { released_.add(tensor); }
  // What the calling thread's op has allocated stays in the GPU tier until it is let go of: no later op will say that
  // it uses it.
  void keep(std::span<const TensorId> tensors);
  // One will, after all.
  void unkeep(std::span<const TensorId> tensors);
  // On an accelerator where tensors move: those that were evicted or moved since the last call, at most `most`, with
  // their address if it is constant now (`address`), else the guard. On the thread whose op has begun. Empty elsewhere.
  std::vector<Storage> take_left(std::size_t most);
  // An address that nobody may access, of an accelerator where tensors move; elsewhere null.
  std::byte* guard() const { return feed_.machine().guard(); }
  // Something went wrong where nothing may be thrown: the next call throws it, and so does every other.
  void fail(std::exception_ptr failure) noexcept;
  // The calling thread's op, which was said to read the tensors only, has written them (found by an audit).
  void announce_write(std::span<const TensorId> tensors);
  void set_sleep_listener(LiveSleep::Listener listener);
  bool asleep() const;
  // No sleep from now on: code that is no op uses tensors beside the program, or somebody has to see the ops.
  void stay_awake();
  // Called when the runtime ends, before anything else.
  void set_close_listener(std::function<void()> listener) { close_listener_ = std::move(listener); }
  // The same and more as C, for as long as the runtime lives.
  const tencache_live& abi() const { return abi_; }

 private:
  EngineOptions engine_options();
  bool may_sleep() const;
  // First thing of calls that go on while the program sleeps; others begin with OpGate::enter.
  void enter_asleep() TENCACHE_REQUIRES(feed_.mutex);
  void wake_up() TENCACHE_REQUIRES(feed_.mutex);
  void hear_of_frees() TENCACHE_REQUIRES(feed_.mutex);
  void free_unused() TENCACHE_REQUIRES(feed_.mutex);
  void completion_handled(std::span<Span> added) TENCACHE_REQUIRES(feed_.mutex);
  void tell_profile(Nanoseconds now) TENCACHE_REQUIRES(feed_.mutex);

  TensorId create(Bytes bytes, Nanoseconds now) TENCACHE_REQUIRES(feed_.mutex);
  void destroy(TensorId tensor, Nanoseconds now) TENCACHE_REQUIRES(feed_.mutex);
  void relocate(std::span<const Use> uses) TENCACHE_REQUIRES(feed_.mutex);
  void start_op(MutexLock& lock, NameId name, std::span<const Use> uses, Bytes part_bytes = 0)
      TENCACHE_REQUIRES(feed_.mutex);
  TensorId allocate_in_op(MutexLock& lock, Bytes bytes) TENCACHE_REQUIRES(feed_.mutex);
  // Without address: the program has to be awake.
  Storage allocate_asleep(Bytes bytes) TENCACHE_REQUIRES(feed_.mutex);

  const MachineSpec spec_;
  const LiveOptions options_;
  const tencache_live abi_;
  std::function<void()> close_listener_;
  ReleasedTensors released_;
  std::vector<TensorId> heard_ TENCACHE_GUARDED_BY(feed_.mutex);  // that free_unused is about
  DeviceFence device_;
  ProgramStreams streams_ TENCACHE_GUARDED_BY(feed_.mutex);
  bool ordered_ = false;  // completions promise order; never changes

  OccupancyLabels labels_ TENCACHE_GUARDED_BY(feed_.mutex);
  StepFollower follower_ TENCACHE_GUARDED_BY(feed_.mutex);
  bool stepping_ TENCACHE_GUARDED_BY(feed_.mutex) = false;  // an iteration has begun
  LiveTensors tensors_ TENCACHE_GUARDED_BY(feed_.mutex);
  std::unique_ptr<const Program> profile_ TENCACHE_GUARDED_BY(feed_.mutex);  // the engine's
  OpGate gate_ TENCACHE_GUARDED_BY(feed_.mutex);
  LiveTasks tasks_ TENCACHE_GUARDED_BY(feed_.mutex);
  TouchServer touch_ TENCACHE_GUARDED_BY(feed_.mutex);
  LiveSleep sleep_ TENCACHE_GUARDED_BY(feed_.mutex);
  EngineFeed feed_;                   // goes first but for the loader: its thread uses all of the above
  std::optional<HostLoader> loader_;  // with an accelerator; copies to memory of the feed's machine
};

// What the calling thread's last call through the C functions failed with, as the exception that it was.
[[noreturn]] void rethrow_live_failure();

// What runs while it lives belongs to no step. The destructor keeps a failure of the run to itself: the runtime's next
// call throws it again.
class AsideScope {
 public:
  explicit AsideScope(LiveRuntime& runtime) : runtime_(runtime) { runtime_.set_aside(true); }
  ~AsideScope() {
    try {
      runtime_.set_aside(false);
    } catch (...) {
    }
  }
  AsideScope(const AsideScope&) = delete;
  AsideScope& operator=(const AsideScope&) = delete;

 private:
  LiveRuntime& runtime_;
};

// Announces a module for as long as it lives. Failures: as AsideScope.
class ModuleScope {
 public:
  ModuleScope(LiveRuntime& runtime, std::string_view name) : runtime_(runtime) { runtime_.module_begin(name); }
  ~ModuleScope() {
    try {
      runtime_.module_end();
    } catch (...) {
    }
  }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  LiveRuntime& runtime_;
};

}  // namespace tencache
