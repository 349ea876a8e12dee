// What ops do while a recorded trace is replayed on a real machine: they check the content of what they read, write new
// content, and compute for as long as the recording says. Bytes that went astray are noticed at the next read.
//
// Content is a function of (tensor, version, position); a write makes the next version. Each 4 KiB page begins with a
// 64-bit stamp, the rest of it continues from there.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/thread_annotations.h"
#include "core/trace.h"
#include "executor/device_streams.h"
#include "executor/host_machine.h"

namespace tencache {

struct ReplayOptions {
  bool check_everything = false;  // every word of what is read, not only each page's stamp
  bool write_everything = true;   // false: only the stamps; for traces whose ops are shorter than filling their outputs
  double duration_scale = 1;      // on the recorded durations; 0 does not compute at all
};

struct ReplayCounts {
  std::uint64_t ops = 0;
  std::uint64_t late_ops = 0;       // checking and writing alone took longer than the recorded duration
  Nanoseconds late_ns = 0;          // by how much, in total
  std::uint64_t tensor_checks = 0;  // reads checked
  std::uint64_t page_checks = 0;
  std::uint64_t corrupted_checks = 0;
  std::uint64_t verified_tensors = 0;   // checked at least once
  std::uint64_t corrupted_tensors = 0;  // of them, wrong at least once
  std::string first_corruption;         // op, tensor and position
  std::size_t most_ahead = 0;           // ops that were launched and not known to be over
};

// A tensor of an op that is replayed.
struct ReplayAccess {
  TensorId tensor = none;
  std::uint64_t version = 0;     // to be found, if it is read; the next one is written
  std::span<std::byte> content;  // addresses of the lane's device
  bool read = false, write = false;
  Bytes wrong_at = unlimited;  // result: the first page that differs, if one does
};

// An op's work on the device of a lane. Used by one thread.
class ReplayKernels {
 public:
  virtual ~ReplayKernels() = default;
  // Checks what is read and writes what is written, one tensor after the other, then computes until `duration_ns` after
  // its start. Returns when all of it is over, with the time that checking and writing took.
  virtual Nanoseconds run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) = 0;

  // On an accelerator, in two: `start` gives the op to a stream, which others may make wait first; `finish` is the rest
  // of `run`, of the first op that was started and not finished, once it is over. Each is one thread's at a time.
  virtual DeviceStream stream() const;
  virtual void start(std::span<const ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options);
  virtual Nanoseconds finish(std::span<ReplayAccess> accesses);
};

class ReplayBodies final : public OpBodies {
 public:
  // The trace, as lowered for the run, outlives the bodies, and so do the kernels of lane 0, which an accelerator
  // needs.
  explicit ReplayBodies(const Trace& trace, ReplayOptions options = {}, ReplayKernels* gpu = nullptr);

  void run(std::uint8_t lane, OpIndex op, std::span<const Use> uses, HostMachine& machine) override;
  std::optional<DeviceStream> stream() override;
  void launch(OpIndex op, std::span<const Use> uses, HostMachine& machine) override;
  void over(OpIndex op) override;
  void initialise(TensorId tensor, Bytes begin, std::span<std::byte> content) override;

  ReplayCounts counts() const;
  // "12 tensors verified, 0 corrupted"
  std::string summary() const;

 private:
  // An op that was launched and is not over.
  struct Launched {
    OpIndex op = none;
    std::vector<ReplayAccess> accesses;
  };

  std::vector<ReplayAccess> accesses_of(std::span<const Use> uses, const HostMachine& machine, TierId tier) const
      TENCACHE_REQUIRES(mutex_);
  Nanoseconds duration_of(OpIndex op) const;
  void count(OpIndex op, std::span<const ReplayAccess> accesses, Nanoseconds work_ns) TENCACHE_REQUIRES(mutex_);
  void count_check(OpIndex op, const ReplayAccess& access) TENCACHE_REQUIRES(mutex_);

  const Trace& trace_;
  ReplayOptions options_;
  ReplayKernels* gpu_;
  mutable Mutex mutex_;
  std::vector<std::uint64_t> versions_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<Launched> launched_ TENCACHE_GUARDED_BY(mutex_);
  // By tensor: 0 not checked, 1 right, 2 wrong.
  std::vector<std::uint8_t> verdicts_ TENCACHE_GUARDED_BY(mutex_);
  ReplayCounts counts_ TENCACHE_GUARDED_BY(mutex_);
};

// The content; `begin` is the position of the first byte in the tensor, a multiple of 4 KiB.
void write_pattern(TensorId tensor, std::uint64_t version, Bytes begin, std::span<std::byte> content, bool everything);
// The position in the tensor of the first page that differs; `unlimited` if none does.
Bytes find_difference(TensorId tensor, std::uint64_t version, Bytes begin, std::span<const std::byte> content,
                      bool everything);

}  // namespace tencache
