// The real machine: the port of core/machine.h on threads, mapped memory and files of this computer.
//
// Tiers of kind gpu and cpu are ChunkMemory (the GPU's is a capped arena of ordinary memory that stands in for it),
// tiers of kind nvme are SwapFiles. With an accelerator (accelerator.h) tiers of kind gpu are its memory, CPU memory is
// page-locked for it, and links from and to them copy with its engines; all else is the same. Each link is a thread
// that copies (CopyLane), each of the two op lanes a thread that runs bodies. With `pace` a link takes latency + bytes
// / bandwidth of wall time for a transfer, so that a machine slower than this computer can be stood in for. A transfer
// that was ready behind another one is paced from the moment the other should have ended: waking up late does not add
// up.
//
// Limits: shared resources (MachineSpec::resources) are not enforced, only each link's own bandwidth and latency; links
// faster than this computer's memory run as fast as that. Links between two nvme tiers are refused.
//
// Fences pass when their work is over, however it ended: the engine looks at the completion. An op waits until copies
// that were cancelled before it have stopped reading: it may write what they read. Copies and ops see the addresses
// that were mapped when they were submitted: `map` comes before `submit`; `unmap` and `tensor_destroyed` come after
// everything submitted that touches the chunk.
//
// Threading: calls of Machine come from one thread at a time. `wait`, `wait_for`, `stop`, `now`, `address`, `bytes`
// and `last_error` may be called from any thread at any time.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/fault_plan.h"
#include "core/machine.h"
#include "executor/accelerator.h"
#include "executor/chunk_memory.h"
#include "executor/copy_lane.h"
#include "executor/swap_file.h"

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
};

struct HostMachineOptions {
  bool pace = true;             // keep to the links' bandwidth and latency
  std::vector<bool> addressed;  // per tier: the engine gives offsets (Place::offset); empty: none does
  bool populate = true;         // ChunkMemoryOptions
  bool prefault = false;
  bool unlimited_gpu = false;  // tier 0 is as large as this computer's memory (the layout's `unlimited_gpu`)
  SwapFileOptions files;
  std::shared_ptr<Accelerator> accelerator;  // of tiers of kind gpu; nullptr: ordinary memory stands in
  std::optional<FaultPlan> faults;           // what is to go wrong
};

// The same machine with what real memory asks for: granularities of at least 4 KiB, or of the accelerator's pages, and
// capacities in multiples of them. Simulate this one to predict a run. Throws Error for a capacity below a page.
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
  bool wait(Completion& completion) override;
  Nanoseconds now() const override;
  void map(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;
  void unmap(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;
  void tensor_created(TensorId tensor, Bytes bytes) override;
  void tensor_destroyed(TensorId tensor) override;
  void initialise(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override;

  // Waits for the next completion even while nothing is under way. False at the time limit and after `stop`.
  bool wait_for(Completion& completion, std::chrono::nanoseconds limit);
  // From now on `wait` and `wait_for` return false, also those that wait already.
  void stop();

  // The tensor is about to be destroyed: its memory may stay in place for another one (TierMemory::retire). On the
  // thread that calls Machine.
  void retire(TensorId tensor);

  // The tensor's constant address in a memory tier.
  std::byte* address(TensorId tensor, TierId tier = 0) const;
  Bytes bytes(TensorId tensor) const;
  TierId tier_of_lane(std::uint8_t lane) const { return lane == 0 ? TierId{0} : cpu_tier_; }
  // A copy of a chunk's content, from memory or a file, for tests and for looking into a stopped machine. Nothing that
  // touches the chunk is under way.
  std::vector<std::byte> content(TensorId tensor, Bytes begin, Bytes bytes, TierId tier);

  // The message of the last work that failed; empty if none did.
  std::string last_error() const override;
  // How files are read and written, and what was fallen back to; a line per tier.
  std::string describe() const;
  const MachineSpec& spec() const { return spec_; }
  Accelerator* accelerator() const { return options_.accelerator.get(); }
  ChunkMemoryStatistics memory_statistics(TierId tier) const;  // memory tiers only
  const SwapFiles& files(TierId tier) const;                   // nvme tiers only
  // What was injected; zeros without a plan. On the thread that calls Machine.
  FaultCounts fault_counts() const { return faults_ ? faults_->counts() : FaultCounts{}; }

 private:
  struct Work {
    Fence fence = 0;
    Tag tag = 0;
    std::uint32_t blockers = 0;  // of an op: cancelled copies that it waits for
    Nanoseconds ready_ns = 0;    // when it was submitted and they were over
    std::atomic<bool> cancelled = false;
    CopyFault fault;
    std::string injected_failure;  // of the fault, in words
    CopyWork copy;                 // copy lanes
    OpCommand op;                  // op lanes; its uses are in `uses`
    std::vector<Use> uses;
  };
  struct Lane {
    std::unique_ptr<CopyLane> copy;  // nullptr for op lanes
    std::uint8_t op_lane = 0;
    std::deque<Work> queue;
    bool running = false;  // the front one
    std::condition_variable wake;
    Nanoseconds free_ns = 0;  // from when the next one is paced
    Nanoseconds last_end_ns = 0;
    std::thread thread;
  };
  // Work that is not over.
  struct Pending {
    Lane* lane = nullptr;
    Work* work = nullptr;
    std::vector<Fence> dependants;  // ops that wait for it
  };
  // Memory or files.
  struct TierStore {
    std::unique_ptr<TierMemory> memory;
    const ChunkMemory* pages = nullptr;  // `memory`, if the host can touch it
    std::unique_ptr<SwapFiles> files;
    bool on_accelerator() const { return memory != nullptr && pages == nullptr; }
  };
  struct Outcome {
    CompletionStatus status = CompletionStatus::done;
    std::string message;
    Nanoseconds start_ns = 0;
  };

  void build_tiers();
  void build_staging();
  void build_lanes();
  void close();
  void report_fallback() const;
  Fence enqueue(Lane& lane, Work& work);
  void serve(Lane& lane);
  Outcome run(Lane& lane, Work& work);
  Outcome run_copy(Lane& lane, Work& work);
  Outcome run_op(Lane& lane, Work& work);
  void complete(Lane& lane, Outcome outcome);
  bool take_completion(Completion& completion);
  CopyWork resolve(const CopyCommand& copy);
  void take_slot(SwapFiles& files, TensorId tensor, Bytes begin, Bytes bytes);
  void disturb(const CopyCommand& copy, Work& work);
  std::byte* memory_of(const CopyCommand& copy, Place place, bool staging) const;
  std::vector<HostPiece> pieces_of(const CopyCommand& copy, Place place, bool staging) const;
  void transfer_directly(TensorId tensor, Bytes begin, TierId tier, std::byte* content, Bytes bytes, bool upload);

  MachineSpec spec_;
  OpBodies& bodies_;
  Options options_;
  Nanoseconds origin_ns_;
  TierId cpu_tier_ = no_tier;
  std::array<TierStore, max_tiers> tiers_;
  std::byte* staging_ = nullptr;
  Bytes staging_stride_ = 0;
  bool staging_locked_ = false, staging_pinned_ = false;
  std::optional<FaultInjector> faults_;

  mutable std::mutex mutex_;  // everything below, and the lanes' queues
  std::condition_variable arrived_;
  std::deque<Completion> completions_;
  std::unordered_map<Fence, Pending> pending_;
  Fence last_fence_ = 0;
  std::string last_error_;
  bool stopped_ = false;  // wait returns false
  bool closing_ = false;  // the lanes end
  std::vector<std::unique_ptr<Lane>> links_;
  std::array<std::unique_ptr<Lane>, 2> op_lanes_;
};

}  // namespace tencache
