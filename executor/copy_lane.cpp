#include "executor/copy_lane.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "executor/clock.h"

namespace tencache {
namespace {

constexpr Bytes block_bytes = 256 * KiB;            // between two looks at the clock and at `cancelled`
constexpr Nanoseconds worth_sleeping_ns = 100'000;  // a lane this far ahead of its link lets others run

Nanoseconds time_of(Bytes bytes, BytesPerSecond bandwidth) {
  if (bandwidth >= unlimited) return 0;
  const auto scaled = static_cast<unsigned __int128>(bytes) * static_cast<unsigned __int128>(second_ns);
  return static_cast<Nanoseconds>((scaled + bandwidth - 1) / bandwidth);
}

}  // namespace

CopyLane::CopyLane(const Link& link, const CopyPace& pace, const SwapFiles* files, Accelerator* accelerator)
    : link_(link),
      pace_(pace),
      files_(files == nullptr ? nullptr : std::make_unique<FileLane>(*files)),
      accelerator_(accelerator == nullptr ? nullptr
                                          : std::make_unique<AcceleratorLane>(
                                                *accelerator, files == nullptr ? 0 : files->options().block_bytes,
                                                files != nullptr && files->checksums())) {}

Nanoseconds CopyLane::end_ns(Nanoseconds start_ns, Bytes bytes) const {
  return start_ns + link_.latency_ns + time_of(bytes, link_.bandwidth);
}

// After each block: waits while ahead of the link. Only the end is met exactly.
bool CopyLane::progress(Nanoseconds start_ns, Bytes done, bool last, const std::atomic<bool>& cancelled) {
  if (pace_.on) {
    due_ns_ = pace_.share == nullptr || done == 0 ? end_ns(start_ns, done)
                                                  : due_ns_ + time_of(done - due_bytes_, pace_.share->rate(pace_.link));
    due_bytes_ = done;
    if (last || due_ns_ - clock_ns() > worth_sleeping_ns) return wait_until(due_ns_, &cancelled);
  }
  return last || !cancelled.load(std::memory_order_relaxed);
}

bool CopyLane::run(const CopyWork& work, Nanoseconds start_ns, const std::atomic<bool>& cancelled) {
  if (!progress(start_ns, 0, false, cancelled)) return false;
  const HostShare::Copying copying(pace_.share, pace_.link);
  if (!copy(work, start_ns, cancelled)) return false;
  if (work.hidden != nullptr) show(*work.hidden);
  return true;
}

bool CopyLane::copy(const CopyWork& work, Nanoseconds start_ns, const std::atomic<bool>& cancelled) {
  if (work.kind == CopyWork::Kind::memory) {
    for (Bytes done = 0; done < work.bytes;) {
      const Bytes part = std::min(block_bytes, work.bytes - done);
      std::memcpy(work.to + done, work.from + done, part);
      done += part;
      if (!progress(start_ns, done, done == work.bytes, cancelled)) return false;
    }
    return true;
  }
  // Whole sectors move; the link is charged for the chunk's own bytes.
  const Progress after_block = [&](Bytes done) {
    return progress(start_ns, std::min(done, work.bytes), done >= work.bytes, cancelled);
  };
  switch (work.kind) {
    case CopyWork::Kind::upload:
      return accelerator_->upload(work.to, work.pieces, after_block);
    case CopyWork::Kind::download:
      return accelerator_->download(work.pieces, work.from, after_block);
    case CopyWork::Kind::file_read:
      if (work.on_accelerator)
        return accelerator_->read(*files_, work.blocks, work.to, work.bytes, work.whole_pages, after_block);
      return files_->read(work.blocks, work.to, after_block);
    case CopyWork::Kind::file_write:
      if (work.on_accelerator)
        return accelerator_->write(*files_, work.blocks, work.from, work.bytes, work.whole_pages, after_block);
      return files_->write(work.blocks, work.from, after_block);
    case CopyWork::Kind::memory:
      break;
  }
  TENCACHE_CHECK(false);
}

}  // namespace tencache
