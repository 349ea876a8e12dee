#include "executor/host_loader.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

constexpr unsigned most_threads = 8;

void copy_part(std::byte* to, const std::byte* from, Bytes bytes) {
#ifdef MADV_POPULATE_READ
  // A fault for each page of a mapped file costs more than asking for all of them; where it is refused, they come.
  const auto begin = reinterpret_cast<std::uintptr_t>(from) / page_bytes * page_bytes;
  const auto end = round_up(reinterpret_cast<std::uintptr_t>(from) + bytes, page_bytes);
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ));
#endif
  std::memcpy(to, from, bytes);
}

unsigned threads_here() {
  const unsigned cores = std::thread::hardware_concurrency();
  return std::clamp(cores - std::min(cores, 1u), 1u, most_threads);
}

}  // namespace

// ---- CopyCrew -------------------------------------------------------------------------------------------------------

CopyCrew::CopyCrew(unsigned threads, std::function<void(std::byte* to, const std::byte* from, Bytes bytes)> copy)
    : copy_(std::move(copy)) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

CopyCrew::~CopyCrew() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CopyCrew::begin(const std::byte* from, Bytes bytes, Bytes part_bytes,
                     std::function<std::byte*(std::size_t part)> to) {
  const MutexLock lock(mutex_);
  from_ = from;
  bytes_ = bytes;
  part_bytes_ = part_bytes;
  to_ = std::move(to);
  copied_.assign((bytes + part_bytes - 1) / part_bytes, false);
  next_ = allowed_ = reached_ = 0;
}

void CopyCrew::allow(std::size_t parts) {
  const MutexLock lock(mutex_);
  allowed_ = std::min(parts, copied_.size());
  if (next_ < allowed_) work_.notify_all();
}

std::size_t CopyCrew::await(std::size_t part) {
  MutexLock lock(mutex_);
  TENCACHE_CHECK(part < allowed_);
  while (reached_ <= part) done_.wait(lock);
  return reached_;
}

void CopyCrew::end() {
  MutexLock lock(mutex_);
  next_ = allowed_ = 0;
  while (busy_ > 0) done_.wait(lock);
}

void CopyCrew::work() {
  MutexLock lock(mutex_);
  while (true) {
    while (!closing_ && next_ >= allowed_) work_.wait(lock);
    if (closing_) return;
    const std::size_t part = next_++;
    const Bytes begin = part * part_bytes_, bytes = std::min(part_bytes_, bytes_ - begin);
    const std::byte* from = from_ + begin;
    std::byte* to = to_(part);
    ++busy_;
    lock.unlock();
    copy_(to, from, bytes);
    lock.lock();
    --busy_;
    copied_[part] = true;
    const std::size_t before = reached_;
    while (reached_ < copied_.size() && copied_[reached_]) ++reached_;
    if (reached_ != before || busy_ == 0) done_.notify_all();
  }
}

// ---- HostLoader -----------------------------------------------------------------------------------------------------

HostLoader::HostLoader(Accelerator& accelerator, HostLoaderOptions options)
    : accelerator_(accelerator), options_(std::move(options)), slots_(options_.ring_bytes / options_.part_bytes) {
  TENCACHE_CHECK(options_.part_bytes % page_bytes == 0 && slots_ >= 2);
}

HostLoader::~HostLoader() {
  const MutexLock lock(mutex_);
  try {
    while (!under_way_.empty()) release_oldest();
  } catch (...) {  // the device is gone, and what it was given with it
    for (const UnderWay& copy : under_way_) streams_->let_go(copy.event);
  }
  crew_.reset();
  if (ring_ == nullptr) return;
  if (pinned_) accelerator_.unpin(ring_);
  ::munmap(ring_, slots_ * options_.part_bytes);
}

void HostLoader::open() {
  if (crew_ != nullptr) return;
  crew_ = std::make_unique<CopyCrew>(options_.threads != 0 ? options_.threads : threads_here(),
                                     options_.copy ? options_.copy : copy_part);
}

void HostLoader::open_ring() {
  if (ring_ != nullptr) return;
  const Bytes bytes = slots_ * options_.part_bytes;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw Error(std::string("buffers for loading: ") + std::strerror(errno));
  ring_ = static_cast<std::byte*>(memory);
  free_ = slots_;
  streams_ = accelerator_.streams();
  std::string reason;  // copies are slower then, which has been said of CPU memory
  pinned_ = accelerator_.pin(ring_, bytes, reason);
}

void HostLoader::release_oldest() {
  const UnderWay oldest = under_way_.front();
  TENCACHE_ORDER_SITE("wait", streams_->await(oldest.event));
  under_way_.pop_front();
  streams_->let_go(oldest.event);
  free_ += oldest.parts;
}

// Whatever fails, what was started is waited for.
void HostLoader::give(CopyEngine& engine, DeviceStream stream, std::byte* device, std::size_t first, Bytes bytes) {
  const DeviceCopy copy{device, slot(first), bytes};
  UnderWay made{nullptr, (bytes + options_.part_bytes - 1) / options_.part_bytes};
  try {
    TENCACHE_ORDER_PAIR("copy, event", engine.upload({&copy, 1}), made.event = streams_->record(stream));
  } catch (...) {
    TENCACHE_ORDER_SITE("wait", streams_->await_stream(stream));
    throw;
  }
  given_ += made.parts;
  under_way_.push_back(made);
}

void HostLoader::upload(DeviceStream stream, std::byte* device, const std::byte* from, Bytes bytes) {
  if (bytes == 0) return;
  const MutexLock lock(mutex_);
  open();
  open_ring();
  const std::unique_ptr<CopyEngine> engine = streams_->copies_on(stream);
  const Bytes part_bytes = options_.part_bytes;
  const std::size_t parts = (bytes + part_bytes - 1) / part_bytes;
  const std::size_t most = std::max<std::size_t>(1, options_.upload_bytes / part_bytes);
  const std::size_t base = given_;
  crew_->begin(from, bytes, part_bytes, [this, base](std::size_t part) { return slot(base + part); });
  try {
    for (std::size_t part = 0; part < parts;) {
      // At least half of the ring is free for the crew.
      while (given_ - (free_ - slots_) > slots_ / 2) release_oldest();
      crew_->allow(free_ - base);
      const std::size_t copied = crew_->await(part);
      // In one piece of the ring.
      const std::size_t end = std::min({copied, part + most, part + slots_ - (base + part) % slots_});
      const Bytes begin = part * part_bytes;
      give(*engine, stream, device + begin, base + part, std::min(end * part_bytes, bytes) - begin);
      part = end;
    }
  } catch (...) {
    crew_->end();
    throw;
  }
}

void HostLoader::copy(std::byte* to, const std::byte* from, Bytes bytes) {
  if (bytes == 0) return;
  const MutexLock lock(mutex_);
  open();
  const Bytes part_bytes = options_.part_bytes;
  const std::size_t parts = (bytes + part_bytes - 1) / part_bytes;
  crew_->begin(from, bytes, part_bytes, [to, part_bytes](std::size_t part) { return to + part * part_bytes; });
  crew_->allow(parts);
  crew_->await(parts - 1);
}

}  // namespace tencache
