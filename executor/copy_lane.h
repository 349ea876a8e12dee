// Moves the bytes of one link, one copy at a time, no faster than the link.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "executor/accelerator_lane.h"
#include "executor/hidden_pages.h"
#include "executor/host_share.h"
#include "executor/swap_file.h"

namespace tencache {

// A copy with its places resolved: between two pieces of memory, or between memory and blocks of a file.
struct CopyWork {
  enum class Kind : std::uint8_t { memory, upload, download, file_read, file_write };
  Kind kind = Kind::memory;
  bool on_accelerator = false;      // file_read and file_write: `to` or `from` is the accelerator's memory
  bool whole_pages = true;          // and its pages, of 4 KiB, are of nobody else
  const std::byte* from = nullptr;  // unused by file_read
  std::byte* to = nullptr;          // unused by file_write
  Bytes bytes = 0;
  std::vector<FileBlock> blocks;
  std::vector<HostPiece> pieces;                  // upload and download: the host's end
  std::shared_ptr<HiddenPages> hidden = nullptr;  // shown at their addresses once the copy is over
};

// Whether a link keeps to its bandwidth and latency. If ranks share what it uses (HostShare), its bandwidth is its part
// of that, from moment to moment.
struct CopyPace {
  CopyPace(bool on, HostShare* share = nullptr, LinkId link = no_link)  // NOLINT: a bool is one
      : on(on), share(on && share != nullptr && share->shares(link) ? share : nullptr), link(link) {}
  bool on;
  HostShare* share;
  LinkId link;
};

// Used by one thread.
class CopyLane {
 public:
  // `files`: of the tier of kind nvme at one end of the link, or nullptr; `accelerator`: whose memory is at one end, or
  // nullptr.
  CopyLane(const Link& link, const CopyPace& pace, const SwapFiles* files, Accelerator* accelerator = nullptr);

  // Copies. Paced, it returns no earlier than start_ns + latency + bytes / bandwidth, and the bytes come spread over
  // that time. False when `cancelled` turned true in time; the destination's content is then undefined. Throws Error on
  // failures of the disk.
  bool run(const CopyWork& work, Nanoseconds start_ns, const std::atomic<bool>& cancelled);
  // When a transfer that starts then ends, by the link's own figures.
  Nanoseconds end_ns(Nanoseconds start_ns, Bytes bytes) const;
  // When the last one, which was paced, should have ended.
  Nanoseconds due_ns() const { return due_ns_; }
  bool paced() const { return pace_.on; }
  // Why files do not reach the accelerator directly; empty if they do, or if the link has no files or no accelerator.
  std::string indirect_reason() const {
    return files_ == nullptr || accelerator_ == nullptr ? "" : accelerator_->indirect_reason();
  }
  // Why files are read and written the slower way; empty if they are not.
  std::string fallback_reason() const { return files_ == nullptr ? "" : files_->fallback_reason(); }

 private:
  bool copy(const CopyWork& work, Nanoseconds start_ns, const std::atomic<bool>& cancelled);
  bool progress(Nanoseconds start_ns, Bytes done, bool last, const std::atomic<bool>& cancelled);

  Link link_;
  CopyPace pace_;
  Nanoseconds due_ns_ = 0;  // what is copied so far: `due_bytes_`
  Bytes due_bytes_ = 0;
  std::unique_ptr<FileLane> files_;
  std::unique_ptr<AcceleratorLane> accelerator_;
};

}  // namespace tencache
