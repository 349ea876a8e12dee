// Ops of a LibTorch program on CPU tensors as kernels of the driver of rules that are late: the GPU tier's memory is
// this process's, an op's body runs on it when it is launched, and nobody sees what it wrote before a job on the
// program's stream (the legacy one) is over.
//
// At launch what the op depends on is over: what its stream was given before, or has waited for, and touches the same
// bytes is done now, for the device alone; the host learns nothing. Then the body runs. All that it has written
// (arguments in place, what it allocated) is set aside and poisoned where it lies, and a job publishes it when the
// adversary says so. The job first looks whether the op's inputs are what they were at launch, and its outputs still
// poison. So a copy that comes too early takes poison, and one that overwrites too early is found. All accesses are
// judged by happens-before.
//
// An op that has written none of the runtime's memory has a result for the host, which waits for it (`item`, copies to
// the CPU). Judged by order alone, as code on the CPU goes on with the bytes: memory that an op lets go of on its way
// (what it launched may still use it), and what is allocated for code that is no op, until the fence.
//
// Not seen: kernels inside an op one by one; an op whose result is partly in the runtime's memory and partly the
// host's does not wait for it.
//
// Threads: as the C functions (live_abi.h). One object at a time, which outlives the driver.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "executor/live/live_abi.h"
#include "tests/live/rules/rules_state.h"

namespace tencache::rules {

struct LateCounts {
  std::uint64_t late = 0;     // ops whose outputs were published by a job
  std::uint64_t waited = 0;   // that the host waited for
  std::uint64_t ordered = 0;  // jobs that were judged by order alone
};

class LateKernels {
 public:
  LateKernels();
  ~LateKernels();
  LateKernels(const LateKernels&) = delete;
  LateKernels& operator=(const LateKernels&) = delete;

  // LiveOptions::interpose.
  tencache_live interpose(const tencache_live& live);
  // A kernel that no op announces: `body` writes the memory.
  void launch(const char* name, std::byte* address, Bytes bytes, const std::function<void()>& body);

  const LateCounts& counts() const { return counts_; }
  // The program's, that it has not let go of.
  std::size_t storages() const { return memory_.size(); }
  // Of those that libraries keep, which do not leave (LiveRuntime::keep): the most at once, in whole pages.
  Bytes most_kept_bytes() const { return most_kept_bytes_; }

 private:
  struct Piece {
    std::uint32_t tensor = tencache_no_tensor;
    std::byte* address = nullptr;
    Bytes bytes = 0;
    bool written = false, kept = false;
    std::uint64_t hash = 0;          // of an input
    std::vector<std::byte> content;  // of an output

    std::span<std::byte> memory() const { return {address, bytes}; }
  };
  // What runs between begin_op and end_op.
  struct Op {
    const char* name = "";
    std::vector<Piece> pieces;
  };

  static int begin_op(void*, std::uint32_t name, tencache_use* uses, std::size_t count, std::uint64_t part_bytes);
  static int end_op(void*, int linger);
  static int allocate(void*, std::uint64_t bytes, int inside_op, tencache_storage* storage);
  static void release(void*, std::uint32_t tensor);
  static int keep(void*, const std::uint32_t* tensors, std::size_t count);
  static int unkeep(void*, const std::uint32_t* tensors, std::size_t count);
  static int expose(void*, std::uint32_t tensor);
  static std::uint32_t name_id(void*, const char* text, std::size_t bytes);

  void count_kept();
  void begin(const char* name, std::span<const tencache_use> uses);
  static void prepare(std::span<Piece> pieces);
  void publish_late(const char* name, std::vector<Piece> pieces);
  void judge_order(const char* name, std::vector<Piece> pieces);
  static bool touch(Call& call, DeviceJob& job, const std::vector<Piece>& pieces);
  static void publish(const char* name, const CallStack& launched, const std::vector<Piece>& pieces);

  static inline LateKernels* active_ = nullptr;

  tencache_live live_{};  // the runtime's own
  std::mutex mutex_;      // all below
  std::map<std::uint32_t, Piece> memory_;
  std::deque<std::string> texts_;
  std::map<std::uint32_t, const char*> names_;
  Op op_;
  LateCounts counts_;
  Bytes most_kept_bytes_ = 0;
};

}  // namespace tencache::rules
