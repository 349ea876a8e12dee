#include "executor/work_lanes.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "executor/clock.h"
#include "executor/order_site.h"

namespace tencache {

WorkLanes::WorkLanes(Nanoseconds origin_ns, std::vector<std::unique_ptr<LaneRunner>> copies,
                     std::vector<std::unique_ptr<LaneRunner>> ops)
    : origin_ns_(origin_ns) {
  std::vector<Lane*> all;
  MutexLock lock(mutex_);
  for (auto* runners : {&copies, &ops}) {
    for (std::unique_ptr<LaneRunner>& runner : *runners) {
      lanes_.push_back(std::make_unique<Lane>());
      lanes_.back()->runner = std::move(runner);
      lanes_.back()->copies = runners == &copies;
      all.push_back(lanes_.back().get());
    }
  }
  lock.unlock();
  try {
    for (Lane* lane : all) threads_.emplace_back([this, lane] { serve(*lane); });
  } catch (...) {
    close();
    throw;
  }
}

WorkLanes::~WorkLanes() { close(); }

void WorkLanes::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    stopped_ = true;
    for (auto& [fence, pending] : pending_) pending.queued->cancelled = true;
    for (const auto& lane : lanes_) lane->wake.notify_all();
    arrived_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Fence WorkLanes::enqueue(std::size_t at, LaneWork work, bool may_wait) {
  const MutexLock lock(mutex_);
  Lane& lane = *lanes_[at];
  Queued& queued = lane.queue.emplace_back();
  queued.work = std::move(work);
  queued.work.fence = queued.fence = ++last_fence_;
  queued.may_wait = may_wait;
  queued.ready_ns = now();
  if (!lane.copies) {
    // The op may write what a cancelled copy still reads: it waits until the copy has noticed.
    for (const auto& other : lanes_) {
      if (!TENCACHE_ORDER_SITE("guard", other->reads_for_nothing())) continue;
      pending_.at(other->queue.front().fence).dependants.push_back(queued.fence);
      queued.blockers++;
    }
  }
  pending_[queued.fence] = {&lane, &queued, {}};
  if (lane.queue.size() == 1) wake(lane);
  return queued.fence;
}

// For the front one, which its thread has not seen.
void WorkLanes::wake(Lane& lane) {
  if (!lane.ready()) return;
  lane.waits = lane.queue.front().may_wait;
  if (!lane.waits) lane.wake.notify_one();
}

void WorkLanes::start() {
  const MutexLock lock(mutex_);
  for (const auto& lane : lanes_) {
    if (std::exchange(lane->waits, false)) lane->wake.notify_one();
  }
}

bool WorkLanes::run_one() {
  MutexLock lock(mutex_);
  Lane* const lane = waiting();
  if (lane == nullptr) return false;
  const Queued& queued = begin(*lane);
  lock.unlock();
  LaneOutcome outcome = run(*lane, queued);
  lock.lock();
  complete(*lane, std::move(outcome));
  wake(*lane);
  return true;
}

// A lane whose thread was not woken for the front one, which may run; null: there is none.
WorkLanes::Lane* WorkLanes::waiting() {
  const auto found = std::ranges::find_if(lanes_, [](const auto& lane) { return lane->waits && lane->ready(); });
  return found == lanes_.end() ? nullptr : found->get();
}

// The front one, which stays where it is: the queue only grows behind it.
const WorkLanes::Queued& WorkLanes::begin(Lane& lane) {
  lane.waits = false;
  lane.running = true;
  return lane.queue.front();
}

void WorkLanes::cancel(Fence fence) {
  const MutexLock lock(mutex_);
  const auto pending = pending_.find(fence);
  if (pending == pending_.end() || !pending->second.lane->copies) return;
  pending->second.queued->cancelled = true;
  pending->second.lane->waits = false;
  pending->second.lane->wake.notify_one();
}

void WorkLanes::serve(Lane& lane) {
  sharpen_sleep();
  MutexLock lock(mutex_);
  while (true) {
    while (!closing_ && (lane.waits || !lane.ready())) lane.wake.wait(lock);
    if (closing_) return;
    const Queued& queued = begin(lane);
    lock.unlock();
    LaneOutcome outcome = run(lane, queued);
    lock.lock();
    complete(lane, std::move(outcome));
    arrived_.notify_all();
  }
}

LaneOutcome WorkLanes::run(Lane& lane, const Queued& queued) const {
  const Nanoseconds start_ns = now();
  try {
    return lane.runner->run(queued.work, queued.ready_ns, queued.cancelled);
  } catch (const std::exception& error) {
    return {CompletionStatus::failed, error.what(), start_ns};
  } catch (...) {
    return {CompletionStatus::failed, "an op failed with an unknown exception", start_ns};
  }
}

Completion WorkLanes::Lane::finish(const LaneOutcome& outcome, Nanoseconds now) {
  running = false;
  Completion completion;
  completion.fence = queue.front().fence;
  completion.tag = queue.front().work.tag;
  completion.status = outcome.status;
  completion.end_ns = now;
  completion.start_ns = std::max(outcome.start_ns, last_end_ns);
  last_end_ns = now;
  queue.pop_front();
  return completion;
}

// Holding the lock, so completions are in order of their times.
void WorkLanes::complete(Lane& lane, LaneOutcome outcome) {
  const Completion completion = lane.finish(outcome, now());
  if (outcome.status == CompletionStatus::failed) last_error_ = std::move(outcome.message);
  completions_.push_back(completion);

  const auto over = pending_.find(completion.fence);
  TENCACHE_CHECK(over != pending_.end());
  for (const Fence fence : over->second.dependants) {
    const auto dependant = pending_.find(fence);
    TENCACHE_CHECK(dependant != pending_.end());
    Queued& freed = *dependant->second.queued;
    freed.ready_ns = completion.end_ns;
    if (--freed.blockers == 0) dependant->second.lane->wake.notify_one();
  }
  if (over->second.observed) {
    over->second.observed->end_ns = completion.end_ns;
    completions_.push_back(*over->second.observed);
  }
  pending_.erase(over);
}

Fence WorkLanes::expect() {
  const MutexLock lock(mutex_);
  ++expected_;
  return ++last_fence_;
}

void WorkLanes::post(Completion completion, std::string message) {
  const MutexLock lock(mutex_);
  completion.end_ns = std::max(now(), completion.start_ns);
  if (completion.status == CompletionStatus::failed) last_error_ = std::move(message);
  const auto pending = pending_.find(completion.fence);
  if (pending != pending_.end()) {
    pending->second.observed = completion;
    return;
  }
  if (completion.status != CompletionStatus::observed) --expected_;
  completions_.push_back(completion);
}

void WorkLanes::nudge() {
  const MutexLock lock(mutex_);
  nudged_ = true;
  arrived_.notify_all();
}

bool WorkLanes::stopped() const {
  const MutexLock lock(mutex_);
  return stopped_;
}

bool WorkLanes::busy() const {
  const MutexLock lock(mutex_);
  return !pending_.empty();
}

bool WorkLanes::take_completion(Completion& completion) {
  if (stopped_ || completions_.empty()) return false;
  completion = completions_.front();
  completions_.pop_front();
  return true;
}

bool WorkLanes::wait(Completion& completion) {
  MutexLock lock(mutex_);
  while (!stopped_ && completions_.empty() && (!pending_.empty() || expected_ > 0)) arrived_.wait(lock);
  return take_completion(completion);
}

bool WorkLanes::await(std::chrono::nanoseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  while (!stopped_ && !nudged_ && completions_.empty() && arrived_.wait_until(lock, until)) {
  }
  nudged_ = false;
  return !stopped_ && !completions_.empty();
}

bool WorkLanes::take(Completion& completion) {
  const MutexLock lock(mutex_);
  return take_completion(completion);
}

void WorkLanes::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  arrived_.notify_all();
}

std::uint64_t WorkLanes::submitted() const {
  const MutexLock lock(mutex_);
  return last_fence_;
}

Nanoseconds WorkLanes::now() const { return clock_ns() - origin_ns_; }

std::string WorkLanes::last_error() const {
  const MutexLock lock(mutex_);
  return last_error_;
}

}  // namespace tencache
