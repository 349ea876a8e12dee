// Brings large content from pageable memory of the host (a mapped file, a tensor of the program) to an accelerator, and
// to other memory of the host: threads copy parts of it into a ring of page-locked memory, from which copies on a
// stream go on. The driver itself copies from pageable memory at a fraction of the link's rate.
//
// Errors: as in device_streams.h. Threading: any thread may call, and waits until no other is inside.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "core/thread_annotations.h"
#include "core/units.h"
#include "executor/accelerator.h"
#include "executor/device_streams.h"

namespace tencache {

struct HostLoaderOptions {
  unsigned threads = 0;           // that copy; 0: up to 8, one fewer than this computer has
  Bytes ring_bytes = 128 * MiB;   // half of it fills while half of it is copied on
  Bytes part_bytes = 512 * KiB;   // that a thread copies at a time
  Bytes upload_bytes = 16 * MiB;  // at most, of one copy to the accelerator
  // What a thread does with a part. Empty: it asks for the source's pages and copies.
  std::function<void(std::byte* to, const std::byte* from, Bytes bytes)> copy{};
};

// Threads that copy parts of one range, in order of their begins.
class CopyCrew {
 public:
  CopyCrew(unsigned threads, std::function<void(std::byte* to, const std::byte* from, Bytes bytes)> copy);
  ~CopyCrew();  // nothing is under way
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // Parts of `from`; `to` says where a part goes. One range at a time.
  void begin(const std::byte* from, Bytes bytes, Bytes part_bytes, std::function<std::byte*(std::size_t part)> to);
  // Parts below this may be copied: their destinations are free.
  void allow(std::size_t parts);
  // Waits until the part is copied, which is allowed; returns how many parts are, the first of which is the first one,
  // without a gap.
  std::size_t await(std::size_t part);
  // What is not begun is left out. Returns when nobody copies.
  void end();

 private:
  void work();

  const std::function<void(std::byte* to, const std::byte* from, Bytes bytes)> copy_;
  Mutex mutex_;
  Condition work_, done_;
  const std::byte* from_ TENCACHE_GUARDED_BY(mutex_) = nullptr;
  Bytes bytes_ TENCACHE_GUARDED_BY(mutex_) = 0, part_bytes_ TENCACHE_GUARDED_BY(mutex_) = 1;
  std::function<std::byte*(std::size_t part)> to_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<bool> copied_ TENCACHE_GUARDED_BY(mutex_);  // by part
  std::size_t next_ TENCACHE_GUARDED_BY(mutex_) = 0;      // part to copy
  std::size_t allowed_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::size_t reached_ TENCACHE_GUARDED_BY(mutex_) = 0;  // all before it are copied
  std::size_t busy_ TENCACHE_GUARDED_BY(mutex_) = 0;     // threads
  bool closing_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

class HostLoader {
 public:
  // The accelerator outlives this. Threads and ring are made at the first use.
  explicit HostLoader(Accelerator& accelerator, HostLoaderOptions options = {});
  ~HostLoader();  // waits for copies
  HostLoader(const HostLoader&) = delete;
  HostLoader& operator=(const HostLoader&) = delete;

  // To the accelerator, on the program's stream. Nobody reads `from` any more when it returns; the stream may still be
  // about to copy.
  void upload(DeviceStream stream, std::byte* device, const std::byte* from, Bytes bytes);
  // Within the host's memory; it is over when this returns.
  void copy(std::byte* to, const std::byte* from, Bytes bytes);

 private:
  struct UnderWay {
    DeviceEvent event = nullptr;
    std::size_t parts = 0;
  };

  void open() TENCACHE_REQUIRES(mutex_);
  void open_ring() TENCACHE_REQUIRES(mutex_);
  void release_oldest() TENCACHE_REQUIRES(mutex_);
  void give(CopyEngine& engine, DeviceStream stream, std::byte* device, std::size_t first, Bytes bytes)
      TENCACHE_REQUIRES(mutex_);
  std::byte* slot(std::size_t number) const { return ring_ + number % slots_ * options_.part_bytes; }

  Accelerator& accelerator_;
  const HostLoaderOptions options_;
  const std::size_t slots_;
  Mutex mutex_;  // of whoever is inside
  std::unique_ptr<CopyCrew> crew_ TENCACHE_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceStreams> streams_ TENCACHE_GUARDED_BY(mutex_);
  std::byte* ring_ = nullptr;
  bool pinned_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::deque<UnderWay> under_way_ TENCACHE_GUARDED_BY(mutex_);  // in the order of their slots
  std::size_t given_ TENCACHE_GUARDED_BY(mutex_) = 0;           // slots, ever
  std::size_t free_ TENCACHE_GUARDED_BY(mutex_) = 0;            // slots below this are not read any more
};

}  // namespace tencache
