#include "executor/host_machine.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "core/check.h"
#include "core/error.h"
#include "executor/clock.h"

namespace tencache {
namespace {

// A lane later than this behind its link's figures is slow, not badly scheduled: it starts afresh.
constexpr Nanoseconds catch_up_ns = 500'000;

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{page_bytes}); }
};
using AlignedBuffer = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBuffer aligned_buffer(Bytes bytes) {
  const Bytes rounded = round_up(bytes, page_bytes);
  AlignedBuffer buffer(static_cast<std::byte*>(::operator new[](rounded, std::align_val_t{page_bytes})));
  std::memset(buffer.get(), 0, rounded);
  return buffer;
}

}  // namespace

void OpBodies::initialise(TensorId /*tensor*/, Bytes /*begin*/, std::span<std::byte> content) {
  std::memset(content.data(), 0, content.size());
}

MachineSpec with_real_pages(MachineSpec spec, const Accelerator* accelerator) {
  for (Tier& tier : spec.tiers) {
    const bool there = accelerator != nullptr && tier.kind == TierKind::gpu;
    tier.granularity = std::max(tier.granularity, there ? accelerator->granularity() : page_bytes);
    if (tier.capacity >= unlimited) continue;
    if (tier.capacity != 0 && tier.capacity < tier.granularity) {
      throw Error(spec.file, 0,
                  "tier '" + tier.name + "': " + format_bytes(tier.capacity) + " are less than a page, " +
                      format_bytes(tier.granularity) + (there ? " of the GPU" : "") + "; give it more");
    }
    tier.capacity -= tier.capacity % tier.granularity;
  }
  return spec;
}

HostMachine::HostMachine(const MachineSpec& spec, OpBodies& bodies, Options options)
    : spec_(spec),
      bodies_(bodies),
      options_(std::move(options)),
      origin_ns_(clock_ns()),
      cpu_tier_(spec.tier_of(Device::cpu)) {
  if (options_.faults) {
    faults_.emplace(*options_.faults, spec_);
    options_.files.faults = *options_.faults;
  }
  build_tiers();
  build_staging();
  build_lanes();
  report_fallback();
}

HostMachine::~HostMachine() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    stopped_ = true;
    for (auto& [fence, pending] : pending_) pending.work->cancelled = true;
    for (const auto& lane : links_) lane->wake.notify_all();
    for (const auto& lane : op_lanes_) lane->wake.notify_all();
    arrived_.notify_all();
  }
  for (const auto& lane : links_) lane->thread.join();
  for (const auto& lane : op_lanes_) lane->thread.join();
  if (staging_pinned_) options_.accelerator->unpin(staging_);
  if (staging_ != nullptr) ::munmap(staging_, staging_stride_ * spec_.staging.count);
}

void HostMachine::build_tiers() {
  TENCACHE_CHECK(!spec_.tiers.empty() && spec_.tiers.size() <= max_tiers);
  TENCACHE_CHECK(options_.addressed.empty() || options_.addressed.size() == spec_.tiers.size());
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
  for (std::size_t i = 0; i < spec_.tiers.size(); i++) {
    const Tier& tier = spec_.tiers[i];
    if (tier.kind == TierKind::nvme) {
      tiers_[i].files = std::make_unique<SwapFiles>(tier, options_.files);
      continue;
    }
    if (tier.granularity % page_bytes != 0) {
      throw Error(spec_.file, 0,
                  "tier '" + tier.name + "': granularity " + format_bytes(tier.granularity) +
                      ", but pages of real memory have 4 KiB; give a multiple of that");
    }
    ChunkMemoryOptions memory;
    memory.addressed = !options_.addressed.empty() && options_.addressed[i];
    memory.populate = options_.populate;
    memory.prefault = options_.prefault;
    memory.accelerator = options_.accelerator;
    const Bytes capacity = i == 0 && options_.unlimited_gpu ? unlimited : tier.capacity;
    if (options_.accelerator != nullptr && tier.kind == TierKind::gpu) {
      tiers_[i].memory = options_.accelerator->memory(tier.name, capacity, tier.granularity, memory.addressed);
    } else {
      auto pages = std::make_unique<ChunkMemory>(tier.name, capacity, tier.granularity, memory);
      tiers_[i].pages = pages.get();
      tiers_[i].memory = std::move(pages);
    }
  }
}

void HostMachine::build_staging() {
  if (spec_.staging.count == 0) return;
  staging_stride_ = round_up(spec_.staging.bytes, page_bytes);
  const Bytes bytes = staging_stride_ * spec_.staging.count;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(spec_.file, 0,
                "staging: " + format_bytes(bytes) + " of buffers: " + std::strerror(errno) +
                    "; lower the staging count or bytes");
  }
  staging_ = static_cast<std::byte*>(memory);
  if (options_.accelerator != nullptr) {
    std::string reason;  // of CPU memory, too, and said there
    staging_pinned_ = options_.accelerator->pin(staging_, bytes, reason);
  }
  staging_locked_ = staging_pinned_ || ::mlock(memory, bytes) == 0;
  if (staging_locked_) return;
  const std::string reason = std::strerror(errno);
  struct rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  std::fprintf(stderr,
               "tencache: the staging buffers, %s, are ordinary memory that the system may swap out: locking it failed "
               "(%s); the limit is %s (ulimit -l)\n",
               format_bytes(bytes).c_str(), reason.c_str(), format_bytes(limit.rlim_cur).c_str());
}

void HostMachine::build_lanes() {
  for (const Link& link : spec_.links) {
    const SwapFiles* from = tiers_[link.from].files.get();
    const SwapFiles* to = tiers_[link.to].files.get();
    auto lane = std::make_unique<Lane>();
    Accelerator* accelerator =
        tiers_[link.from].on_accelerator() || tiers_[link.to].on_accelerator() ? options_.accelerator.get() : nullptr;
    lane->copy = std::make_unique<CopyLane>(link, options_.pace, from != nullptr ? from : to, accelerator);
    links_.push_back(std::move(lane));
  }
  for (std::uint8_t i = 0; i < op_lanes_.size(); i++) {
    op_lanes_[i] = std::make_unique<Lane>();
    op_lanes_[i]->op_lane = i;
  }
  // Nothing throws from here on: threads must be joined.
  for (const auto& lane : links_) lane->thread = std::thread([this, at = lane.get()] { serve(*at); });
  for (const auto& lane : op_lanes_) lane->thread = std::thread([this, at = lane.get()] { serve(*at); });
}

void HostMachine::report_fallback() const {
  for (std::size_t i = 0; i < links_.size(); i++) {
    const std::string reason = links_[i]->copy->fallback_reason();
    if (reason.empty()) continue;
    std::fprintf(stderr, "tencache: files are read and written with pread and pwrite: %s\n", reason.c_str());
    return;
  }
}

// --- Submission -----------------------------------------------------------------------------------------------------

std::byte* HostMachine::memory_of(const CopyCommand& copy, Place place, bool staging) const {
  if (staging) {
    const Bytes buffers = (copy.bytes + spec_.staging.bytes - 1) / spec_.staging.bytes;
    TENCACHE_CHECK(staging_ != nullptr && place.offset + buffers <= spec_.staging.count);
    return staging_ + place.offset * staging_stride_;
  }
  TENCACHE_CHECK(place.tier < spec_.tiers.size());
  const TierMemory* memory = tiers_[place.tier].memory.get();
  if (memory == nullptr) return nullptr;  // a file
  TENCACHE_CHECK(memory->mapped(copy.tensor, copy.begin));
  return memory->address(copy.tensor) + copy.begin;
}

std::vector<HostPiece> HostMachine::pieces_of(const CopyCommand& copy, Place place, bool staging) const {
  if (staging) return {{memory_of(copy, place, true), copy.bytes}};
  return tiers_[place.tier].pages->pieces(copy.tensor, copy.begin, copy.bytes);
}

CopyWork HostMachine::resolve(const CopyCommand& copy) {
  CopyWork work;
  work.bytes = copy.bytes;
  work.from = memory_of(copy, copy.from, copy.from_staging);
  work.to = memory_of(copy, copy.to, copy.to_staging);
  const bool from_accelerator = !copy.from_staging && tiers_[copy.from.tier].on_accelerator();
  const bool to_accelerator = !copy.to_staging && tiers_[copy.to.tier].on_accelerator();
  work.on_accelerator = from_accelerator || to_accelerator;
  if (work.from != nullptr && work.to != nullptr) {
    if (from_accelerator) {
      work.kind = CopyWork::Kind::download;
      work.pieces = pieces_of(copy, copy.to, copy.to_staging);
    } else if (to_accelerator) {
      work.kind = CopyWork::Kind::upload;
      work.pieces = pieces_of(copy, copy.from, copy.from_staging);
    }
    return work;
  }
  work.kind = work.from == nullptr ? CopyWork::Kind::file_read : CopyWork::Kind::file_write;
  SwapFiles& files = *tiers_[work.from == nullptr ? copy.from.tier : copy.to.tier].files;
  if (work.to == nullptr && !files.has(copy.tensor, copy.begin)) {
    take_slot(files, copy.tensor, copy.begin, copy.bytes);
  }
  work.blocks = files.blocks(copy.tensor, copy.begin, copy.bytes);
  return work;
}

void HostMachine::take_slot(SwapFiles& files, TensorId tensor, Bytes begin, Bytes bytes) {
  try {
    files.take(tensor, begin, bytes);
  } catch (const Error&) {
    if (faults_ && faults_->plan().has(FaultKind::disk_full)) faults_->count(FaultKind::disk_full);
    throw;
  }
}

void HostMachine::disturb(const CopyCommand& copy, Work& work) {
  work.fault = faults_->next_copy(copy.link);
  if (work.fault.failure) work.injected_failure = faults_->reason(*work.fault.failure, copy.link);
  std::vector<FileBlock>& blocks = work.copy.blocks;
  if (work.fault.in_file && !blocks.empty()) blocks[work.fault.block % blocks.size()].fault = work.fault.in_file;
}

Fence HostMachine::submit(const CopyCommand& copy, Fence after, Tag tag) {
  TENCACHE_CHECK(copy.link < links_.size() && copy.bytes != 0);
  Work work;
  work.tag = tag;
  work.copy = resolve(copy);
  if (faults_) disturb(copy, work);
  return enqueue(*links_[copy.link], work, after);
}

Fence HostMachine::execute(const OpCommand& op, Fence after, Tag tag) {
  TENCACHE_CHECK(op.lane < op_lanes_.size() && (op.idle || tier_of_lane(op.lane) != no_tier));
  Work work;
  work.tag = tag;
  work.op = op;
  work.uses.assign(op.uses.begin(), op.uses.end());
  work.op.uses = {};
  return enqueue(*op_lanes_[op.lane], work, after);
}

Fence HostMachine::enqueue(Lane& lane, Work& work, Fence after) {
  const std::lock_guard lock(mutex_);
  TENCACHE_CHECK(after <= last_fence_);
  Work& queued = lane.queue.emplace_back();
  queued.fence = ++last_fence_;
  queued.tag = work.tag;
  queued.fault = work.fault;
  queued.injected_failure = std::move(work.injected_failure);
  queued.copy = std::move(work.copy);
  queued.op = work.op;
  queued.uses = std::move(work.uses);
  queued.ready_ns = now();
  block(queued, after);
  if (lane.copy == nullptr) {
    // The op may write what a cancelled copy still reads: it waits until the copy has noticed.
    for (const auto& link : links_) {
      if (link->running && link->queue.front().cancelled) block(queued, link->queue.front().fence);
    }
  }
  pending_[queued.fence] = {&lane, &queued, {}};
  if (lane.queue.size() == 1 && queued.blockers == 0) lane.wake.notify_one();
  return queued.fence;
}

void HostMachine::block(Work& work, Fence by) {
  const auto blocker = pending_.find(by);
  if (blocker == pending_.end()) return;  // it has passed
  blocker->second.dependants.push_back(work.fence);
  work.blockers++;
}

Fence HostMachine::last_of_lane(std::uint8_t lane) const {
  const std::lock_guard lock(mutex_);
  const std::deque<Work>& queue = op_lanes_[lane]->queue;
  return queue.empty() ? 0 : queue.back().fence;
}

void HostMachine::cancel(Fence fence) {
  const std::lock_guard lock(mutex_);
  const auto pending = pending_.find(fence);
  if (pending == pending_.end() || pending->second.lane->copy == nullptr) return;  // over, or an op
  pending->second.work->cancelled = true;
  pending->second.lane->wake.notify_one();
}

// --- Lanes ----------------------------------------------------------------------------------------------------------

void HostMachine::serve(Lane& lane) {
  sharpen_sleep();
  std::unique_lock lock(mutex_);
  const auto runnable = [&] {
    return !lane.queue.empty() && (lane.queue.front().blockers == 0 || lane.queue.front().cancelled);
  };
  while (true) {
    lane.wake.wait(lock, [&] { return closing_ || runnable(); });
    if (closing_) return;
    Work& work = lane.queue.front();  // stays where it is: the queue only grows behind it
    lane.running = true;
    lock.unlock();
    Outcome outcome = run(lane, work);
    lock.lock();
    lane.running = false;
    complete(lane, std::move(outcome));
  }
}

HostMachine::Outcome HostMachine::run(Lane& lane, Work& work) {
  const Nanoseconds start_ns = now();
  try {
    return lane.copy != nullptr ? run_copy(lane, work) : run_op(lane, work);
  } catch (const std::exception& error) {
    return {CompletionStatus::failed, error.what(), start_ns};
  } catch (...) {
    return {CompletionStatus::failed, "an op failed with an unknown exception", start_ns};
  }
}

HostMachine::Outcome HostMachine::run_copy(Lane& lane, Work& work) {
  Outcome outcome;
  outcome.start_ns = now();
  if (work.cancelled) {
    outcome.status = CompletionStatus::cancelled;
    return outcome;
  }
  if (work.fault.delay_ns > 0 && !wait_until(clock_ns() + work.fault.delay_ns, &work.cancelled)) {
    outcome.status = CompletionStatus::cancelled;
    return outcome;
  }
  if (work.fault.failure) {
    outcome.status = CompletionStatus::failed;
    outcome.message = work.injected_failure;
    return outcome;
  }
  if (lane.copy->paced()) outcome.start_ns = std::max(work.ready_ns, lane.free_ns);
  if (work.fault.delay_ns > 0) outcome.start_ns = now();
  const Nanoseconds begin_ns = now();
  const bool whole = lane.copy->run(work.copy, origin_ns_ + outcome.start_ns, work.cancelled);
  if (!whole) outcome.status = CompletionStatus::cancelled;
  if (whole && work.fault.slow_factor > 1) {  // cancelled too late: all of it is there
    const auto factor = static_cast<Nanoseconds>(work.fault.slow_factor);
    wait_until(origin_ns_ + begin_ns + (now() - begin_ns) * factor, &work.cancelled);
  }
  const Nanoseconds end_ns = now();
  lane.free_ns = end_ns;
  if (whole && lane.copy->paced() && work.fault.slow_factor == 1) {
    const Nanoseconds due_ns = lane.copy->end_ns(outcome.start_ns, work.copy.bytes);
    if (end_ns - due_ns < catch_up_ns) lane.free_ns = due_ns;
  }
  return outcome;
}

HostMachine::Outcome HostMachine::run_op(Lane& lane, Work& work) {
  Outcome outcome;
  if (work.op.idle) {
    outcome.start_ns = std::max(work.ready_ns, lane.free_ns);
    wait_until(origin_ns_ + outcome.start_ns + work.op.duration_ns, &work.cancelled);
  } else {
    outcome.start_ns = now();
    bodies_.run(lane.op_lane, work.op.op, work.uses, *this);
  }
  lane.free_ns = now();
  return outcome;
}

// Under the lock: completions are in order of their times.
void HostMachine::complete(Lane& lane, Outcome outcome) {
  const Work& work = lane.queue.front();
  Completion completion;
  completion.fence = work.fence;
  completion.tag = work.tag;
  completion.status = outcome.status;
  completion.end_ns = now();
  // Paced from a moment before the one ahead was really over: spans of a lane do not overlap.
  completion.start_ns = std::max(outcome.start_ns, lane.last_end_ns);
  lane.last_end_ns = completion.end_ns;
  if (outcome.status == CompletionStatus::failed) last_error_ = std::move(outcome.message);
  completions_.push_back(completion);
  arrived_.notify_all();

  const auto over = pending_.find(work.fence);
  TENCACHE_CHECK(over != pending_.end());
  for (const Fence fence : over->second.dependants) {
    const auto dependant = pending_.find(fence);
    if (dependant == pending_.end()) continue;  // it was cancelled
    Work& freed = *dependant->second.work;
    freed.ready_ns = completion.end_ns;
    if (--freed.blockers == 0) dependant->second.lane->wake.notify_one();
  }
  pending_.erase(over);
  lane.queue.pop_front();
}

// --- Completions ----------------------------------------------------------------------------------------------------

bool HostMachine::take_completion(Completion& completion) {
  if (stopped_ || completions_.empty()) return false;
  completion = completions_.front();
  completions_.pop_front();
  return true;
}

bool HostMachine::wait(Completion& completion) {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return stopped_ || !completions_.empty() || pending_.empty(); });
  return take_completion(completion);
}

bool HostMachine::wait_for(Completion& completion, std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, limit, [&] { return stopped_ || !completions_.empty(); });
  return take_completion(completion);
}

void HostMachine::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  arrived_.notify_all();
}

Nanoseconds HostMachine::now() const { return clock_ns() - origin_ns_; }

std::string HostMachine::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

// --- Room -----------------------------------------------------------------------------------------------------------

void HostMachine::map(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.files != nullptr) {
    take_slot(*tier.files, tensor, begin, bytes);
  } else {
    if (faults_) faults_->next_room(place.tier, bytes);
    tier.memory->map(tensor, begin, bytes, place.offset);
  }
}

void HostMachine::unmap(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.files != nullptr) {
    tier.files->give(tensor, begin);
  } else {
    tier.memory->unmap(tensor, begin, bytes);
  }
}

void HostMachine::tensor_created(TensorId tensor, Bytes bytes) {
  for (const TierStore& tier : tiers_) {
    if (tier.memory != nullptr) tier.memory->create(tensor, bytes);
  }
}

void HostMachine::retire(TensorId tensor) {
  for (const TierStore& tier : tiers_) {
    if (tier.memory != nullptr) tier.memory->retire(tensor);
  }
}

void HostMachine::tensor_destroyed(TensorId tensor) {
  for (const TierStore& tier : tiers_) {
    if (tier.memory != nullptr) tier.memory->destroy(tensor);
    if (tier.files != nullptr) tier.files->give_all(tensor);
  }
}

void HostMachine::initialise(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.pages != nullptr) {
    bodies_.initialise(tensor, begin, {tier.memory->address(tensor) + begin, bytes});
    return;
  }
  const AlignedBuffer buffer = aligned_buffer(bytes);
  bodies_.initialise(tensor, begin, {buffer.get(), bytes});
  if (tier.on_accelerator()) {
    transfer_directly(tensor, begin, place.tier, buffer.get(), bytes, true);
    return;
  }
  if (!tier.files->has(tensor, begin)) tier.files->take(tensor, begin, bytes);
  FileLane lane(*tier.files);
  lane.write(tier.files->blocks(tensor, begin, bytes), buffer.get(), [](Bytes) { return true; });
}

// On the calling thread, past the lanes.
void HostMachine::transfer_directly(TensorId tensor, Bytes begin, TierId tier, std::byte* content, Bytes bytes,
                                    bool upload) {
  const std::unique_ptr<CopyEngine> engine = options_.accelerator->copy_engine();
  std::byte* device = address(tensor, tier) + begin;
  upload ? engine->upload(device, content, bytes) : engine->download(content, device, bytes);
  engine->wait(0);
}

std::byte* HostMachine::address(TensorId tensor, TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].memory != nullptr);
  return tiers_[tier].memory->address(tensor);
}

Bytes HostMachine::bytes(TensorId tensor) const { return tiers_[0].memory->bytes(tensor); }

std::vector<std::byte> HostMachine::content(TensorId tensor, Bytes begin, Bytes bytes, TierId tier) {
  std::vector<std::byte> result(bytes);
  if (tiers_[tier].on_accelerator()) {
    transfer_directly(tensor, begin, tier, result.data(), bytes, false);
    return result;
  }
  if (tiers_[tier].memory != nullptr) {
    std::memcpy(result.data(), address(tensor, tier) + begin, bytes);
    return result;
  }
  const SwapFiles& from = *tiers_[tier].files;
  const AlignedBuffer buffer = aligned_buffer(bytes);
  FileLane lane(from);
  lane.read(from.blocks(tensor, begin, bytes), buffer.get(), [](Bytes) { return true; });
  std::memcpy(result.data(), buffer.get(), bytes);
  return result;
}

std::string HostMachine::describe() const {
  std::string text;
  for (std::size_t i = 0; i < spec_.tiers.size(); i++) {
    const Tier& tier = spec_.tiers[i];
    const char* what = tier.kind == TierKind::nvme ? " of files" : " of memory";
    text += tier.name + ": " + format_bytes(tier.capacity) + what;
    if (tiers_[i].on_accelerator()) text += " of " + options_.accelerator->describe();
    if (tiers_[i].pages != nullptr && options_.accelerator != nullptr) {
      const std::string& refusal = tiers_[i].pages->pin_refusal();
      text += refusal.empty() ? ", page-locked" : ", not page-locked, so that copies are slower: " + refusal;
    }
    for (const std::string& directory : tier.directories) text += " " + directory;
    if (tiers_[i].files != nullptr && tiers_[i].files->checksums()) text += ", with checksums";
    text += "\n";
  }
  for (std::size_t i = 0; i < links_.size(); i++) {
    const Link& link = spec_.links[i];
    text += link.name + ": ";
    if (spec_.tiers[link.from].kind != TierKind::nvme && spec_.tiers[link.to].kind != TierKind::nvme) {
      text += tiers_[link.from].on_accelerator() || tiers_[link.to].on_accelerator() ? "copy engine" : "memcpy";
    } else {
      const std::string reason = links_[i]->copy->fallback_reason();
      const std::string indirect = links_[i]->copy->indirect_reason();
      const bool to_accelerator = tiers_[link.from].on_accelerator() || tiers_[link.to].on_accelerator();
      if (to_accelerator && indirect.empty()) {
        text += "GPUDirect Storage";
      } else {
        text += reason.empty() ? "io_uring with O_DIRECT" : "pread and pwrite, " + reason;
        if (to_accelerator) text += ", through page-locked buffers (" + indirect + ")";
      }
    }
    text += options_.pace ? ", paced to " + format_bandwidth(link.bandwidth) + "\n" : ", not paced\n";
  }
  if (staging_ != nullptr) {
    text += "staging: " + std::to_string(spec_.staging.count) + " × " + format_bytes(spec_.staging.bytes) +
            (staging_locked_ ? ", locked\n" : ", not locked (RLIMIT_MEMLOCK)\n");
  }
  return text;
}

ChunkMemoryStatistics HostMachine::memory_statistics(TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].memory != nullptr);
  return tiers_[tier].memory->statistics();
}

const SwapFiles& HostMachine::files(TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].files != nullptr);
  return *tiers_[tier].files;
}

}  // namespace tencache
