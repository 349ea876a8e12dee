#include "executor/live/op_gate.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "executor/order_site.h"

namespace tencache {

OpGate::OpGate(EngineFeed& feed, StepFollower& follower, const LiveTensors& tensors, DeviceFence& device,
               ProgramStreams& streams, std::function<void()> hear, std::function<void()> wake)
    : feed_(feed),
      follower_(follower),
      tensors_(tensors),
      device_(device),
      streams_(streams),
      hear_(std::move(hear)),
      wake_(std::move(wake)) {}

// ---- The turn -------------------------------------------------------------------------------------------------------

void OpGate::Turn::run_body() { std::exchange(gate_, nullptr)->body_ = std::this_thread::get_id(); }

void OpGate::Turn::linger() {
  OpGate& gate = *std::exchange(gate_, nullptr);
  gate.lingers_ = true;
  gate.feed_.assert_held();
  gate.feed_.wake();  // a thread that waits for its turn ends it
}

void OpGate::take(MutexLock& lock) {
  feed_.assert_held();
  while (taken_) {
    feed_.wait(lock);
    enter();
  }
  taken_ = true;
}

void OpGate::give() {
  feed_.assert_held();
  taken_ = false;
  body_ = {};
  working_set_.clear();
  feed_.wake();
}

void OpGate::enter(bool anew) {
  feed_.assert_held();
  if (asleep_) wake_();
  if (anew) feed_.new_moment();
  if (holds_any()) let_go();
  end_lingering();
  accept_returned();
  hear_();
}

void OpGate::end_lingering() {
  feed_.assert_held();
  if (!std::exchange(lingers_, false)) return;
  const Turn turn(*this);
  TENCACHE_ORDER_SITE("wait", await_device());
  if (!streams_.ordered()) device_.over();
  feed_.new_moment();
  hear_();
  end();
}

bool OpGate::fall_asleep(MutexLock& lock, std::span<const Use> uses) {
  feed_.assert_held();
  const Nanoseconds at = feed_.now();
  feed_.tell([&](Engine& engine) { engine.begin(none, uses, at); });
  try {
    await_memory(lock);
    asleep_ = true;
  } catch (const OutOfMemory&) {
    feed_.engine().abandon(feed_.now());
  }
  return asleep_;
}

void OpGate::end_sleep() {
  feed_.assert_held();
  asleep_ = false;
  const Nanoseconds at = feed_.now();
  feed_.tell([at](Engine& engine) { engine.end(at); });
  pause(at);
}

// ---- The op ---------------------------------------------------------------------------------------------------------

OpIndex OpGate::announce(const Op& op, std::span<const Use> uses, Nanoseconds now, Bytes part_bytes) {
  feed_.assert_held();
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  const OpIndex index = follower_.begin_op(op, uses, signal);
  if (signal == StepFollower::Signal::deviated) {
    feed_.tell([now](Engine& engine) { engine.schedule_deviated(now); });
  }
  working_set_.begin(op.name, part_bytes);
  known_ns_ = index == none || !streams_.ordered() ? 0 : follower_.program().trace.ops[index].duration_ns;
  return index;
}

void OpGate::need(std::span<const Use> uses) {
  for (const Use& use : uses) need(use.tensor, use.write);
}

void OpGate::begin(MutexLock& lock, NameId name, std::span<const Use> uses, Bytes part_bytes) {
  feed_.assert_held();
  const Nanoseconds at = feed_.moment();
  Op announced;
  announced.name = name;
  announced.gap_before_ns = gap(at);
  const OpIndex op = announce(announced, uses, at, part_bytes);
  need(uses);
  for (const Lent& lent : lent_) {  // what cannot leave meanwhile is needed, too
    const bool used = std::ranges::any_of(uses, [&lent](const Use& use) { return use.tensor == lent.tensor; });
    if (!lent.comes_back && !used) need(lent.tensor, lent.written);
  }
  const EngineFeed::Helper helper(feed_);
  streams_.coming(uses);
  feed_.tell([&](Engine& engine) { engine.begin(op, uses, at); });
  try {
    await_memory(lock);
    if (streams_.ordered() && follower_.recording()) has_waited(feed_.now() - at);
  } catch (const OutOfMemory& error) {
    streams_.abandon();
    follower_.end_op(0);
    give_up(error, op_name());
  } catch (...) {
    streams_.abandon();
    follower_.end_op(0);
    throw;
  }
}

void OpGate::start() {
  TENCACHE_ORDER_SITE("table", device_.started());
  feed_.assert_held();
  if (streams_.ordered()) {
    const std::uint32_t record = follower_.recorded_op();
    feed_.tell([this, record](Engine&) { streams_.begin(record); });
    has_waited(streams_.take_cost());
    return;
  }
  if (!follower_.recording()) return;  // nobody asks how long it takes
  begin_ns_ = feed_.now();
  waited_ns_ = 0;
}

void OpGate::end() {
  feed_.assert_held();
  const Nanoseconds at = feed_.moment();
  feed_.tell([this, at](Engine& engine) {
    streams_.end(known_ns_);
    engine.end(at);
  });
  if (streams_.ordered() && follower_.recording()) {
    follower_.set_issue(follower_.recorded_op(), at - last_end_ns_ - waits_ns_);
  }
  pause(at);
  has_waited(streams_.take_cost());
  follower_.end_op(follower_.recording() ? at - begin_ns_ - waited_ns_ : 0);
}

void OpGate::take_times() {
  feed_.assert_held();
  if (!streams_.ordered()) return;
  feed_.tell([this](Engine&) {
    for (const ProgramStreams::Time& time : streams_.take_times()) {
      follower_.set_duration(time.record, time.duration_ns);
      follower_.set_gap(time.record, time.gap_ns);
    }
  });
}

void OpGate::allocate(MutexLock& lock, TensorId tensor, Nanoseconds now) {
  feed_.assert_held();
  need(tensor, true);
  const EngineFeed::Helper helper(feed_);
  feed_.tell([tensor, now](Engine& engine) { engine.allocate(tensor, now); });
  try {
    await_memory(lock);
  } catch (const OutOfMemory& error) {
    give_up(error, op_name());
  }
  if (streams_.ordered()) feed_.tell([this, tensor](Engine&) { streams_.allocated(tensor); });
  if (!follower_.recording()) return;
  waited_ns_ += feed_.now() - now;
  has_waited(feed_.now() - now);
  streams_.take_cost();  // is in that
}

// ---- Waiting --------------------------------------------------------------------------------------------------------

void OpGate::wait_until(MutexLock& lock, const std::function<bool()>& done) {
  feed_.assert_held();
  while (!done()) {
    accept_returned();
    hear_();
    if (done()) return;
    if (feed_.help()) continue;
    if (feed_.idle()) check_progress();
    if (!done() && (!feed_.idle() || any_comes_back())) feed_.wait(lock);
  }
}

void OpGate::check_progress() {
  feed_.assert_held();
  try {
    feed_.check_progress();
  } catch (const OutOfMemory&) {
    if (!any_comes_back()) throw;
  }
}

void OpGate::await_memory(MutexLock& lock) {
  const auto ready = [this] {
    feed_.assert_held();
    return feed_.engine().ready();
  };
  if (!ready()) wait_until(lock, ready);
}

// The engine knows nothing of an op; the message gets its name, and what it needs.
void OpGate::give_up(const OutOfMemory& error, const std::string& op) {
  feed_.assert_held();
  feed_.engine().abandon(feed_.now());
  std::string message = error.what();
  const std::string unnamed = "'" + error.op() + "'";
  if (const std::size_t at = message.find(unnamed); at != std::string::npos) {
    message.replace(at, unnamed.size(), "'" + op + "'");
  } else {
    message = "op '" + op + "': " + message;
  }
  if (const Bytes needed = working_set_.give_up(); needed != 0) {
    message += "; it needs at least " + format_bytes(needed) + " at once";
  }
  throw OutOfMemory(message, op, error.bytes_missing());
}

void OpGate::await_device() {
  feed_.assert_held();
  if (streams_.ordered()) return;
  try {
    device_.await();
  } catch (...) {
    feed_.fail(std::current_exception());
  }
}

// ---- Who else uses memory -------------------------------------------------------------------------------------------

void OpGate::lend(std::span<const Use> uses, bool comes_back) {
  feed_.assert_held();
  if (feed_.failure() != nullptr) std::rethrow_exception(feed_.failure());
  for (const Use& use : uses) {
    feed_.engine().pin(use.tensor, use.write);
    lent_.push_back({use.tensor, use.write, comes_back});
  }
}

void OpGate::take_back(std::span<const Use> uses, bool comes_back) noexcept {
  feed_.assert_held();
  for (const Use& use : uses) {
    lent_.erase(std::ranges::find(lent_, Lent{use.tensor, use.write, comes_back}));
  }
  if (streams_.ordered()) {
    returned_.insert(returned_.end(), uses.begin(), uses.end());
  } else {
    unpin(uses);
  }
  feed_.wake();  // a thread that waits for memory looks again
}

void OpGate::unpin(std::span<const Use> uses) {
  feed_.assert_held();
  if (feed_.failure() != nullptr) return;
  for (const Use& use : uses) feed_.engine().unpin(use.tensor, use.write);
}

void OpGate::accept_returned() {
  feed_.assert_held();
  if (returned_.empty()) return;
  try {
    TENCACHE_ORDER_SITE("wait", device_.await_everything());
  } catch (...) {
    feed_.fail(std::current_exception());
  }
  unpin(std::exchange(returned_, {}));
}

bool OpGate::any_comes_back() const { return !returned_.empty() || std::ranges::any_of(lent_, &Lent::comes_back); }

void OpGate::hold(TensorId tensor) {
  feed_.assert_held();
  feed_.engine().pin(tensor);
  held_.push_back(tensor);
}

void OpGate::let_go() {
  feed_.assert_held();
  if (feed_.failure() != nullptr) return;
  for (const TensorId tensor : std::exchange(held_, {})) feed_.engine().unpin(tensor);
}

bool OpGate::may_be_written(TensorId tensor) const {
  return asleep_ || (inside_body() && working_set_.writes(tensor)) ||
         std::ranges::any_of(lent_, [tensor](const Lent& one) { return one.tensor == tensor && one.written; });
}

void OpGate::forget(TensorId tensor) {
  feed_.assert_held();
  working_set_.remove(tensor, tensors_.room(tensor));
  streams_.gone(tensor);
  const auto mine = [tensor](const Use& use) { return use.tensor == tensor; };
  for (const Use& use : returned_) {
    if (mine(use)) unpin({&use, 1});
  }
  std::erase_if(returned_, mine);
  if (!holds_any()) return;
  for (std::size_t left = std::erase(held_, tensor); left > 0; --left) feed_.engine().unpin(tensor);
}

}  // namespace tencache
