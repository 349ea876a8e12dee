#include "executor/staging_buffers.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/check.h"
#include "core/error.h"
#include "executor/chunk_memory.h"

namespace tencache {

StagingBuffers::StagingBuffers(const MachineSpec& spec, Accelerator* accelerator)
    : count_(spec.staging.count), buffer_bytes_(spec.staging.bytes), accelerator_(accelerator) {
  if (count_ == 0) return;
  stride_ = round_up(buffer_bytes_, page_bytes);
  const Bytes bytes = stride_ * count_;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(spec.file, 0,
                "staging: " + format_bytes(bytes) + " of buffers: " + std::strerror(errno) +
                    "; lower the staging count or bytes");
  }
  memory_ = static_cast<std::byte*>(memory);
  if (accelerator_ != nullptr) {
    std::string reason;  // of CPU memory, too, and said there
    pinned_ = accelerator_->pin(memory_, bytes, reason);
  }
  locked_ = pinned_ || ::mlock(memory, bytes) == 0;
  if (locked_) return;
  const std::string reason = std::strerror(errno);
  struct rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  std::fprintf(stderr,
               "tencache: the staging buffers, %s, are ordinary memory that the system may swap out: locking it failed "
               "(%s); the limit is %s (ulimit -l)\n",
               format_bytes(bytes).c_str(), reason.c_str(), format_bytes(limit.rlim_cur).c_str());
}

StagingBuffers::~StagingBuffers() {
  if (pinned_) accelerator_->unpin(memory_);
  if (memory_ != nullptr) ::munmap(memory_, stride_ * count_);
}

std::byte* StagingBuffers::address(std::uint64_t first, Bytes bytes) const {
  TENCACHE_CHECK(memory_ != nullptr && first + (bytes + buffer_bytes_ - 1) / buffer_bytes_ <= count_);
  return memory_ + first * stride_;
}

std::string StagingBuffers::describe() const {
  if (memory_ == nullptr) return {};
  return "staging: " + std::to_string(count_) + " × " + format_bytes(buffer_bytes_) +
         (locked_ ? ", locked\n" : ", not locked (RLIMIT_MEMLOCK)\n");
}

}  // namespace tencache
