// Copies of one link between an accelerator's memory and host memory or files, in parts that are large enough for a
// chunk to be one: the host waits once for it. Between the parts of larger ones the copy can be paced and stopped.
//
// Files reach the accelerator directly where it can do that (GPUDirect Storage) and whole pages are the chunk's; else,
// and for good after the first failure, through a ring of page-locked buffers of the lane's own: the file fills one
// while others are uploaded, and is written from one while others are downloaded.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/thread_annotations.h"
#include "executor/accelerator.h"
#include "executor/swap_file.h"

namespace tencache {

struct AcceleratorLaneSizes {
  Bytes part_bytes = 32 * MiB;      // 0.6 ms of a fast link, for which it can be held up by others
  std::size_t parts_in_flight = 2;  // one copies while the next is started
  Bytes buffer_bytes = 4 * MiB;     // the least, of each buffer for files
  std::size_t buffers = 8;          // for files
};

// Used by one thread. All functions return when the bytes are there, or false when `progress`, called with the bytes
// done, stopped them; then nothing touches the memory any more and the destination's content is undefined. They throw
// Error on failures of the device or the disk.
class AcceleratorLane {
 public:
  // No block of a file is larger than `largest_block`; 0: the lane has no files. `checksums`: the host must see them.
  AcceleratorLane(Accelerator& accelerator, Bytes largest_block, bool checksums, AcceleratorLaneSizes sizes = {});
  ~AcceleratorLane();
  AcceleratorLane(const AcceleratorLane&) = delete;
  AcceleratorLane& operator=(const AcceleratorLane&) = delete;

  bool upload(std::byte* device, std::span<const HostPiece> host, const Progress& progress);
  bool download(std::span<const HostPiece> host, const std::byte* device, const Progress& progress);
  // `whole_pages`: of the device's memory, 4 KiB large, those that `bytes` begin to use are the chunk's.
  bool read(FileLane& files, const std::vector<FileBlock>& blocks, std::byte* device, Bytes bytes, bool whole_pages,
            const Progress& progress);
  bool write(FileLane& files, const std::vector<FileBlock>& blocks, const std::byte* device, Bytes bytes,
             bool whole_pages, const Progress& progress);
  // Why files do not reach the accelerator directly; empty if they do. From any thread.
  std::string indirect_reason() const;

 private:
  enum class Direct : std::uint8_t { done, stopped, failed };
  template <typename Move>
  Direct move_directly(const FileLane& files, const std::vector<FileBlock>& blocks, Bytes bytes,
                       const Progress& progress, const Move& step);
  using StartPart = std::function<void(std::span<const DeviceCopy> part)>;
  bool move(std::span<const HostPiece> host, std::byte* device, const Progress& progress, const StartPart& start);
  std::byte* buffer(std::size_t index);

  Accelerator& accelerator_;
  AcceleratorLaneSizes sizes_;
  std::unique_ptr<CopyEngine> engine_;
  std::unique_ptr<DirectFiles> direct_;
  std::vector<DeviceCopy> part_;  // that is put together
  mutable Mutex reason_mutex_;
  std::string indirect_reason_ TENCACHE_GUARDED_BY(reason_mutex_);
  std::byte* buffers_ = nullptr;  // mapped at first use
  bool pinned_ = false;
};

}  // namespace tencache
