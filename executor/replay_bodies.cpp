#include "executor/replay_bodies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "executor/clock.h"
#include "executor/replay_pattern.h"

namespace tencache {
namespace {

using replay_pattern::golden;
using replay_pattern::stamp;

static_assert(replay_pattern::page_size == page_bytes);

void fill_page(std::uint64_t word, std::span<std::byte> page, bool everything) {
  std::byte* at = page.data();
  const Bytes whole = everything ? page.size() / sizeof word : std::min<Bytes>(1, page.size() / sizeof word);
  for (Bytes i = 0; i < whole; i++, word += golden) std::memcpy(at + i * sizeof word, &word, sizeof word);
  const Bytes done = whole * sizeof word;
  if (everything || whole == 0) std::memcpy(at + done, &word, std::min<Bytes>(page.size() - done, sizeof word));
}

bool page_is_right(std::uint64_t word, std::span<const std::byte> page, bool everything) {
  const std::byte* at = page.data();
  const Bytes whole = everything ? page.size() / sizeof word : std::min<Bytes>(1, page.size() / sizeof word);
  std::uint64_t difference = 0;
  for (Bytes i = 0; i < whole; i++, word += golden) {
    std::uint64_t found;
    std::memcpy(&found, at + i * sizeof word, sizeof word);
    difference |= found ^ word;
  }
  const Bytes done = whole * sizeof word;
  if (everything || whole == 0) {
    const Bytes rest = std::min<Bytes>(page.size() - done, sizeof word);
    if (std::memcmp(at + done, &word, rest) != 0) return false;
  }
  return difference == 0;
}

}  // namespace

void write_pattern(TensorId tensor, std::uint64_t version, Bytes begin, std::span<std::byte> content, bool everything) {
  TENCACHE_CHECK(begin % page_bytes == 0);
  const std::uint64_t seed = replay_pattern::seed(tensor, version);
  for (Bytes done = 0; done < content.size(); done += page_bytes) {
    const Bytes part = std::min<Bytes>(page_bytes, content.size() - done);
    fill_page(stamp(seed, (begin + done) / page_bytes), content.subspan(done, part), everything);
  }
}

Bytes find_difference(TensorId tensor, std::uint64_t version, Bytes begin, std::span<const std::byte> content,
                      bool everything) {
  TENCACHE_CHECK(begin % page_bytes == 0);
  const std::uint64_t seed = replay_pattern::seed(tensor, version);
  for (Bytes done = 0; done < content.size(); done += page_bytes) {
    const Bytes part = std::min<Bytes>(page_bytes, content.size() - done);
    const std::uint64_t word = stamp(seed, (begin + done) / page_bytes);
    if (!page_is_right(word, content.subspan(done, part), everything)) return begin + done;
  }
  return unlimited;
}

namespace {

class HostKernels final : public ReplayKernels {
 public:
  Nanoseconds run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) override {
    const Nanoseconds start_ns = clock_ns();
    for (ReplayAccess& access : accesses) {
      if (access.read) {
        access.wrong_at = find_difference(access.tensor, access.version, 0, access.content, options.check_everything);
      }
      if (access.write) {
        write_pattern(access.tensor, access.version + 1, 0, access.content, options.write_everything);
      }
    }
    const Nanoseconds reached_ns = clock_ns();
    while (clock_ns() < start_ns + duration_ns) {  // computing: the core is busy as it would be
    }
    return reached_ns - start_ns;
  }
};

}  // namespace

DeviceStream ReplayKernels::stream() const { TENCACHE_CHECK(false); }

void ReplayKernels::start(std::span<const ReplayAccess> /*accesses*/, Nanoseconds /*duration_ns*/,
                          const ReplayOptions& /*options*/) {
  TENCACHE_CHECK(false);
}

Nanoseconds ReplayKernels::finish(std::span<ReplayAccess> /*accesses*/) { TENCACHE_CHECK(false); }

ReplayBodies::ReplayBodies(const Trace& trace, ReplayOptions options, ReplayKernels* gpu)
    : trace_(trace),
      options_(options),
      gpu_(gpu),
      versions_(trace.tensors.size(), 0),
      verdicts_(trace.tensors.size(), 0) {
  // What only stamps were written of can only be checked by its stamps.
  TENCACHE_CHECK(options.write_everything || !options.check_everything);
}

void ReplayBodies::initialise(TensorId tensor, Bytes begin, std::span<std::byte> content) {
  write_pattern(tensor, 0, begin, content, options_.write_everything);
}

// Under the lock.
void ReplayBodies::count_check(OpIndex op, const ReplayAccess& access) {
  counts_.tensor_checks++;
  counts_.page_checks += (access.content.size() + page_bytes - 1) / page_bytes;
  std::uint8_t& verdict = verdicts_[access.tensor];
  if (verdict == 0) counts_.verified_tensors++;
  verdict = std::max<std::uint8_t>(verdict, 1);
  if (access.wrong_at == unlimited) return;
  counts_.corrupted_checks++;
  if (verdict != 2) counts_.corrupted_tensors++;
  verdict = 2;
  if (!counts_.first_corruption.empty()) return;
  counts_.first_corruption = "op " + std::to_string(op) + " (" + trace_.name(trace_.ops[op]) + ") read tensor " +
                             std::to_string(access.tensor) + " (" + trace_.name(trace_.tensors[access.tensor]) +
                             ") wrong at byte " + std::to_string(access.wrong_at) + ", version " +
                             std::to_string(access.version);
}

std::vector<ReplayAccess> ReplayBodies::accesses_of(std::span<const Use> uses, const HostMachine& machine,
                                                    TierId tier) const {
  std::vector<ReplayAccess> accesses;
  accesses.reserve(uses.size());
  for (const Use& use : uses) {
    const std::span content(machine.address(use.tensor, tier), trace_.tensors[use.tensor].bytes);
    accesses.push_back({use.tensor, versions_[use.tensor], content, use.read, use.write, unlimited});
  }
  return accesses;
}

Nanoseconds ReplayBodies::duration_of(OpIndex op) const {
  return static_cast<Nanoseconds>(static_cast<double>(trace_.ops[op].duration_ns) * options_.duration_scale);
}

void ReplayBodies::count(OpIndex op, std::span<const ReplayAccess> accesses, Nanoseconds work_ns) {
  for (const ReplayAccess& access : accesses) {
    if (access.read) count_check(op, access);
  }
  counts_.ops++;
  const Nanoseconds duration_ns = duration_of(op);
  if (work_ns <= duration_ns) return;
  counts_.late_ops++;
  counts_.late_ns += work_ns - duration_ns;
}

void ReplayBodies::run(std::uint8_t lane, OpIndex op, std::span<const Use> uses, HostMachine& machine) {
  std::vector<ReplayAccess> accesses;
  {
    const MutexLock lock(mutex_);
    accesses = accesses_of(uses, machine, machine.tier_of_lane(lane));
  }
  HostKernels host;
  TENCACHE_CHECK(lane != 0 || gpu_ != nullptr || machine.accelerator() == nullptr);
  ReplayKernels& kernels = lane == 0 && gpu_ != nullptr ? *gpu_ : host;
  const Nanoseconds work_ns = kernels.run(accesses, duration_of(op), options_);
  const MutexLock lock(mutex_);
  for (const ReplayAccess& access : accesses) {
    if (access.write) versions_[access.tensor] = access.version + 1;
  }
  count(op, accesses, work_ns);
}

std::optional<DeviceStream> ReplayBodies::stream() {
  return gpu_ == nullptr ? std::nullopt : std::optional(gpu_->stream());
}

// Ops that come after it find what it has written.
void ReplayBodies::launch(OpIndex op, std::span<const Use> uses, HostMachine& machine) {
  std::vector<ReplayAccess> accesses;
  {
    const MutexLock lock(mutex_);
    accesses = accesses_of(uses, machine, 0);
  }
  gpu_->start(accesses, duration_of(op), options_);
  const MutexLock lock(mutex_);
  for (const ReplayAccess& access : accesses) {
    if (access.write) versions_[access.tensor] = access.version + 1;
  }
  launched_.push_back({op, std::move(accesses)});
  counts_.most_ahead = std::max(counts_.most_ahead, launched_.size());
}

void ReplayBodies::over(OpIndex op) {
  const MutexLock lock(mutex_);
  Launched first = std::move(launched_.front());
  launched_.pop_front();
  TENCACHE_CHECK(first.op == op);
  const Nanoseconds work_ns = gpu_->finish(first.accesses);
  count(op, first.accesses, work_ns);
}

ReplayCounts ReplayBodies::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::string ReplayBodies::summary() const {
  const ReplayCounts now = counts();
  std::string text = std::to_string(now.verified_tensors) + " tensors verified, " +
                     std::to_string(now.corrupted_tensors) + " corrupted";
  if (!now.first_corruption.empty()) text += "; first: " + now.first_corruption;
  return text;
}

}  // namespace tencache
