#include "executor/accelerator_lane.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

constexpr Bytes largest_direct = 16 * MiB;  // what GPUDirect Storage moves at once; between two it can be stopped

// The blocks of a transfer in groups that fit into a buffer, their positions counted from the group's begin.
struct Group {
  Bytes begin = 0;  // in the chunk
  Bytes bytes = 0;  // of the chunk
  std::vector<FileBlock> blocks;
};

std::vector<Group> groups_of(const std::vector<FileBlock>& blocks, Bytes bytes, Bytes buffer_bytes) {
  std::vector<Group> groups;
  for (FileBlock block : blocks) {
    TENCACHE_CHECK(block.bytes <= buffer_bytes);
    if (groups.empty() || block.begin + block.bytes - groups.back().begin > buffer_bytes) {
      groups.push_back({block.begin, 0, {}});
    }
    Group& group = groups.back();
    group.bytes = std::min(block.begin + block.bytes, bytes) - group.begin;
    block.begin -= group.begin;
    group.blocks.push_back(block);
  }
  return groups;
}

// Faults are made where the host moves blocks.
bool has_fault(const std::vector<FileBlock>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(), [](const FileBlock& block) { return block.fault.has_value(); });
}

// Whichever way a transfer ends, nothing of it is under way any more.
class Settle {
 public:
  explicit Settle(CopyEngine& engine) : engine_(engine) {}
  ~Settle() {
    try {
      TENCACHE_ORDER_SITE("wait", engine_.wait(0));
    } catch (...) {  // the transfer has failed already, or the next one will say it
    }
  }
  Settle(const Settle&) = delete;
  Settle& operator=(const Settle&) = delete;

 private:
  CopyEngine& engine_;
};

}  // namespace

AcceleratorLane::AcceleratorLane(Accelerator& accelerator, Bytes largest_block, bool checksums,
                                 AcceleratorLaneSizes sizes)
    : accelerator_(accelerator), sizes_(sizes), engine_(accelerator.copy_engine()) {
  sizes_.buffer_bytes = std::max(sizes_.buffer_bytes, largest_block);
  if (checksums) {
    indirect_reason_ = "checksums are the processor's work";
  } else if (largest_block != 0) {
    direct_ = accelerator.direct_files(indirect_reason_);
  }
}

AcceleratorLane::~AcceleratorLane() {
  engine_.reset();
  if (buffers_ == nullptr) return;
  if (pinned_) accelerator_.unpin(buffers_);
  ::munmap(buffers_, sizes_.buffers * sizes_.buffer_bytes);
}

std::byte* AcceleratorLane::buffer(std::size_t index) {
  if (buffers_ == nullptr) {
    const Bytes bytes = sizes_.buffers * sizes_.buffer_bytes;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) throw Error(std::string("buffers between files and the GPU: ") + std::strerror(errno));
    buffers_ = static_cast<std::byte*>(memory);
    std::string reason;  // unpinned they are slower, and that CPU memory cannot be pinned has been said
    pinned_ = accelerator_.pin(buffers_, bytes, reason);
  }
  return buffers_ + index % sizes_.buffers * sizes_.buffer_bytes;
}

bool AcceleratorLane::move(std::span<const HostPiece> host, std::byte* device, const Progress& progress,
                           const StartPart& start) {
  const Settle settle(*engine_);
  std::deque<Bytes> under_way;
  Bytes position = 0, arrived = 0, part_bytes = 0;
  const auto wait_for_first = [&] {
    TENCACHE_ORDER_SITE("wait", engine_->wait(under_way.size() - 1));
    arrived += under_way.front();
    under_way.pop_front();
    return progress(arrived);
  };
  const auto start_part = [&] {
    start(part_);
    part_.clear();
    under_way.push_back(std::exchange(part_bytes, 0));
    return under_way.size() <= sizes_.parts_in_flight || wait_for_first();
  };
  part_.clear();
  for (const HostPiece& piece : host) {
    for (Bytes done = 0; done < piece.bytes;) {
      const Bytes bytes = std::min(sizes_.part_bytes - part_bytes, piece.bytes - done);
      part_.push_back({device + position, piece.address + done, bytes});
      done += bytes;
      position += bytes;
      part_bytes += bytes;
      if (part_bytes == sizes_.part_bytes && !start_part()) return false;
    }
  }
  if (!part_.empty() && !start_part()) return false;
  while (!under_way.empty()) {
    if (!wait_for_first()) return false;
  }
  return true;
}

bool AcceleratorLane::upload(std::byte* device, std::span<const HostPiece> host, const Progress& progress) {
  return move(host, device, progress, [&](std::span<const DeviceCopy> part) { engine_->upload(part); });
}

bool AcceleratorLane::download(std::span<const HostPiece> host, const std::byte* device, const Progress& progress) {
  // Only read: a part has both ends' addresses, whichever way it goes.
  return move(host, const_cast<std::byte*>(device), progress,
              [&](std::span<const DeviceCopy> part) { engine_->download(part); });
}

std::string AcceleratorLane::indirect_reason() const {
  const MutexLock lock(reason_mutex_);
  return indirect_reason_;
}

// Block by block, neighbours in a file as one. `step` gets a descriptor, the offset in the file, the position in the
// chunk and bytes.
template <typename Move>
AcceleratorLane::Direct AcceleratorLane::move_directly(const FileLane& files, const std::vector<FileBlock>& blocks,
                                                       Bytes bytes, const Progress& progress, const Move& step) {
  const SwapFiles& of = files.files();
  std::string reason;
  for (std::size_t i = 0; i < blocks.size();) {
    FileBlock all = blocks[i];
    for (++i; i < blocks.size() && blocks[i].file == all.file && blocks[i].offset == all.offset + all.bytes &&
              all.bytes + blocks[i].bytes <= largest_direct;
         ++i) {
      all.bytes += blocks[i].bytes;
    }
    reason = of.direct(all.file) ? step(of.descriptor(all.file), all.offset, all.begin, all.bytes)
                                 : "O_DIRECT is refused in " + of.directory(all.file);
    if (!reason.empty()) break;
    const bool last = i == blocks.size();
    if (!progress(last ? bytes : all.begin + all.bytes)) return Direct::stopped;
  }
  if (reason.empty()) return Direct::done;
  direct_.reset();
  std::fprintf(stderr, "tencache: files reach the GPU through the host's memory from here on: %s\n", reason.c_str());
  const MutexLock lock(reason_mutex_);
  indirect_reason_ = reason;
  return Direct::failed;
}

bool AcceleratorLane::read(FileLane& files, const std::vector<FileBlock>& blocks, std::byte* device, Bytes bytes,
                           bool whole_pages, const Progress& progress) {
  if (direct_ != nullptr && whole_pages && !has_fault(blocks)) {
    const Direct result =
        move_directly(files, blocks, bytes, progress, [&](int descriptor, Bytes offset, Bytes position, Bytes count) {
          return direct_->read(descriptor, offset, device + position, count);
        });
    if (result != Direct::failed) return result == Direct::done;
  }
  const std::vector<Group> groups = groups_of(blocks, bytes, sizes_.buffer_bytes);
  const Settle settle(*engine_);
  for (std::size_t i = 0; i < groups.size(); i++) {
    const Group& group = groups[i];
    std::byte* between = buffer(i);
    TENCACHE_ORDER_SITE("wait", engine_->wait(sizes_.buffers - 1));  // what was uploaded from this buffer has left it
    const bool last = i + 1 == groups.size();
    const Progress filled = [&](Bytes done) {
      return last && done >= group.bytes ? true : progress(group.begin + done);  // that all is there is said below
    };
    if (!files.read(group.blocks, between, filled)) return false;
    engine_->upload({{{device + group.begin, between, group.bytes}}});
  }
  TENCACHE_ORDER_SITE("wait", engine_->wait(0));
  return progress(bytes);
}

bool AcceleratorLane::write(FileLane& files, const std::vector<FileBlock>& blocks, const std::byte* device, Bytes bytes,
                            bool whole_pages, const Progress& progress) {
  if (direct_ != nullptr && whole_pages && !has_fault(blocks)) {
    const Direct result =
        move_directly(files, blocks, bytes, progress, [&](int descriptor, Bytes offset, Bytes position, Bytes count) {
          return direct_->write(descriptor, offset, device + position, count);
        });
    if (result != Direct::failed) return result == Direct::done;
  }
  const std::vector<Group> groups = groups_of(blocks, bytes, sizes_.buffer_bytes);
  const Settle settle(*engine_);
  std::size_t started = 0;
  for (std::size_t i = 0; i < groups.size(); i++) {
    // Into the buffers that were written to the file by now.
    for (; started < std::min(groups.size(), i + sizes_.buffers); ++started) {
      const Group& group = groups[started];
      engine_->download({{{const_cast<std::byte*>(device) + group.begin, buffer(started), group.bytes}}});
    }
    TENCACHE_ORDER_SITE("wait", engine_->wait(started - i - 1));
    const Progress written = [&](Bytes done) { return progress(groups[i].begin + done); };
    if (!files.write(groups[i].blocks, buffer(i), written)) return false;
  }
  return true;
}

}  // namespace tencache
