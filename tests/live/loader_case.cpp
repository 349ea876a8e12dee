#include "tests/live/loader_case.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "executor/chunk_memory.h"
#include "executor/host_loader.h"

namespace tencache {
namespace {

HostLoaderOptions small_ring(Random& random) {
  HostLoaderOptions options;
  options.threads = static_cast<unsigned>(random.between(1, 3));
  options.part_bytes = page_bytes;
  options.ring_bytes = page_bytes * random.between(2, 6);
  options.upload_bytes = page_bytes * random.between(1, 3);
  return options;
}

class LoaderUser {
 public:
  LoaderUser(Accelerator& accelerator, Random& random, Bytes capacity,
             const std::function<void(const char* function)>& fail)
      : random_(random),
        fail_(fail),
        range_(accelerator.range("gpu", capacity)),
        streams_(accelerator.streams()),
        half_(capacity / 2),
        expected_(2 * half_) {
    range_->cover(0, capacity);
    for (std::optional<OwnStream>& stream : programs_) stream.emplace(streams_);
    loader_.emplace(accelerator, small_ring(random));
    for (const std::size_t stream : {0, 1}) upload(stream, 0, half_);
  }
  // Nothing reads or writes the host's memory any more, nor the range, when they go.
  ~LoaderUser() {
    loader_.reset();
    for (const std::optional<OwnStream>& stream : programs_) {
      try {
        streams_->await_stream(stream->get());
      } catch (...) {  // the device is gone
      }
    }
  }
  LoaderUser(const LoaderUser&) = delete;
  LoaderUser& operator=(const LoaderUser&) = delete;

  std::string step() {
    const std::size_t stream = random_.below(programs_.size());
    const Bytes bytes = random_.between(1, half_), at = random_.below(half_ - bytes + 1);
    switch (random_.below(5)) {
      case 0:
        return copy(bytes);
      case 1:
        if (fail_ && !fails_ && random_.one_in(2)) {
          fail_(random_.one_in(2) ? "cuEventRecord" : "cuMemcpyHtoDAsync");
          fails_ = true;
        }
        return "";
      case 2:
        download(stream, at, bytes);
        return "";
      default:
        upload(stream, at, bytes);
        return "";
    }
  }
  bool gives_up() const { return gives_up_; }
  std::string finish() {
    for (const std::size_t stream : {0, 1}) {
      download(stream, 0, half_);
      streams_->await_stream(programs_[stream]->get());
    }
    const bool same = std::ranges::all_of(downloads_, [](const Download& copy) {
      return std::memcmp(copy.host.get(), copy.expected.data(), copy.expected.size()) == 0;
    });
    return same ? "" : "a range of the GPU has other bytes than were loaded";
  }

 private:
  struct Download {
    AlignedBuffer host;
    std::vector<std::byte> expected;
  };

  void draw(std::span<std::byte> content) {
    std::ranges::generate(content, [&] { return static_cast<std::byte>(random_.below(256)); });
  }
  // Each stream has a half of the range.
  void upload(std::size_t stream, Bytes at, Bytes bytes) {
    std::vector<std::byte> source(bytes);
    draw(source);
    try {
      loader_->upload(programs_[stream]->get(), range_->begin() + stream * half_ + at, source.data(), bytes);
    } catch (const Error&) {
      if (!std::exchange(fails_, false)) throw;
      gives_up_ = random_.one_in(2);
      if (!gives_up_) upload(stream, 0, half_);
      return;
    }
    std::ranges::copy(source, expected_.begin() + static_cast<std::ptrdiff_t>(stream * half_ + at));
    std::ranges::fill(source, std::byte{0x77});
  }
  void download(std::size_t stream, Bytes at, Bytes bytes) {
    const std::byte* first = expected_.data() + stream * half_ + at;
    downloads_.push_back({aligned_buffer(bytes, std::byte{0}), {first, first + bytes}});
    const DeviceCopy copy{range_->begin() + stream * half_ + at, downloads_.back().host.get(), bytes};
    streams_->copies_on(programs_[stream]->get())->download({&copy, 1});
  }
  std::string copy(Bytes bytes) {
    std::vector<std::byte> from(bytes), to(bytes);
    draw(from);
    loader_->copy(to.data(), from.data(), bytes);
    return from == to ? "" : "other bytes were copied within the host's memory";
  }

  Random& random_;
  const std::function<void(const char* function)>& fail_;
  bool fails_ = false, gives_up_ = false;
  std::unique_ptr<DeviceRange> range_;
  std::shared_ptr<DeviceStreams> streams_;
  Bytes half_;
  std::vector<std::byte> expected_;
  std::deque<Download> downloads_;
  std::array<std::optional<OwnStream>, 2> programs_;
  std::optional<HostLoader> loader_;
};

}  // namespace

std::string use_loader(Accelerator& accelerator, Random& random, Bytes capacity, const UserTrouble& trouble) {
  LoaderUser user(accelerator, random, capacity, trouble.fail);
  for (std::uint64_t steps = random.between(2, 16); steps > 0; --steps) {
    if (random.one_in(3)) trouble.interfere();
    if (std::string wrong = user.step(); !wrong.empty() || user.gives_up()) return wrong;
  }
  return user.finish();
}

}  // namespace tencache
