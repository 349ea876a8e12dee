#include "tests/live/arena_case.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "core/error.h"
#include "executor/chunk_memory.h"

namespace tencache {
namespace {

constexpr Bytes unit = movable_unit;
constexpr const char *event_fails = "cuEventRecord", *copy_fails = "cuMemcpyHtoDAsync";

class ArenaUser {
 public:
  ArenaUser(Accelerator& accelerator, Random& random, Bytes capacity, const UserTrouble& trouble)
      : random_(random),
        trouble_(trouble),
        range_(accelerator.range("gpu", capacity)),
        engine_(accelerator.copy_engine()),
        capacity_(capacity),
        expected_(capacity) {
    for (Bytes done = 0; done < capacity_;) {
      const Bytes part = std::min(capacity_ - done, unit * random_.between(1, 32));
      upload(done, part);
      done += part;
    }
    filled_ = true;
  }
  ~ArenaUser() { engine_.reset(); }  // "waits for what was started", before the host's ends go
  ArenaUser(const ArenaUser&) = delete;
  ArenaUser& operator=(const ArenaUser&) = delete;

  std::string step() {
    const Bytes bytes = random_.between(1, capacity_ / 2);
    const Bytes from = place(bytes), to = random_.one_in(2) ? place(bytes) : near(from, bytes);
    switch (random_.below(5)) {
      case 0:
        upload(from, bytes);
        return "";
      case 1:
        download(from, bytes);
        return "";
      case 2:
        return finish();
      default:
        engine_->move(range_->begin() + from, range_->begin() + to, bytes);
        std::memmove(expected_.data() + to, expected_.data() + from, bytes);
        return "";
    }
  }
  std::string finish() {
    download(0, capacity_);
    engine_->wait(0);
    std::string wrong;
    for (const Download& copy : downloads_) {
      if (std::memcmp(copy.host.get(), copy.expected.data(), copy.expected.size()) != 0) {
        wrong = "a range of the GPU has other bytes than were put and moved there";
      }
    }
    downloads_.clear();
    uploads_.clear();
    return wrong;
  }

 private:
  struct Download {
    AlignedBuffer host;
    std::vector<std::byte> expected;
  };

  Bytes place(Bytes bytes) { return random_.below((capacity_ - bytes) / unit + 1) * unit; }
  // A few units away.
  Bytes near(Bytes from, Bytes bytes) {
    const Bytes far = unit * random_.between(1, 3);
    return random_.one_in(2) && from >= far ? from - far : from + far + bytes <= capacity_ ? from + far : from;
  }
  void upload(Bytes at, Bytes bytes) {
    uploads_.push_back(aligned_buffer(bytes, std::byte{0}));
    std::byte* host = uploads_.back().get();
    std::generate_n(host, bytes, [&] { return static_cast<std::byte>(random_.below(256)); });
    range_->cover(at, bytes);
    const DeviceCopy copy{range_->begin() + at, host, bytes};
    const char* fails = filled_ && trouble_.fail && random_.one_in(4) ? draw_failure() : nullptr;
    try {
      if (fails != nullptr) trouble_.fail(fails);
      engine_->upload({&copy, 1});
    } catch (const Error&) {
      if (fails == nullptr) throw;
      // What was started is over, so that nobody reads this any more.
      std::vector<std::byte> given(host, host + bytes);
      std::fill_n(host, bytes, std::byte{0x77});
      if (fails == event_fails) std::ranges::copy(given, expected_.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    }
    std::memcpy(expected_.data() + at, host, bytes);
  }
  const char* draw_failure() { return random_.one_in(2) ? event_fails : copy_fails; }
  void download(Bytes at, Bytes bytes) {
    const std::byte* first = expected_.data() + at;
    downloads_.push_back({aligned_buffer(bytes, std::byte{0}), {first, first + bytes}});
    const DeviceCopy copy{range_->begin() + at, downloads_.back().host.get(), bytes};
    engine_->download({&copy, 1});
  }

  Random& random_;
  const UserTrouble& trouble_;
  bool filled_ = false;
  std::unique_ptr<DeviceRange> range_;
  std::unique_ptr<CopyEngine> engine_;
  Bytes capacity_;
  std::vector<std::byte> expected_;
  std::deque<AlignedBuffer> uploads_;
  std::deque<Download> downloads_;
};

}  // namespace

void make_arena(RandomCase& made, Bytes page) {
  Tier& gpu = made.machine.tiers[0];
  gpu.allocator = AllocatorKind::movable;
  gpu.granularity = movable_unit;
  gpu.capacity = round_up(gpu.capacity, page);
}

std::string use_arena(Accelerator& accelerator, Random& random, Bytes capacity, const UserTrouble& trouble) {
  ArenaUser user(accelerator, random, capacity, trouble);
  for (std::uint64_t steps = random.between(4, 40); steps > 0; --steps) {
    if (random.one_in(3)) trouble.interfere();
    if (std::string wrong = user.step(); !wrong.empty()) return wrong;
  }
  return user.finish();
}

}  // namespace tencache
