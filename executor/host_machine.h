// The real machine: the port of core/machine.h on threads, mapped memory and files of this computer.
//
// Tiers of kind gpu and cpu are ChunkMemory (the GPU's is a capped arena of ordinary memory that stands in for it),
// tiers of kind nvme are SwapFiles. With an accelerator (accelerator.h) tiers of kind gpu are its memory (ArenaMemory
// where the tier's allocator is `movable`), CPU memory is page-locked for it, and links from and to them copy with its
// engines; all else is the same (HostMemory). Each link is a thread that copies (CopyLane), each of the two op lanes a
// thread that runs bodies (WorkLanes). With `pace` a link takes latency + bytes / bandwidth of wall time for a
// transfer, so that a machine slower than this computer can be stood in for. A transfer that was ready behind another
// one is paced from the moment the other should have ended: waking up late does not add up.
//
// Limits: resources (MachineSpec::resources) are enforced only where ranks share them (HostMachineOptions::share), and
// else each link's own bandwidth and latency; links faster than this computer's memory run as fast as that. Links
// between two nvme tiers are refused.
//
// Fences pass when their work is over, however it ended: the engine looks at the completion. An op waits until copies
// that were cancelled before it have stopped reading: it may write what they read. Copies and ops see the addresses
// that were mapped when they were submitted: `map` comes before `submit`; `unmap` and `tensor_destroyed` come after
// everything submitted that touches the chunk.
//
// With an accelerator whose memory of tier 0 is an arena, and a spec that runs ahead (RunAhead), completions promise
// order: links between it and CPU memory, moves and ops of lane 0 are streams of the accelerator (DeviceLanes), which
// work on the addresses of that moment and are ordered by them; `unmap` only has to come after completions. Files and
// the CPU's ops wait on their threads for what streams do to their memory. These links are neither paced nor delayed by
// a fault plan.
//
// Threading: calls of Machine come from one thread at a time. `wait`, `wait_for`, `await`, `take`, `stop`, `submitted`,
// `now`, `address`, `bytes` and `last_error` may be called from any thread at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/fault_plan.h"
#include "core/machine.h"
#include "executor/device_lanes.h"
#include "executor/host_memory.h"
#include "executor/work_lanes.h"

namespace tencache {

class HostMachine;

// What ops do: replaying a trace (replay_bodies.h), or training.
class OpBodies {
 public:
  virtual ~OpBodies() = default;
  // On the lane's thread; the two lanes run at the same time. The tensors' addresses are
  // machine.address(tensor, machine.tier_of_lane(lane)); every chunk of them is mapped. With an accelerator those of
  // lane 0 are its addresses: an op that runs there returns when it is over. An exception fails the op.
  virtual void run(std::uint8_t lane, OpIndex op, std::span<const Use> uses, HostMachine& machine) = 0;
  // Content that a persistent tensor has before the first op: fill `content`, the bytes from `begin` on. On the
  // engine's thread. Without an override it is zeros.
  virtual void initialise(TensorId tensor, Bytes begin, std::span<std::byte> content);

  // Where the machine's completions promise order, ops of lane 0 are given to this stream of the accelerator: `launch`
  // does so and returns, the machine sees to the order with all else that it gives to streams. `over`: a launched op
  // is, the first of those of which that was not said; from any thread, one at a time. No stream: no op runs on lane 0.
  virtual std::optional<DeviceStream> stream() { return std::nullopt; }
  virtual void launch(OpIndex op, std::span<const Use> uses, HostMachine& machine);
  virtual void over(OpIndex /*op*/) {}
};

// The same machine with what real memory asks for: granularities of at least 4 KiB, or of the accelerator's pages, and
// capacities in multiples of them; of 512 bytes where the accelerator's memory is mapped once (the allocator
// `movable`). Simulate this one to predict a run. Throws Error for a capacity below a page.
MachineSpec with_real_pages(MachineSpec spec, const Accelerator* accelerator = nullptr);

class HostMachine final : public Machine {
 public:
  using Options = HostMachineOptions;

  // `bodies` outlives the machine. Throws Error when the spec asks for what this computer cannot give.
  HostMachine(const MachineSpec& spec, OpBodies& bodies, Options options = {});
  // Cancels what is under way and waits for the op bodies that run.
  ~HostMachine() override;

  Fence submit(const CopyCommand& copy, Tag tag) override;
  Fence execute(const OpCommand& op, Tag tag) override;
  void cancel(Fence fence) override;
  // With completions that promise order: throws Error when the accelerator failed; nothing is under way any more then.
  bool wait(Completion& completion) override;
  Nanoseconds now() const override { return lanes_->now(); }
  void map(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place, MappedFor what) override {
    memory_->map(tensor, begin, bytes, place, what);
    if (streams_ && place.tier == 0) set_fresh(tensor, what == MappedFor::op);
  }
  void unmap(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) override {
    memory_->unmap(tensor, begin, bytes, place);
  }
  // At once, on the calling thread: nothing that was submitted touches the two places any more.
  Nanoseconds move(const MoveCommand& move) override;
  // In an accelerator's arena, and in ordinary memory that only ops touch.
  bool moves() const override { return options_.accelerator != nullptr ? memory_->arena(0) : !options_.raw_access; }
  // ordered: with an accelerator whose memory of tier 0 is an arena, where the spec runs ahead.
  Completes completes() const override { return streams_ ? Completes::ordered : Completes::over; }
  void tensor_created(TensorId tensor, Bytes bytes) override { memory_->create(tensor, bytes); }
  void tensor_destroyed(TensorId tensor) override { memory_->destroy(tensor); }
  void initialise(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;

  // Waits for the next completion even while nothing is under way. False at the time limit and after `stop`.
  bool wait_for(Completion& completion, std::chrono::nanoseconds limit) { return await(limit) && take(completion); }
  // The same in two: until there is one; what is there.
  bool await(std::chrono::nanoseconds limit);
  bool take(Completion& completion);
  // Copies and ops so far; each completes once.
  std::uint64_t submitted() const { return lanes_->submitted(); }
  // Who is going to wait for small copies makes them itself: to hand one over to a thread and to hear of its end takes
  // longer. From `hold` to `start`, on the thread that calls Machine, links leave them to `run_one`, which makes one,
  // and is false if there is none; `start` gives the links what is left. Paced links make all of theirs.
  void hold() { holds_ = !options_.pace && !faults_; }
  bool run_one() { return held_ && lanes_->run_one(); }
  void start() {
    holds_ = false;
    if (std::exchange(held_, false)) lanes_->start();
  }
  // From now on `wait` and `wait_for` return false, also those that wait already.
  void stop() { lanes_->stop(); }

  // The tier whose memory this rank shares with others of its host; no_tier: none.
  TierId shared_tier() const { return shared_tier_; }
  const HostShare* share() const { return options_.share.get(); }
  // Of that tier: more, if others leave some; less, if others have too little, but at least `needed`. Returns what it
  // is then. On the thread that calls Machine.
  Bytes held_memory() { return memory_->set_capacity(shared_tier_, options_.share->held()); }
  Bytes take_more_memory();
  Bytes give_back_memory(Bytes needed);
  void has_enough_memory() { options_.share->has_enough(); }

  // The tensor is about to be destroyed: its memory may stay in place for another one (TierMemory::retire). On the
  // thread that calls Machine.
  void retire(TensorId tensor) { memory_->retire(tensor); }

  // Before the engine hears that a chunk is stored in the tier: it lies in that file. On the thread that calls Machine.
  void store_in_file(TensorId tensor, Bytes begin, Bytes bytes, TierId tier, std::shared_ptr<const SourceFile> file) {
    memory_->store_in_file(tensor, begin, bytes, tier, std::move(file));
  }

  // Before the engine hears that a chunk is stored in CPU memory: room for it, which nothing touches. Null where the
  // engine says where chunks lie. On the thread that calls Machine; waits for the accelerator.
  std::byte* room_to_store(TensorId tensor, Bytes begin, Bytes bytes, TierId tier);

  // With HostMachineOptions::raw_access, as in host_memory.h. `owns` and `tensor_at` may be called
  // from any thread, the others from the one that calls Machine.
  bool owns(const void* address) const { return options_.raw_access && memory_->owns(address); }
  TensorId tensor_at(const void* address) const { return options_.raw_access ? memory_->tensor_at(address) : none; }
  void expose(TensorId tensor, bool writable) { memory_->expose(tensor, writable); }
  void conceal(TensorId tensor) { memory_->conceal(tensor); }
  void open_for_writing(TensorId tensor) { memory_->open_for_writing(tensor); }

  // Where tier 0 is an accelerator's arena, as in arena_memory.h; else there is no guard, and nothing leaves.
  // `any_left` and `guard` may be called from any thread.
  bool any_left() const { return memory_->arena() != nullptr && memory_->arena()->any_left(); }
  std::vector<TensorId> take_left(std::size_t most) { return memory_->arena()->take_left(most); }
  std::byte* guard() const { return memory_->arena() != nullptr ? memory_->arena()->guard() : nullptr; }

  // For tests, without an accelerator: another address for the tensor in tier 0, which nothing under way uses. On the
  // thread that calls Machine.
  void relocate(TensorId tensor) { memory_->relocate(tensor); }

  // The tensor's address in a memory tier, constant but for `relocate`; below the first one, once it has a chunk there.
  std::byte* address(TensorId tensor, TierId tier = 0) const { return memory_->address(tensor, tier); }
  Bytes bytes(TensorId tensor) const { return memory_->bytes(tensor); }
  TierId tier_of_lane(std::uint8_t lane) const { return lane == 0 ? TierId{0} : cpu_tier_; }
  // A copy of a chunk's content, from memory or a file, for tests and for looking into a stopped machine. Nothing that
  // touches the chunk is under way.
  std::vector<std::byte> content(TensorId tensor, Bytes begin, Bytes bytes, TierId tier) {
    if (streams_) streams_->await_all();
    return memory_->content(tensor, begin, bytes, tier);
  }

  // ---- Where completions promise order: what a program gives to streams of the accelerator itself. From any thread.
  // Waits while the program is too far ahead of the device (RunAhead); returns for how long.
  Nanoseconds await_window() { return streams_->await_window(); }
  // The program has this stream, on which an op is about to come.
  void use_stream(DeviceStream stream) { streams_->use_stream(stream); }
  // The stream comes after what copies and moves did to the tensors, which are in tier 0, and after whatever was done
  // where they have got memory for this op. Returns how often it waits. On the thread that calls Machine.
  std::size_t before_op(DeviceStream stream, std::span<const Use> uses);
  // The stream has been given an op on them, of that duration (0: not known); or something that is no op by itself.
  void after_op(DeviceStream stream, std::span<const Use> uses, Nanoseconds duration_ns);
  void after_use(DeviceStream stream, std::span<const Use> uses);
  // The same on any of the program's streams, and written.
  void after_any_use(TensorId tensor);
  // Waits on the calling thread until what was done to the tensors in tier 0 is over; all that was given to streams.
  void await_uses(std::span<const Use> uses);
  void await_streams() { streams_->await_all(); }
  DeviceStreams& streams() const { return streams_->streams(); }
  // Waits that were put between streams so far.
  std::uint64_t stream_waits() const { return streams_ ? streams_->waits() : 0; }

  // The message of the last work that failed; empty if none did.
  std::string last_error() const override { return lanes_->last_error(); }
  // How files are read and written, and what was fallen back to; a line per tier.
  std::string describe() const;
  const MachineSpec& spec() const { return spec_; }
  Accelerator* accelerator() const { return options_.accelerator.get(); }
  // Of memory tiers, and of nvme tiers.
  ChunkMemoryStatistics memory_statistics(TierId tier) const { return memory_->statistics(tier); }
  const SwapFiles& files(TierId tier) const;
  // What was injected; zeros without a plan. On the thread that calls Machine.
  FaultCounts fault_counts() const { return faults_ ? faults_->counts() : FaultCounts{}; }

 private:
  class CopyRunner;
  class OpLaneRunner;

  void check_links() const;
  void run_ahead();
  void set_fresh(TensorId tensor, bool fresh);
  void tell_failure();
  std::vector<MemoryAccess> accesses_of(std::span<const Use> uses, TierId tier) const;
  void build_lanes();
  void report_fallback() const;

  const MachineSpec spec_;
  OpBodies& bodies_;
  Options options_;
  TierId cpu_tier_ = no_tier;
  TierId shared_tier_ = no_tier;
  bool holds_ = false, held_ = false;  // small copies; any since `hold`
  std::optional<FaultInjector> faults_;
  std::optional<HostMemory> memory_;
  Bytes filled_ = 0;                    // of persistent tensors, before the first op
  std::vector<const CopyLane*> links_;  // of the lanes, for what they say of themselves
  std::unique_ptr<WorkLanes> lanes_;
  // It goes first, and what it started is over then; but the threads of lanes use it until they are stopped.
  std::optional<DeviceLanes> streams_;
  std::atomic<bool> failure_told_ = false;  // of streams_
  std::vector<bool> fresh_;                 // by tensor: mapped in tier 0 for an op, and none has come to it yet
};

}  // namespace tencache
