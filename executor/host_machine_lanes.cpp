// What a HostMachine is given to do: from submission through the lanes' threads to its completion.
#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "executor/clock.h"
#include "executor/host_machine.h"

namespace tencache {
namespace {

// A lane later than this behind its link's figures is slow, not badly scheduled: it starts afresh.
constexpr Nanoseconds catch_up_ns = 500'000;

}  // namespace

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

Fence HostMachine::submit(const CopyCommand& copy, Tag tag) {
  TENCACHE_CHECK(copy.link < links_.size() && copy.bytes != 0);
  Work work;
  work.tag = tag;
  work.copy = resolve(copy);
  if (faults_) disturb(copy, work);
  return enqueue(*links_[copy.link], work);
}

Fence HostMachine::execute(const OpCommand& op, Tag tag) {
  TENCACHE_CHECK(op.lane < op_lanes_.size() && (op.idle || tier_of_lane(op.lane) != no_tier));
  Work work;
  work.tag = tag;
  work.op = op;
  work.uses.assign(op.uses.begin(), op.uses.end());
  work.op.uses = {};
  return enqueue(*op_lanes_[op.lane], work);
}

Fence HostMachine::enqueue(Lane& lane, Work& work) {
  const std::lock_guard lock(mutex_);
  Work& queued = lane.queue.emplace_back();
  queued.fence = ++last_fence_;
  queued.tag = work.tag;
  queued.fault = work.fault;
  queued.injected_failure = std::move(work.injected_failure);
  queued.copy = std::move(work.copy);
  queued.op = work.op;
  queued.uses = std::move(work.uses);
  queued.ready_ns = now();
  if (lane.copy == nullptr) {
    // The op may write what a cancelled copy still reads: it waits until the copy has noticed.
    for (const auto& link : links_) {
      if (!link->running || !link->queue.front().cancelled) continue;
      pending_.at(link->queue.front().fence).dependants.push_back(queued.fence);
      queued.blockers++;
    }
  }
  pending_[queued.fence] = {&lane, &queued, {}};
  if (lane.queue.size() == 1 && queued.blockers == 0) lane.wake.notify_one();
  return queued.fence;
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
    return !lane.queue.empty() && lane.queue.front().blockers == 0;
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
    TENCACHE_CHECK(dependant != pending_.end());
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

}  // namespace tencache
