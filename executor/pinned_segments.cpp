#include "executor/pinned_segments.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

constexpr Bytes segment_bytes = 256 * MiB;

}  // namespace

PinnedSegments::PinnedSegments(std::shared_ptr<Accelerator> accelerator, std::string tier, int file, Bytes file_bytes)
    : accelerator_(std::move(accelerator)), tier_(std::move(tier)), file_(file), file_bytes_(file_bytes) {}

PinnedSegments::~PinnedSegments() {
  for (std::size_t i = 0; i < segments_.size(); i++) {
    if (pinned_[i]) accelerator_->unpin(segments_[i]);
    ::munmap(segments_[i], bytes_of(i));
  }
}

Bytes PinnedSegments::bytes_of(std::size_t segment) const {
  return std::min(segment_bytes, file_bytes_ - segment * segment_bytes);
}

void PinnedSegments::cover(Bytes used_bytes) {
  if (accelerator_ == nullptr) return;
  while (segments_.size() * segment_bytes < used_bytes) {
    const Bytes bytes = bytes_of(segments_.size());
    const auto offset = static_cast<off_t>(segments_.size() * segment_bytes);
    void* segment = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
    if (segment == MAP_FAILED) {
      throw Error("tier '" + tier_ + "': cannot map " + format_bytes(bytes) + " for copies: " + std::strerror(errno));
    }
    segments_.push_back(static_cast<std::byte*>(segment));
    pinned_.push_back(false);
    // What was refused once is refused again.
    pinned_.back() = refusal_.empty() && accelerator_->pin(segments_.back(), bytes, refusal_);
  }
}

void PinnedSegments::locate(const Extent& extent, Bytes bytes, std::vector<HostPiece>& pieces) const {
  bytes = std::min(bytes, extent.bytes);
  for (Bytes done = 0; done < bytes;) {
    const Bytes offset = extent.offset + done;
    const Bytes part = std::min(bytes - done, segment_bytes - offset % segment_bytes);
    pieces.push_back({segments_[offset / segment_bytes] + offset % segment_bytes, part});
    done += part;
  }
}

}  // namespace tencache
