#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "executor/calibrate.h"
#include "executor/chunk_memory.h"
#include "executor/clock.h"
#include "executor/swap_file.h"

namespace tencache {
namespace {

// What a rate is of, as much as a quarter of the files.
constexpr Bytes largest_sample = 32 * MiB, smallest_sample = 1 * MiB;

// The blocks of a segment, none larger than `block_bytes`.
std::vector<FileBlock> split(const std::vector<FileBlock>& blocks, Bytes block_bytes) {
  std::vector<FileBlock> result;
  for (const FileBlock& block : blocks) {
    for (Bytes done = 0; done < block.bytes; done += block_bytes) {
      FileBlock part = block;
      part.offset += done;
      part.begin += done;
      part.bytes = std::min(block_bytes, block.bytes - done);
      result.push_back(part);
    }
  }
  return result;
}

bool go_on(Bytes) { return true; }

// One thread's reads or writes, segment after segment, from one end of the files to the other and round again.
class Stream {
 public:
  Stream(const SwapFiles& files, Bytes bytes, Bytes sample_bytes, Bytes block_bytes, std::uint32_t queue_depth,
         bool write, Bytes begin)
      : files_(files),
        bytes_(bytes),
        sample_bytes_(sample_bytes),
        block_bytes_(block_bytes),
        write_(write),
        at_(begin),
        lane_(files, queue_depth),
        buffer_(aligned_buffer(sample_bytes_, std::byte{0x5a})) {}

  // Moves the next segment; returns its bytes per second.
  double move() {
    const std::vector<FileBlock> blocks = split(files_.blocks(measured_tensor, at_, sample_bytes_), block_bytes_);
    at_ = at_ + 2 * sample_bytes_ > bytes_ ? 0 : at_ + sample_bytes_;
    const Nanoseconds start_ns = clock_ns();
    if (write_) {
      lane_.write(blocks, buffer_.get(), go_on);
    } else {
      lane_.read(blocks, buffer_.get(), go_on);
    }
    return static_cast<double>(sample_bytes_) * 1e9 /
           static_cast<double>(std::max<Nanoseconds>(clock_ns() - start_ns, 1));
  }

  MeasuredMedian rate(Nanoseconds time_ns) {
    std::vector<double> rates;
    for (const Nanoseconds end_ns = clock_ns() + time_ns; rates.size() < 3 || clock_ns() < end_ns;) {
      rates.push_back(move());
    }
    return measured_median(std::move(rates));
  }

 private:
  const SwapFiles& files_;
  Bytes bytes_, sample_bytes_, block_bytes_;
  bool write_;
  Bytes at_;
  FileLane lane_;
  AlignedBuffer buffer_;
};

// Both together, in five parts.
MeasuredMedian mixed_rate(Stream& reader, Stream& writer, Bytes sample_bytes, Nanoseconds time_ns) {
  std::vector<double> rates;
  for (int part = 0; part < 5; part++) {
    std::atomic<std::uint64_t> moved = 0;
    std::exception_ptr failure;
    const Nanoseconds start_ns = clock_ns(), end_ns = start_ns + time_ns / 5;
    std::thread other([&] {
      try {
        for (; clock_ns() < end_ns; moved++) writer.move();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    std::exception_ptr own_failure;
    try {
      for (; clock_ns() < end_ns; moved++) reader.move();
    } catch (...) {
      own_failure = std::current_exception();
    }
    other.join();
    if (failure || own_failure) std::rethrow_exception(failure ? failure : own_failure);
    rates.push_back(static_cast<double>(moved * sample_bytes) * 1e9 / static_cast<double>(clock_ns() - start_ns));
  }
  return measured_median(std::move(rates));
}

}  // namespace

std::vector<FileRate> time_files(const Tier& tier, Bytes bytes, bool quick) {
  const Bytes sample_bytes = std::clamp(bytes / 4 / MiB * MiB, smallest_sample, largest_sample);
  bytes = std::max<Bytes>(bytes / sample_bytes, 4) * sample_bytes;
  Tier measured = tier;
  measured.capacity = bytes + sample_bytes * tier.directories.size();
  SwapFiles files(measured);
  for (Bytes begin = 0; begin < bytes; begin += sample_bytes) files.take(measured_tensor, begin, sample_bytes);
  const SwapFileOptions usual = files.options();
  {
    Stream first(files, bytes, sample_bytes, usual.block_bytes, usual.queue_depth, true, 0);
    for (Bytes begin = 0; begin < bytes; begin += sample_bytes) first.move();  // blocks that exist can be read
  }
  std::vector<Bytes> blocks = {64 * KiB, 256 * KiB, usual.block_bytes};
  std::vector<std::uint32_t> depths = {1, usual.queue_depth, 16};
  if (quick) blocks = {usual.block_bytes}, depths = {usual.queue_depth};
  const Nanoseconds time_ns = quick ? 200'000'000 : 500'000'000;
  std::vector<FileRate> rates;
  for (const Bytes block : blocks) {
    for (const std::uint32_t depth : depths) {
      Stream reader(files, bytes, sample_bytes, block, depth, false, 0);
      Stream writer(files, bytes, sample_bytes, block, depth, true, bytes / sample_bytes / 2 * sample_bytes);
      FileRate& rate = rates.emplace_back();
      rate.block_bytes = block;
      rate.queue_depth = depth;
      rate.read = reader.rate(time_ns);
      rate.write = writer.rate(time_ns);
      rate.mixed = mixed_rate(reader, writer, sample_bytes, time_ns);
    }
  }
  return rates;
}

}  // namespace tencache
