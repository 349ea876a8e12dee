// A GPU as the real machine sees it: memory whose content the host cannot touch, and engines that copy to and from it.
// HostMachine without one lets ordinary memory stand in for the GPU's; executor/cuda implements it.
//
// Errors: everything throws Error (or OutOfMemory) with the driver's own words. Threading: any thread may call, each
// CopyEngine is one thread's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "core/units.h"
#include "executor/tier_memory.h"

namespace tencache {

class DeviceStreams;
class ReplayKernels;

// One of the ends of a copy is the device's memory, the other the host's.
struct DeviceCopy {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  Bytes bytes = 0;
};

// Addresses of the device for a whole tier, in one range, which begins at a multiple of 2 MiB, and as many behind it
// that are never accessible. Used by one thread at a time.
class DeviceRange {
 public:
  virtual ~DeviceRange() = default;  // nothing touches it any more
  virtual std::byte* begin() const = 0;
  virtual std::byte* guard() const = 0;
  // These bytes of the range are used from now on: they have memory, for good. Content is undefined at first. Throws
  // Error if the device has none; nothing that was there has changed then.
  virtual void cover(Bytes offset, Bytes bytes) = 0;
};

// Copies in order, while other engines and the GPU's ops go on.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;  // waits for what was started
  // Start copies, at least one, and return; the bytes may be touched after `wait`, for which those of one call are one.
  // Copies of one call may run in any order: none of them touches another's bytes.
  virtual void upload(std::span<const DeviceCopy> copies) = 0;
  virtual void download(std::span<const DeviceCopy> copies) = 0;
  // The same within the device's memory. The two places may overlap.
  virtual void move(const std::byte* from, std::byte* to, Bytes bytes) = 0;
  // Waits until no more than `left` of the calls above are under way.
  virtual void wait(std::size_t left) = 0;
};

// Blocks of files to and from the device's memory, past the host's. Used by one thread.
class DirectFiles {
 public:
  virtual ~DirectFiles() = default;
  // All of it is multiples of 4 KiB, the file is opened with O_DIRECT. They return when the bytes are there: empty, or
  // why it failed; then the destination's content is undefined.
  virtual std::string read(int descriptor, Bytes offset, std::byte* device, Bytes bytes) = 0;
  virtual std::string write(int descriptor, Bytes offset, const std::byte* device, Bytes bytes) = 0;
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // The device, for people: "NVIDIA H200, 139.8 GiB, driver 13.0".
  virtual std::string describe() const = 0;
  // Memory that can be mapped now.
  virtual Bytes free_bytes() const = 0;
  // Chunks occupy multiples of this, a power of two.
  virtual Bytes granularity() const = 0;
  // `addressed` as in ChunkMemoryOptions. It must not outlive this object.
  virtual std::unique_ptr<TierMemory> memory(const std::string& name, Bytes capacity, Bytes granularity,
                                             bool addressed) = 0;
  // For a tier of that name. It must not outlive this object. Throws Error if so much memory is not free.
  virtual std::unique_ptr<DeviceRange> range(const std::string& tier, Bytes capacity) = 0;
  // Locks pages of the host so that copies run at the link's speed. False if that is refused (`reason` says why):
  // copies work all the same, slower. The range does not overlap one that is pinned.
  virtual bool pin(std::byte* host, Bytes bytes, std::string& reason) = 0;
  virtual void unpin(std::byte* host) noexcept = 0;  // the start of what was pinned; nothing under way touches it
  virtual std::unique_ptr<CopyEngine> copy_engine() = 0;
  // Must not outlive this object.
  virtual std::shared_ptr<DeviceStreams> streams() = 0;
  // Null, with the reason, where files cannot reach the device but through the host's memory.
  virtual std::unique_ptr<DirectFiles> direct_files(std::string& reason) = 0;
  // What ops of a replay do on the device (replay_bodies.h).
  virtual std::unique_ptr<ReplayKernels> replay_kernels() = 0;
};

// A contiguous part of host memory, pinned where that was possible.
struct HostPiece {
  std::byte* address = nullptr;
  Bytes bytes = 0;
};

}  // namespace tencache
