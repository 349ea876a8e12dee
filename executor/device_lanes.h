// What a HostMachine gives to an accelerator's streams where its completions promise order (Completes, core/machine.h):
// copies between GPU and CPU memory, each link a stream; moves within the GPU's memory; ops, on streams of the program.
// The rules are those of sim/ordered_machine.h, its twin.
//
// A copy is *offered* until it is handed over to its stream, which is while fewer than RunAhead::copies are not over
// there, or less data than flows in RunAhead::copies_ns. Until then it can be cancelled. Handed over it completes for
// the engine, and waits on the device for works that touched the same bytes (device_order.h). A move goes to the stream
// of the copy that needs the place, or to that of the program if it has one only, else to one of its own. An op behind
// one on its own stream is observed to have waited for its lane. When it was over is observed later, by `poll`: the
// times that are told are those of the host, which looks now and then.
//
// An op is given to its stream by its caller, between `before_op` and `after_op`. The window (`await_window`) is open
// while fewer than RunAhead::ops ops are not over, and, while a copy is handed over and not over, the durations of
// those behind the first one of their stream, which may run, are less than RunAhead::time_ns: who waits for the first
// wakes up a while after it, and the GPU has work.
//
// Errors: what fails while a copy is handed over fails that copy; whoever touches the same bytes comes after what was
// started of it. What fails later has taken the device with it: then `failure` says so, and all functions that ask the
// device throw it.
//
// Threading: any thread may call. No function but `await_window`, `await_next`, `await` and `await_all` waits for the
// device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/thread_annotations.h"
#include "executor/copy_lane.h"
#include "executor/device_order.h"
#include "executor/work_lanes.h"

namespace tencache {

class DeviceLanes {
 public:
  // Of an op that is over, in the order of their tickets; from any thread.
  using OpOver = std::function<void(OpIndex op)>;

  // Spec, accelerator and lanes, which get its completions, outlive it. `op_over`: ops are observed, each; without it
  // nobody asks for more than the window does.
  DeviceLanes(const MachineSpec& spec, Accelerator& accelerator, WorkLanes& lanes, OpOver op_over = {});
  // Waits for all that it has started, and for ops.
  ~DeviceLanes();
  DeviceLanes(const DeviceLanes&) = delete;
  DeviceLanes& operator=(const DeviceLanes&) = delete;

  // Whether the link is one of its streams.
  static bool is_stream(const MachineSpec& spec, const Link& link);

  DeviceStreams& streams() const { return *streams_; }

  // ---- Copies and moves. `fails`: it does not start, for that reason.
  Fence submit(LinkId link, CopyWork copy, Tag tag, std::string fails = {});
  // One that is not handed over completes as cancelled; false if there is none.
  bool cancel(Fence fence);
  // `link` as in MoveCommand.
  void move(const std::byte* from, std::byte* to, Bytes bytes, LinkId link);

  // ---- Ops. `use_stream`: the program has this one, before its first op comes.
  void use_stream(DeviceStream stream);
  Nanoseconds await_window();
  // The stream comes after what others did to these. `own`: what the program itself did to them needs no wait: only
  // what copies and moves did.
  // Returns how often it waits.
  std::size_t before_op(DeviceStream stream, std::span<const MemoryAccess> accesses, bool own);
  // The stream has been given what touches these; from now on others come after it.
  struct Op {
    OpIndex op = none;
    Nanoseconds duration_ns = 0;  // 0: not known
    Fence fence = 0;              // observed with these; 0: no op of the machine's
    Tag tag = 0;
  };
  void after_op(DeviceStream stream, std::span<const MemoryAccess> accesses, const Op& op);
  // The same of what is no op by itself: it does not count for the window.
  void after_use(DeviceStream stream, std::span<const MemoryAccess> accesses);
  // The same where nobody knows which of the program's streams it was.
  void after_any_use(std::span<const MemoryAccess> accesses);

  // ---- Threads of the host that touch memory which streams touch.
  std::vector<SharedMark> before_host(std::span<const MemoryAccess> accesses);
  void await(std::span<const SharedMark> marks);
  // For all that was given to streams.
  void await_all();

  // ---- Observation.
  // Looks at the device, tells what is over and hands over what may be. True if anything was.
  bool poll();
  // Something is offered, or given to a stream and not observed: `poll` is worth calling.
  bool busy() const;
  // Waits for something that `poll` can tell.
  void await_next();
  // Why the device does nothing any more; empty while it does.
  std::string failure() const;
  // Waits that were put between streams so far.
  std::uint64_t waits() const;

 private:
  struct Work {
    std::uint64_t number = 0;  // of its ticket
    Fence fence = 0;
    Tag tag = 0;
    OpIndex op = none;
    Bytes bytes = 0;
    Nanoseconds duration_ns = 0;
    Nanoseconds given_ns = 0;
    std::vector<Ticket> waits = {};  // not over, as far as was looked
    std::uint8_t waited_for = 0;
    Nanoseconds waited_until_ns = 0;
  };
  struct Offer {
    Fence fence = 0;
    Tag tag = 0;
    CopyWork copy;
    std::string fails;
  };
  struct LineState {
    Line line = 0;
    std::uint8_t lane = 0;                     // of core/timeline.h
    std::unique_ptr<OwnStream> own = nullptr;  // null: it is the program's
    std::unique_ptr<CopyEngine> copies = nullptr;
    std::deque<Work> works = {};  // given, not observed
    Nanoseconds last_end_ns = 0;
  };
  struct StreamLink : LineState {
    bool stream = false;
    std::deque<Offer> offered = {};
    Bytes bytes = 0;          // of `works`
    Bytes bytes_at_once = 0;  // that are handed over whatever their number
  };
  struct ProgramStream : LineState {
    DeviceStream stream = nullptr;
    std::uint32_t since_mark = 0;  // ops
    Nanoseconds since_mark_ns = 0;
  };

  void open(LineState& line, std::size_t lane, DeviceStream stream) TENCACHE_REQUIRES(mutex_);
  void open_own(LineState& line, std::size_t lane) TENCACHE_REQUIRES(mutex_);
  ProgramStream& program_stream(DeviceStream stream) TENCACHE_REQUIRES(mutex_);
  void hand_over(StreamLink& link) TENCACHE_REQUIRES(mutex_);
  void hand_over(StreamLink& link, const Offer& offer) TENCACHE_REQUIRES(mutex_);
  // Takes the line's works that are over; true if there are any.
  bool observe(LineState& line, const std::function<void(const Work&)>& ended) TENCACHE_REQUIRES(mutex_);
  bool observe_links() TENCACHE_REQUIRES(mutex_);
  bool observe_ops() TENCACHE_REQUIRES(mutex_);
  bool window_open() const TENCACHE_REQUIRES(mutex_);
  bool busy_now() const TENCACHE_REQUIRES(mutex_);
  void check_device() const TENCACHE_REQUIRES(mutex_);
  void lose(const std::string& reason) TENCACHE_REQUIRES(mutex_);

  const MachineSpec& spec_;
  WorkLanes& lanes_;
  const OpOver op_over_;
  const std::shared_ptr<DeviceStreams> streams_;
  mutable Mutex mutex_;
  DeviceOrder order_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<std::uint8_t> lane_of_ TENCACHE_GUARDED_BY(mutex_);  // by line
  std::vector<StreamLink> links_ TENCACHE_GUARDED_BY(mutex_);      // by link; not all are streams
  LineState moves_ TENCACHE_GUARDED_BY(mutex_);                    // for which neither a copy nor an op has a stream
  std::deque<ProgramStream> programs_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<Line> program_lines_ TENCACHE_GUARDED_BY(mutex_);
  std::size_t launched_ TENCACHE_GUARDED_BY(mutex_) = 0;  // ops that are not over
  Nanoseconds launched_ns_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::vector<Ticket> waits_ TENCACHE_GUARDED_BY(mutex_);           // of the op between `before_op` and `after_op`
  std::optional<Ticket> moved_ TENCACHE_GUARDED_BY(mutex_);         // on its own stream: the last move before it
  std::vector<MemoryAccess> accesses_ TENCACHE_GUARDED_BY(mutex_);  // memory for hand_over
  std::vector<DeviceCopy> pieces_ TENCACHE_GUARDED_BY(mutex_);
  std::string failure_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
