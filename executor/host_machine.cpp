#include "executor/host_machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/remark.h"
#include "core/text.h"
#include "core/timeline.h"
#include "executor/clock.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

// A thread that waits for the device looks now and then, seldom while nothing happens. At last it sleeps until
// something does, unless a thread of a lane may need it before.
class DevicePatience {
 public:
  DevicePatience(DeviceLanes& streams, WorkLanes& lanes) : streams_(streams), lanes_(lanes) {}

  void polled(bool anything) {
    if (anything) paused_ = {};
  }
  void wait(std::chrono::nanoseconds limit) {
    if (!streams_.busy()) {
      lanes_.await(limit);
      paused_ = {};
    } else if (paused_ < patience || lanes_.busy()) {
      lanes_.await(std::min(limit, pause));
      paused_ += pause;
    } else {
      try {
        streams_.await_next();
      } catch (const Error&) {  // it has noted why
      }
      paused_ = {};
    }
  }

 private:
  static constexpr std::chrono::nanoseconds pause{20'000}, patience{1'000'000};

  DeviceLanes& streams_;
  WorkLanes& lanes_;
  std::chrono::nanoseconds paused_{};
};

constexpr std::chrono::nanoseconds forever = std::chrono::hours(1);

// A lane later than this behind its link's figures is slow, not badly scheduled: it starts afresh.
constexpr Nanoseconds catch_up_ns = 500'000;
constexpr std::uint8_t op_lanes = 2;
constexpr Bytes small_bytes = 64 * KiB;  // copied in the time of two hand-overs

}  // namespace

// Copies over one link, with the faults that are planned for them.
class HostMachine::CopyRunner final : public LaneRunner {
 public:
  CopyRunner(const Link& link, const CopyPace& pace, const SwapFiles* files, Accelerator* accelerator,
             HostMachine& machine, Nanoseconds origin_ns)
      : lane_(link, pace, files, accelerator), machine_(machine), origin_ns_(origin_ns) {}

  const CopyLane& lane() const { return lane_; }

  LaneOutcome run(const LaneWork& work, Nanoseconds ready_ns, const std::atomic<bool>& cancelled) override {
    LaneOutcome outcome;
    if (!work.after.empty()) TENCACHE_ORDER_SITE("wait", machine_.streams_->await(work.after));
    outcome.start_ns = now();
    if (cancelled || (work.fault.delay_ns > 0 && !wait_until(clock_ns() + work.fault.delay_ns, &cancelled))) {
      outcome.status = CompletionStatus::cancelled;
      return outcome;
    }
    if (work.fault.failure) {
      outcome.status = CompletionStatus::failed;
      outcome.message = work.injected_failure;
      return outcome;
    }
    if (lane_.paced()) outcome.start_ns = std::max(ready_ns, free_ns_);
    if (work.fault.delay_ns > 0) outcome.start_ns = now();
    const Nanoseconds begin_ns = now();
    const bool whole = lane_.run(work.copy, origin_ns_ + outcome.start_ns, cancelled);
    if (!whole) outcome.status = CompletionStatus::cancelled;
    if (whole && work.fault.slow_factor > 1) {  // cancelled too late: all of it is there
      const auto factor = static_cast<Nanoseconds>(work.fault.slow_factor);
      wait_until(origin_ns_ + begin_ns + (now() - begin_ns) * factor, &cancelled);
    }
    const Nanoseconds end_ns = now();
    free_ns_ = end_ns;
    if (whole && lane_.paced() && work.fault.slow_factor == 1) {
      const Nanoseconds due_ns = lane_.due_ns() - origin_ns_;
      if (end_ns - due_ns < catch_up_ns) free_ns_ = due_ns;
    }
    return outcome;
  }

 private:
  Nanoseconds now() const { return clock_ns() - origin_ns_; }

  CopyLane lane_;
  HostMachine& machine_;
  Nanoseconds origin_ns_;
  Nanoseconds free_ns_ = 0;  // from when the next one is paced
};

class HostMachine::OpLaneRunner final : public LaneRunner {
 public:
  OpLaneRunner(std::uint8_t lane, OpBodies& bodies, HostMachine& machine, Nanoseconds origin_ns)
      : lane_(lane), bodies_(bodies), machine_(machine), origin_ns_(origin_ns) {}

  LaneOutcome run(const LaneWork& work, Nanoseconds ready_ns, const std::atomic<bool>& cancelled) override {
    LaneOutcome outcome;
    if (work.op.idle) {
      outcome.start_ns = std::max(ready_ns, free_ns_);
      wait_until(origin_ns_ + outcome.start_ns + work.op.duration_ns, &cancelled);
    } else if (lane_ == gpu_lane && machine_.streams_) {
      outcome.start_ns = launch(work);
    } else {
      if (!work.after.empty()) TENCACHE_ORDER_SITE("wait", machine_.streams_->await(work.after));
      outcome.start_ns = clock_ns() - origin_ns_;
      bodies_.run(lane_, work.op.op, work.uses, machine_);
    }
    free_ns_ = clock_ns() - origin_ns_;
    return outcome;
  }

 private:
  // Completes when it is given to the stream.
  Nanoseconds launch(const LaneWork& work) {
    DeviceLanes& streams = *machine_.streams_;
    const DeviceStream stream = *bodies_.stream();
    streams.await_window();
    const Nanoseconds start_ns = clock_ns() - origin_ns_;
    const std::vector<MemoryAccess> accesses = machine_.accesses_of(work.uses, 0);
    streams.before_op(stream, accesses, false);
    bodies_.launch(work.op.op, work.uses, machine_);
    streams.after_op(stream, accesses,
                     {.op = work.op.op, .duration_ns = work.op.duration_ns, .fence = work.fence, .tag = work.tag});
    return start_ns;
  }

  std::uint8_t lane_;
  OpBodies& bodies_;
  HostMachine& machine_;
  Nanoseconds origin_ns_;
  Nanoseconds free_ns_ = 0;  // the end of the last one
};

void OpBodies::launch(OpIndex /*op*/, std::span<const Use> /*uses*/, HostMachine& /*machine*/) {
  TENCACHE_CHECK(false);
}

void OpBodies::initialise(TensorId /*tensor*/, Bytes /*begin*/, std::span<std::byte> content) {
  std::memset(content.data(), 0, content.size());
}

MachineSpec with_real_pages(MachineSpec spec, const Accelerator* accelerator) {
  for (Tier& tier : spec.tiers) {
    const bool there = accelerator != nullptr && tier.kind == TierKind::gpu;
    const bool arena = there && tier.allocator == AllocatorKind::movable;
    const Bytes page = std::max(tier.granularity, there ? accelerator->granularity() : page_bytes);
    tier.granularity = arena ? movable_unit : page;
    if (tier.capacity >= unlimited) continue;
    if (tier.capacity != 0 && tier.capacity < page) {
      throw Error(spec.file, 0,
                  "tier '" + tier.name + "': " + format_bytes(tier.capacity) + " are less than a page, " +
                      format_bytes(page) + (there ? " of the GPU" : "") + "; give it more");
    }
    tier.capacity -= tier.capacity % page;
  }
  return spec;
}

HostMachine::HostMachine(const MachineSpec& spec, OpBodies& bodies, Options options)
    : spec_(spec), bodies_(bodies), options_(std::move(options)), cpu_tier_(spec.tier_of(Device::cpu)) {
  if (options_.faults) {
    faults_.emplace(*options_.faults, spec_);
    options_.files.faults = *options_.faults;
  }
  check_links();
  memory_.emplace(spec_, options_, faults_ ? &*faults_ : nullptr);
  const bool addressed = cpu_tier_ != no_tier && !options_.addressed.empty() && options_.addressed[cpu_tier_];
  if (options_.share != nullptr && options_.share->pool() != 0 && !addressed) shared_tier_ = cpu_tier_;
  build_lanes();
  run_ahead();
  report_fallback();
}

HostMachine::~HostMachine() {
  lanes_->close();
  streams_.reset();
}

void HostMachine::run_ahead() {
  if (accelerator() == nullptr || !moves() || spec_.run_ahead.ops == 0) return;
  const std::optional<DeviceStream> stream = bodies_.stream();
  DeviceLanes::OpOver op_over;
  if (stream) op_over = [this](OpIndex op) { bodies_.over(op); };
  streams_.emplace(spec_, *accelerator(), *lanes_, op_over);
  if (stream) streams_->use_stream(*stream);
}

void HostMachine::check_links() const {
  for (const Link& link : spec_.links) {
    TENCACHE_CHECK(link.from < spec_.tiers.size() && link.to < spec_.tiers.size());
    if (spec_.tiers[link.from].kind == TierKind::nvme && spec_.tiers[link.to].kind == TierKind::nvme) {
      throw Error(spec_.file, 0,
                  "link '" + link.name + "' joins two tiers of files; on a real machine copies go through memory");
    }
    if (options_.accelerator != nullptr && spec_.tiers[link.from].kind == TierKind::gpu &&
        spec_.tiers[link.to].kind == TierKind::gpu) {
      throw Error(spec_.file, 0, "link '" + link.name + "' joins two tiers of kind gpu; a run uses one device");
    }
  }
}

void HostMachine::build_lanes() {
  const Nanoseconds origin_ns = clock_ns();
  std::vector<std::unique_ptr<LaneRunner>> copies, ops;
  for (const Link& link : spec_.links) {
    const SwapFiles* from = memory_->files(link.from);
    const SwapFiles* to = memory_->files(link.to);
    const bool on_accelerator = memory_->on_accelerator(link.from) || memory_->on_accelerator(link.to);
    const CopyPace pace{options_.pace, options_.share.get(), static_cast<LinkId>(copies.size())};
    auto runner = std::make_unique<CopyRunner>(link, pace, from != nullptr ? from : to,
                                               on_accelerator ? accelerator() : nullptr, *this, origin_ns);
    links_.push_back(&runner->lane());
    copies.push_back(std::move(runner));
  }
  for (std::uint8_t lane = 0; lane < op_lanes; ++lane) {
    ops.push_back(std::make_unique<OpLaneRunner>(lane, bodies_, *this, origin_ns));
  }
  lanes_ = std::make_unique<WorkLanes>(origin_ns, std::move(copies), std::move(ops));
}

void HostMachine::report_fallback() const {
  for (const CopyLane* link : links_) {
    const std::string reason = link->fallback_reason();
    if (reason.empty()) continue;
    std::fprintf(stderr, "tencache: files are read and written with pread and pwrite: %s\n", reason.c_str());
    return;
  }
}

Fence HostMachine::submit(const CopyCommand& copy, Tag tag) {
  TENCACHE_CHECK(copy.link < links_.size() && copy.bytes != 0);
  LaneWork work;
  work.tag = tag;
  work.copy = memory_->resolve(copy);
  if (faults_) {
    work.fault = faults_->next_copy(copy.link);
    if (work.fault.failure) work.injected_failure = faults_->reason(*work.fault.failure, copy.link);
    std::vector<FileBlock>& blocks = work.copy.blocks;
    if (work.fault.in_file && !blocks.empty()) blocks[work.fault.block % blocks.size()].fault = work.fault.in_file;
  }
  if (streams_) {
    if (DeviceLanes::is_stream(spec_, spec_.links[copy.link])) {
      return streams_->submit(copy.link, std::move(work.copy), tag, std::move(work.injected_failure));
    }
    work.after = streams_->before_host(memory_->accesses_of(copy));
  }
  const bool held = holds_ && work.copy.kind == CopyWork::Kind::memory && copy.bytes <= small_bytes;
  held_ |= held;
  return lanes_->enqueue(copy.link, std::move(work), held);
}

Fence HostMachine::execute(const OpCommand& op, Tag tag) {
  TENCACHE_CHECK(op.lane < op_lanes && (op.idle || tier_of_lane(op.lane) != no_tier));
  LaneWork work;
  work.tag = tag;
  work.op = op;
  work.uses.assign(op.uses.begin(), op.uses.end());
  work.op.uses = {};
  if (streams_ && op.lane != gpu_lane && !op.idle) {
    work.after = streams_->before_host(accesses_of(op.uses, tier_of_lane(op.lane)));
  }
  if (op.lane == 0 && options_.raw_access) {
    for (const Use& use : op.uses) {
      if (use.write) memory_->open_for_writing(use.tensor);
    }
  }
  return lanes_->enqueue(links_.size() + op.lane, std::move(work));
}

void HostMachine::cancel(Fence fence) {
  if (!streams_ || !streams_->cancel(fence)) lanes_->cancel(fence);
}

Nanoseconds HostMachine::move(const MoveCommand& move) {
  if (streams_) {
    const auto [from, to] = memory_->relocate_in_arena(move);
    streams_->move(from, to, move.bytes, move.link);
    return 0;
  }
  const Nanoseconds begin_ns = clock_ns();
  memory_->move(move);
  return clock_ns() - begin_ns;
}

// ---- Completions that promise order ---------------------------------------------------------------------------------

std::vector<MemoryAccess> HostMachine::accesses_of(std::span<const Use> uses, TierId tier) const {
  std::vector<MemoryAccess> accesses;
  for (const Use& use : uses) memory_->add_accesses(use.tensor, 0, bytes(use.tensor), tier, use.write, accesses);
  return accesses;
}

void HostMachine::set_fresh(TensorId tensor, bool fresh) {
  if (tensor >= fresh_.size()) fresh_.resize(tensor + std::size_t{1});
  fresh_[tensor] = fresh;
}

std::size_t HostMachine::before_op(DeviceStream stream, std::span<const Use> uses) {
  std::vector<MemoryAccess> old, fresh;
  for (const Use& use : uses) {
    const bool is_fresh = fresh_[use.tensor];
    memory_->add_accesses(use.tensor, 0, bytes(use.tensor), 0, use.write, is_fresh ? fresh : old);
    fresh_[use.tensor] = false;
  }
  std::size_t waits = streams_->before_op(stream, old, true);
  if (!fresh.empty()) waits += streams_->before_op(stream, fresh, false);
  return waits;
}

void HostMachine::after_op(DeviceStream stream, std::span<const Use> uses, Nanoseconds duration_ns) {
  streams_->after_op(stream, accesses_of(uses, 0), {.duration_ns = duration_ns});
}

void HostMachine::after_use(DeviceStream stream, std::span<const Use> uses) {
  streams_->after_use(stream, accesses_of(uses, 0));
}

void HostMachine::after_any_use(TensorId tensor) {
  const Use use{tensor, true, true};
  streams_->after_any_use(accesses_of({&use, 1}, 0));
}

void HostMachine::await_uses(std::span<const Use> uses) {
  streams_->await(streams_->before_host(accesses_of(uses, 0)));
}

// Once: who hears of it again and again does nothing else.
void HostMachine::tell_failure() {
  const std::string failure = streams_->failure();
  if (!failure.empty() && !failure_told_.exchange(true)) throw Error(failure);
}

bool HostMachine::take(Completion& completion) {
  if (lanes_->take(completion)) return true;
  if (streams_) tell_failure();
  return false;
}

bool HostMachine::wait(Completion& completion) {
  if (!streams_) return lanes_->wait(completion);
  for (DevicePatience patience(*streams_, *lanes_);;) {
    patience.polled(streams_->poll());
    const bool busy = lanes_->busy() || streams_->busy();
    if (take(completion)) return true;
    if (!busy || lanes_->stopped()) return false;
    patience.wait(forever);
  }
}

bool HostMachine::await(std::chrono::nanoseconds limit) {
  if (!streams_) return lanes_->await(limit);
  const auto until = std::chrono::steady_clock::now() + limit;
  for (DevicePatience patience(*streams_, *lanes_);;) {
    patience.polled(streams_->poll());
    const auto left = until - std::chrono::steady_clock::now();
    const bool failed = !streams_->failure().empty() && !failure_told_;
    if (lanes_->await({}) || failed) return true;
    if (lanes_->stopped() || left <= std::chrono::nanoseconds(0)) return false;
    patience.wait(left);
  }
}

void HostMachine::initialise(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  if (streams_) streams_->await_all();
  constexpr Bytes worth_saying = 64 * MiB;
  if (filled_ / worth_saying != (filled_ + bytes) / worth_saying) {
    doing("filling the first tensors, " + format_bytes(filled_) + " so far");
  }
  filled_ += bytes;
  memory_->fill(tensor, begin, bytes, place.tier,
                [&](std::span<std::byte> content) { bodies_.initialise(tensor, begin, content); });
}

std::byte* HostMachine::room_to_store(TensorId tensor, Bytes begin, Bytes bytes, TierId tier) {
  std::byte* room = memory_->room_to_store(tensor, begin, bytes, tier);
  if (room == nullptr || !streams_) return room;
  std::vector<MemoryAccess> accesses;
  memory_->add_accesses(tensor, begin, bytes, tier, true, accesses);
  streams_->await(streams_->before_host(accesses));
  return room;
}

Bytes HostMachine::take_more_memory() {
  options_.share->take_more();
  return held_memory();
}

Bytes HostMachine::give_back_memory(Bytes needed) {
  HostShare& share = *options_.share;
  if (needed < share.held() && share.wanted()) share.give_back_to(memory_->set_capacity(shared_tier_, needed));
  return held_memory();
}

const SwapFiles& HostMachine::files(TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && memory_->files(tier) != nullptr);
  return *memory_->files(tier);
}

std::string HostMachine::describe() const {
  std::string text = memory_->describe_tiers();
  for (std::size_t i = 0; i < links_.size(); i++) {
    const Link& link = spec_.links[i];
    text += link.name + ": ";
    if (spec_.tiers[link.from].kind != TierKind::nvme && spec_.tiers[link.to].kind != TierKind::nvme) {
      text += memory_->on_accelerator(link.from) || memory_->on_accelerator(link.to) ? "copy engine" : "memcpy";
    } else {
      const std::string reason = links_[i]->fallback_reason();
      const std::string indirect = links_[i]->indirect_reason();
      const bool to_accelerator = memory_->on_accelerator(link.from) || memory_->on_accelerator(link.to);
      if (to_accelerator && indirect.empty()) {
        const bool packed = memory_->arena(link.from) || memory_->arena(link.to);
        text += "GPUDirect Storage";
        if (packed) text += ", through page-locked buffers what is not whole pages of 4 KiB";
      } else {
        text += reason.empty() ? "io_uring with O_DIRECT" : "pread and pwrite, " + reason;
        if (to_accelerator) text += ", through page-locked buffers (" + indirect + ")";
      }
    }
    const bool paced = options_.pace && !(streams_ && DeviceLanes::is_stream(spec_, link));
    const bool shared = options_.share != nullptr && options_.share->shares(static_cast<LinkId>(i));
    text += paced ? ", paced to " + format_bandwidth(link.bandwidth) + (shared ? " that ranks share\n" : "\n")
                  : std::string(", not paced\n");
  }
  return text + memory_->describe_staging();
}

}  // namespace tencache
