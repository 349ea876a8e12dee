#include "tests/live/accelerator_case.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "executor/chunk_memory.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

constexpr TensorId tensors = 5;
constexpr std::size_t engines = 2;
constexpr Bytes largest_chunk = 4 * page_bytes;

struct Chunk {
  bool mapped = false;
  Bytes bytes = 0;
  Bytes first = 0;                       // of them in one mapping, the rest in another
  std::optional<std::uint64_t> version;  // of the pattern that it holds; nothing: undefined
  int under_way = 0;                     // copies
};

struct Copy {
  TensorId tensor = 0;
  bool up = false;
  std::uint64_t version = 0;
  std::size_t buffer = 0;
};

class User {
 public:
  User(Accelerator& accelerator, Random& random, Bytes capacity)
      : accelerator_(accelerator),
        random_(random),
        memory_(accelerator.memory("gpu", capacity, page_bytes, false)),
        kernels_(accelerator.replay_kernels()) {
    for (AlignedBuffer& buffer : buffers_) {
      buffer = aligned_buffer(largest_chunk, std::byte{0});
      std::string reason;
      pinned_.push_back(accelerator_.pin(buffer.get(), largest_chunk, reason));
    }
  }
  // Nothing touches the buffers any more once the engines are gone.
  ~User() {
    for (auto& engine : engines_) engine.reset();
    kernels_.reset();
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (pinned_[i]) accelerator_.unpin(buffers_[i].get());
    }
  }
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  std::string step() {
    const auto tensor = static_cast<TensorId>(random_.below(tensors));
    const std::size_t engine = random_.below(engines);
    switch (random_.below(8)) {
      case 0:
        come_or_go(tensor);
        return "";
      case 1:
      case 2:
        start(engine, tensor, true);
        return "";
      case 3:
      case 4:
        start(engine, tensor, false);
        return "";
      case 5:
        return wait(engine, random_.below(3));
      case 6:
        return compute(tensor);
      default:
        if (!random_.one_in(4)) return wait(engine, 0);
        engines_[engine].reset();  // "waits for what was started"
        return settle(engine, 0);
    }
  }

 private:
  void come_or_go(TensorId tensor) {
    Chunk& chunk = chunks_[tensor];
    if (chunk.under_way > 0) return;
    if (!chunk.mapped) {
      chunk = {};
      chunk.bytes = page_bytes * random_.between(1, 4) - random_.below(100);
      chunk.first = random_.one_in(2) ? chunk.bytes : std::min(chunk.bytes, page_bytes * random_.between(1, 3));
      memory_->create(tensor, chunk.bytes);
      try {
        memory_->map(tensor, 0, chunk.first, 0);
        if (chunk.first < chunk.bytes) memory_->map(tensor, chunk.first, chunk.bytes - chunk.first, 0);
        chunk.mapped = true;
      } catch (const OutOfMemory&) {
        memory_->destroy(tensor);
      }
      return;
    }
    if (random_.one_in(2)) memory_->retire(tensor);
    memory_->unmap(tensor, 0, chunk.first);
    if (chunk.first < chunk.bytes) memory_->unmap(tensor, chunk.first, chunk.bytes - chunk.first);
    chunk.mapped = false;
    memory_->destroy(tensor);
  }

  // The user keeps one copy at a time to a chunk, and one to a buffer.
  void start(std::size_t engine, TensorId tensor, bool up) {
    Chunk& chunk = chunks_[tensor];
    const auto buffer = static_cast<std::size_t>(std::ranges::find(used_, false) - used_.begin());
    if (!chunk.mapped || chunk.under_way > 0 || buffer == used_.size() || (!up && !chunk.version)) return;
    if (engines_[engine] == nullptr) engines_[engine] = accelerator_.copy_engine();
    const std::uint64_t version = up ? ++last_version_ : *chunk.version;
    std::byte* host = buffers_[buffer].get();
    std::byte* device = memory_->address(tensor);
    if (up) {
      write_pattern(tensor, version, 0, {host, chunk.bytes}, true);
      engines_[engine]->upload(cut(device, host, chunk.bytes));
    } else {
      engines_[engine]->download(cut(device, host, chunk.bytes));
    }
    used_[buffer] = true;
    chunk.under_way++;
    copies_[engine].push_back({tensor, up, version, buffer});
  }

  // One copy, or several in any order.
  std::vector<DeviceCopy> cut(std::byte* device, std::byte* host, Bytes bytes) {
    std::vector<DeviceCopy> copies;
    for (Bytes done = 0; done < bytes; done += copies.back().bytes) {
      const Bytes part = random_.one_in(2) ? bytes - done : random_.between(1, bytes - done);
      copies.push_back({device + done, host + done, part});
    }
    if (random_.one_in(2)) std::ranges::reverse(copies);
    return copies;
  }

  std::string wait(std::size_t engine, std::size_t left) {
    if (engines_[engine] != nullptr) engines_[engine]->wait(left);
    return settle(engine, left);
  }

  // All but `left` are over.
  std::string settle(std::size_t engine, std::size_t left) {
    std::string wrong;
    for (; copies_[engine].size() > left; copies_[engine].pop_front()) {
      const Copy copy = copies_[engine].front();
      Chunk& chunk = chunks_[copy.tensor];
      chunk.under_way--;
      used_[copy.buffer] = false;
      std::byte* host = buffers_[copy.buffer].get();
      if (copy.up) {
        chunk.version = copy.version;
      } else if (find_difference(copy.tensor, copy.version, 0, {host, chunk.bytes}, true) != unlimited) {
        wrong = "a copy from the GPU brought other bytes than were there";
      }
      std::fill_n(host, largest_chunk, std::byte{0x33});  // its owner's again
    }
    return wrong;
  }

  std::string compute(TensorId tensor) {
    Chunk& chunk = chunks_[tensor];
    if (!chunk.mapped || chunk.under_way > 0) return "";
    std::vector<ReplayAccess> accesses(1);
    accesses[0] = {tensor,
                   chunk.version.value_or(last_version_),
                   {memory_->address(tensor), chunk.bytes},
                   chunk.version.has_value(),
                   random_.one_in(2),
                   unlimited};
    const Nanoseconds took_ns = kernels_->run(accesses, 0, {.check_everything = true, .write_everything = true});
    if (took_ns < 0 || took_ns > 100'000'000) return "kernels on a page took " + std::to_string(took_ns) + " ns";
    if (accesses[0].write) last_version_ = std::max(last_version_, *(chunk.version = accesses[0].version + 1));
    return accesses[0].wrong_at == unlimited ? "" : "a kernel found other bytes than were there";
  }

  Accelerator& accelerator_;
  Random& random_;
  std::array<AlignedBuffer, 6> buffers_;
  std::vector<bool> pinned_;
  std::array<bool, 6> used_{};
  std::array<Chunk, tensors> chunks_;
  std::array<std::deque<Copy>, engines> copies_;
  std::uint64_t last_version_ = 0;
  std::unique_ptr<TierMemory> memory_;
  std::unique_ptr<ReplayKernels> kernels_;
  std::array<std::unique_ptr<CopyEngine>, engines> engines_;
};

}  // namespace

std::string use_accelerator(Accelerator& accelerator, Random& random, Bytes capacity,
                            const std::function<void()>& interfere) {
  User user(accelerator, random, capacity);
  for (std::uint64_t steps = random.between(10, 120); steps > 0; --steps) {
    if (random.one_in(3)) interfere();
    if (std::string wrong = user.step(); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace tencache
