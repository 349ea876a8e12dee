#include "tests/live/lane_case.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "executor/accelerator_lane.h"
#include "executor/chunk_memory.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

constexpr TensorId chunk = 3;
constexpr AcceleratorLaneSizes small = {
    .part_bytes = page_bytes / 2, .parts_in_flight = 2, .buffer_bytes = page_bytes, .buffers = 3};

class LaneUser {
 public:
  LaneUser(Accelerator& accelerator, Random& random, const std::string& folder)
      : accelerator_(accelerator),
        random_(random),
        bytes_(page_bytes * random.between(1, 8) - random.below(100)),
        memory_(accelerator.memory("gpu", 16 * page_bytes, page_bytes, false)),
        files_({"nvme", TierKind::nvme, MiB, page_bytes, {folder}},
               {.direct = false, .io_uring = false, .block_bytes = page_bytes}),
        file_lane_(files_),
        lane_(accelerator, page_bytes, false, small),
        host_(aligned_buffer(2 * bytes_, std::byte{0})) {
    memory_->create(chunk, bytes_);
    memory_->map(chunk, 0, bytes_, 0);
    files_.take(chunk, 0, bytes_);
    std::string reason;
    locked_ = accelerator_.pin(host_.get(), 2 * bytes_, reason);  // last: whatever throws before leaves nothing locked
  }
  ~LaneUser() {
    if (locked_) accelerator_.unpin(host_.get());
  }
  LaneUser(const LaneUser&) = delete;
  LaneUser& operator=(const LaneUser&) = delete;

  std::string step() {
    const std::string wrong = move();
    std::fill_n(host_.get(), 2 * bytes_, std::byte{0x33});  // its owner's again
    if (random_.one_in(3)) {
      memory_->unmap(chunk, 0, bytes_);
      memory_->map(chunk, 0, bytes_, 0);
      on_device_.reset();
    }
    return wrong;
  }

 private:
  std::string move() {
    std::byte* device = memory_->address(chunk);
    const std::vector<FileBlock> blocks = files_.blocks(chunk, 0, bytes_);
    std::uint64_t left = random_.one_in(2) ? ~std::uint64_t{0} : random_.below(10);
    std::optional<std::uint64_t> coming;  // the version that the device has when all of it is done
    bool too_early = false;
    const Progress progress = [&](Bytes done) {
      // The device's memory can be touched here: what is said to be done is there.
      if (coming && done >= bytes_ && find_difference(chunk, *coming, 0, {device, bytes_}, true) != unlimited) {
        too_early = true;
      }
      return left-- != 0;
    };
    switch (random_.below(4)) {
      case 0: {
        const std::vector<HostPiece> pieces = cut();
        ++version_;
        fill(pieces);
        on_device_.reset();
        coming = version_;
        if (lane_.upload(device, pieces, progress)) on_device_ = version_;
        break;
      }
      case 1: {
        const std::vector<HostPiece> pieces = cut();
        if (!lane_.download(pieces, device, progress)) return "";
        return on_device_ && !holds(pieces, *on_device_) ? "a copy from the GPU brought other bytes than were there"
                                                         : "";
      }
      case 2:
        in_file_.reset();
        if (lane_.write(file_lane_, blocks, device, bytes_, true, progress)) in_file_ = on_device_;
        return in_file_ && !holds_file(blocks) ? "a file was written with other bytes than were on the GPU" : "";
      default:
        on_device_.reset();
        coming = in_file_;
        if (lane_.read(file_lane_, blocks, device, bytes_, true, progress)) on_device_ = in_file_;
        break;
    }
    return too_early ? "a copy to the GPU was said to be done before it was" : "";
  }

  // The host's end: one piece, or some with gaps between them.
  std::vector<HostPiece> cut() {
    std::vector<HostPiece> pieces;
    Bytes done = 0, gap = 0;
    while (done < bytes_) {
      const Bytes part = std::min(bytes_ - done, random_.between(1, bytes_));
      pieces.push_back({host_.get() + done + gap, part});
      done += part;
      gap += random_.below((bytes_ - gap) / 2 + 1);
    }
    return pieces;
  }

  std::vector<std::byte> pattern(std::uint64_t version) const {
    std::vector<std::byte> content(bytes_);
    write_pattern(chunk, version, 0, content, true);
    return content;
  }

  void fill(const std::vector<HostPiece>& pieces) const {
    const std::vector<std::byte> content = pattern(version_);
    Bytes done = 0;
    for (const HostPiece& piece : pieces) {
      std::copy_n(content.data() + done, piece.bytes, piece.address);
      done += piece.bytes;
    }
  }

  bool holds(const std::vector<HostPiece>& pieces, std::uint64_t version) const {
    const std::vector<std::byte> content = pattern(version);
    Bytes done = 0;
    return std::ranges::all_of(pieces, [&](const HostPiece& piece) {
      const bool same = std::equal(piece.address, piece.address + piece.bytes, content.data() + done);
      done += piece.bytes;
      return same;
    });
  }

  bool holds_file(const std::vector<FileBlock>& blocks) {
    const AlignedBuffer buffer = aligned_buffer(bytes_, std::byte{0});
    file_lane_.read(blocks, buffer.get(), [](Bytes) { return true; });
    return find_difference(chunk, *in_file_, 0, {buffer.get(), bytes_}, true) == unlimited;
  }

  Accelerator& accelerator_;
  Random& random_;
  Bytes bytes_;
  std::unique_ptr<TierMemory> memory_;
  SwapFiles files_;
  FileLane file_lane_;
  AcceleratorLane lane_;
  AlignedBuffer host_;
  bool locked_ = false;
  std::uint64_t version_ = 0;
  std::optional<std::uint64_t> on_device_, in_file_;  // versions of the content, where it is defined
};

}  // namespace

std::string use_lanes(Accelerator& accelerator, Random& random, const std::string& folder) {
  LaneUser user(accelerator, random, folder);
  for (std::uint64_t steps = random.between(3, 30); steps > 0; --steps) {
    if (std::string wrong = user.step(); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace tencache
