#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "executor/calibrate.h"
#include "executor/chunk_memory.h"
#include "executor/clock.h"

namespace tencache {
namespace {

constexpr Bytes largest = 64 * MiB;

// Pages of this process, there for as long as the object lives.
class Pages {
 public:
  explicit Pages(Bytes bytes) : bytes_(bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory != MAP_FAILED) address_ = static_cast<unsigned char*>(memory);
  }
  ~Pages() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  bool lock() { return address_ != nullptr && ::mlock(address_, bytes_) == 0; }
  unsigned char* address() const { return address_; }

 private:
  Bytes bytes_;
  unsigned char* address_ = nullptr;
};

// Memory that the accelerator's copies reach; locked for it, unless that is refused.
class PinnedBuffer {
 public:
  PinnedBuffer(Accelerator& accelerator, Bytes bytes)
      : accelerator_(accelerator), memory_(aligned_buffer(bytes, std::byte{1})) {
    std::string refusal;
    pinned_ = accelerator.pin(memory_.get(), bytes, refusal);
  }
  ~PinnedBuffer() {
    if (pinned_) accelerator_.unpin(memory_.get());
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::byte* bytes() const { return memory_.get(); }

 private:
  Accelerator& accelerator_;
  AlignedBuffer memory_;
  bool pinned_ = false;
};

MeasuredMedian repeat(int repetitions, const auto& seconds) {
  std::vector<double> values;
  for (int i = 0; i < repetitions; i++) values.push_back(seconds());
  return measured_median(std::move(values));
}

// Pieces of 64 MiB one after the other, so that a piece has left the caches when it comes again.
MeasuredMedian copy_rate(const Pages& from, const Pages& to, Bytes bytes, int repetitions) {
  Bytes at = 0;
  return repeat(repetitions, [&] {
    const double seconds = seconds_of([&] { std::memcpy(to.address() + at, from.address() + at, bytes); });
    at = at + 2 * bytes > largest ? 0 : at + bytes;
    return static_cast<double>(bytes) / seconds;
  });
}

void time_mapping(MemoryCost& cost, int repetitions) {
  ChunkMemory memory("mapping", cost.bytes, page_bytes);
  memory.create(measured_tensor, cost.bytes);
  std::vector<double> map, unmap;
  for (int i = 0; i <= repetitions; i++) {
    const double mapped = seconds_of([&] { memory.map(measured_tensor, 0, cost.bytes, 0); });
    const double unmapped = seconds_of([&] { memory.unmap(measured_tensor, 0, cost.bytes); });
    if (i == 0) continue;  // its pages exist from here on
    map.push_back(mapped);
    unmap.push_back(unmapped);
  }
  cost.map = measured_median(std::move(map));
  cost.unmap = measured_median(std::move(unmap));
}

}  // namespace

std::vector<MemoryCost> time_memory(bool quick, std::vector<std::string>& not_measured) {
  const Pages from(largest), to(largest);
  Pages locked_from(largest), locked_to(largest);
  if (from.address() == nullptr || to.address() == nullptr) {
    not_measured.push_back("copies in memory: there is no room for 128 MiB");
    return {};
  }
  std::memset(from.address(), 1, largest);
  if (locked_from.address() != nullptr) std::memset(locked_from.address(), 1, largest);
  const bool locked = locked_from.lock() && locked_to.lock();
  if (!locked) {
    not_measured.push_back(std::string("locked (pinned) memory: mlock: ") + std::strerror(errno) +
                           "; raise the limit with ulimit -l");
  }
  std::vector<Bytes> sizes = {4 * KiB, 64 * KiB, 1 * MiB, 16 * MiB, 64 * MiB};
  if (quick) sizes = {64 * KiB, 16 * MiB};
  std::vector<MemoryCost> costs;
  for (const Bytes bytes : sizes) {
    MemoryCost& cost = costs.emplace_back();
    cost.bytes = bytes;
    const int repetitions = quick ? 7 : bytes > 1 * MiB ? 15 : 101;
    cost.pageable_copy = copy_rate(from, to, bytes, repetitions);
    cost.allocate = repeat(repetitions, [bytes] { return seconds_of([bytes] { const Pages fresh(bytes); }); });
    time_mapping(cost, repetitions);
    if (!locked) continue;
    cost.pinned_copy = copy_rate(locked_from, locked_to, bytes, repetitions);
    bool all_locked = true;
    const MeasuredMedian allocate_pinned = repeat(repetitions, [bytes, &all_locked] {
      return seconds_of([bytes, &all_locked] {
        Pages fresh(bytes);
        all_locked = fresh.lock() && all_locked;
      });
    });
    if (all_locked) {
      cost.allocate_pinned = allocate_pinned;
    } else {
      not_measured.push_back("allocating " + format_bytes(bytes) + " of locked memory; raise the limit with ulimit -l");
    }
  }
  return costs;
}

double time_matmul() {
  constexpr std::size_t n = 256;
  static std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f), c(n * n);
  std::fill(c.begin(), c.end(), 0.0f);
  return seconds_of([] {
    for (std::size_t i = 0; i < n; i++) {
      for (std::size_t k = 0; k < n; k++) {
        const float factor = a[i * n + k];
        for (std::size_t j = 0; j < n; j++) c[i * n + j] += factor * b[k * n + j];
      }
    }
  });
}

double time_triad() {
  constexpr std::size_t n = 64 * MiB / sizeof(float);
  static std::vector<float> a(n, 0.0f), b(n, 1.0f), c(n, 2.0f);
  return seconds_of([] {
    for (std::size_t i = 0; i < n; i++) a[i] = b[i] + 3.0f * c[i];
  });
}

std::vector<AcceleratorCost> time_accelerator(Accelerator& accelerator, bool quick) {
  std::vector<Bytes> sizes = {2 * MiB, 16 * MiB, 64 * MiB};
  if (quick) sizes = {16 * MiB};
  const int repetitions = quick ? 5 : 15;
  const std::unique_ptr<CopyEngine> engine = accelerator.copy_engine();
  std::vector<AcceleratorCost> costs;
  for (const Bytes size : sizes) {
    AcceleratorCost& cost = costs.emplace_back();
    const Bytes page = accelerator.granularity();
    cost.bytes = round_up(size, page);
    const std::unique_ptr<TierMemory> memory = accelerator.memory("calibration", cost.bytes, page, false);
    memory->create(measured_tensor, cost.bytes);
    std::vector<std::byte> host(cost.bytes, std::byte{1});  // ordinary memory
    std::vector<double> up, down, map, unmap;
    for (int i = 0; i <= repetitions; i++) {
      const double mapped = seconds_of([&] { memory->map(measured_tensor, 0, cost.bytes, 0); });
      std::byte* device = memory->address(measured_tensor);
      const double uploaded = seconds_of([&] {
        engine->upload({{{device, host.data(), cost.bytes}}});
        engine->wait(0);
      });
      const double downloaded = seconds_of([&] {
        engine->download({{{device, host.data(), cost.bytes}}});
        engine->wait(0);
      });
      const double unmapped = seconds_of([&] { memory->unmap(measured_tensor, 0, cost.bytes); });
      if (i == 0) continue;  // its physical memory exists from here on
      map.push_back(mapped);
      up.push_back(static_cast<double>(cost.bytes) / uploaded);
      down.push_back(static_cast<double>(cost.bytes) / downloaded);
      unmap.push_back(unmapped);
    }
    cost.map = measured_median(std::move(map));
    cost.pageable_h2d = measured_median(std::move(up));
    cost.pageable_d2h = measured_median(std::move(down));
    cost.unmap = measured_median(std::move(unmap));
  }
  return costs;
}

MeasuredMedian time_device_copy(Accelerator& accelerator, bool quick) {
  constexpr int queued = 8;                           // the way to the device and back counts little then
  const Bytes wanted = quick ? 64 * MiB : 256 * MiB;  // beyond its caches, where there is room
  const Bytes page = accelerator.granularity();
  const Bytes bytes = std::min(wanted, accelerator.free_bytes() / 4) / page * page;
  if (bytes == 0) return {};
  const std::unique_ptr<DeviceRange> range = accelerator.range("calibration", 2 * bytes);
  range->cover(0, 2 * bytes);
  const std::unique_ptr<CopyEngine> engine = accelerator.copy_engine();
  const auto rate = [&] {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < queued; i++) engine->move(range->begin(), range->begin() + bytes, bytes);
      engine->wait(0);
    });
    return 2.0 * queued * static_cast<double>(bytes) / seconds;
  };
  rate();
  return repeat(quick ? 3 : 15, rate);
}

std::vector<PageLockCost> time_page_locking(Accelerator& accelerator, bool quick,
                                            std::vector<std::string>& not_measured) {
  const Bytes bytes = quick ? 128 * MiB : 512 * MiB;
  std::vector<PageLockCost> costs;
  for (const unsigned threads : {1u, 8u}) {
    std::vector<double> touch, lock;
    for (int i = 0; i < (quick ? 3 : 7); ++i) {
      void* fresh = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      std::string reason = std::string("mmap: ") + std::strerror(errno);
      auto* const memory = static_cast<std::byte*>(fresh);
      bool locked = false;
      if (fresh != MAP_FAILED) {
        touch.push_back(static_cast<double>(bytes) / seconds_of([&] { make_pages(memory, bytes, threads); }));
        lock.push_back(static_cast<double>(bytes) /
                       seconds_of([&] { locked = accelerator.pin(memory, bytes, reason); }));
        if (locked) accelerator.unpin(memory);
        ::munmap(fresh, bytes);
      }
      if (!locked) {
        not_measured.push_back("page-locking: " + reason);
        return costs;
      }
    }
    costs.push_back({threads, measured_median(std::move(touch)), measured_median(std::move(lock))});
  }
  return costs;
}

QueuedCopies time_queued_copies(Accelerator& accelerator, const std::vector<Bytes>& sizes, int repetitions) {
  constexpr std::size_t most_queued = 64, least_queued = 4;
  const Bytes page = accelerator.granularity();
  const Bytes room = round_up(*std::ranges::max_element(sizes), page);
  const std::unique_ptr<TierMemory> memory = accelerator.memory("calibration", room, page, false);
  memory->create(measured_tensor, room);
  memory->map(measured_tensor, 0, room, 0);
  std::byte* const device = memory->address(measured_tensor);
  const PinnedBuffer host(accelerator, room);
  const std::unique_ptr<CopyEngine> engine = accelerator.copy_engine();
  // What a copy adds to a queue that holds others: the way to the device and back is the same for one copy and many.
  const auto time_one = [&](std::size_t queued, const auto& start) {
    const auto seconds = [&](std::size_t copies) {
      return seconds_of([&] {
        for (std::size_t i = 0; i < copies; i++) start();
        engine->wait(0);
      });
    };
    const double alone = seconds(1);
    return std::max(seconds(queued) - alone, 0.0) / static_cast<double>(queued - 1);
  };
  const auto time_all = [&](std::vector<CopyTime>& times, const auto& start) {
    for (const Bytes bytes : sizes) {
      const std::size_t queued = std::clamp<std::size_t>(256 * MiB / bytes, least_queued, most_queued);
      const MeasuredMedian time = repeat(repetitions, [&] { return time_one(queued, [&] { start(bytes); }); });
      times.push_back({bytes, std::llround(time.value * 1e9), time.spread});
    }
  };
  QueuedCopies copies;
  time_all(copies.h2d, [&](Bytes bytes) { engine->upload({{{device, host.bytes(), bytes}}}); });
  time_all(copies.d2h, [&](Bytes bytes) { engine->download({{{device, host.bytes(), bytes}}}); });
  memory->destroy(measured_tensor);
  return copies;
}

}  // namespace tencache
