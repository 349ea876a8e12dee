// A file in memory mapped once more, in segments that are locked for an accelerator's copies as they come into use.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/units.h"
#include "executor/accelerator.h"
#include "executor/extent_allocator.h"

namespace tencache {

class PinnedSegments {
 public:
  // Without an accelerator there are none. The file stays open; `tier` is for messages.
  PinnedSegments(std::shared_ptr<Accelerator> accelerator, std::string tier, int file, Bytes file_bytes);
  ~PinnedSegments();
  PinnedSegments(const PinnedSegments&) = delete;
  PinnedSegments& operator=(const PinnedSegments&) = delete;

  // The file is used up to there. Throws Error when the system refuses.
  void cover(Bytes used_bytes);
  // Appends where the first `bytes` of the extent lie; they are covered.
  void locate(const Extent& extent, Bytes bytes, std::vector<HostPiece>& pieces) const;
  // Why a segment could not be locked; empty if all of them are.
  const std::string& refusal() const { return refusal_; }

 private:
  Bytes bytes_of(std::size_t segment) const;

  std::shared_ptr<Accelerator> accelerator_;
  std::string tier_;
  int file_;
  Bytes file_bytes_;
  std::vector<std::byte*> segments_;
  std::vector<bool> pinned_;  // by segment
  std::string refusal_;
};

}  // namespace tencache
