#include "executor/live/program_streams.h"

#include <algorithm>

#include "executor/order_site.h"

namespace tencache {

void ProgramStreams::coming(std::span<const Use> uses) {
  if (!ordered()) return;
  stream_ = current_();
  uses_.assign(uses.begin(), uses.end());
  machine_->use_stream(stream_);
}

void ProgramStreams::begin(std::uint32_t record) {
  if (!ordered()) return;
  const std::size_t waits = TENCACHE_ORDER_SITE("wait", machine_->before_op(stream_, uses_));
  times_ = record != none;
  if (!times_) return;
  timed_.push_back({.record = record, .stream = stream_, .waited = waits > 0});
  mark_time();
}

void ProgramStreams::mark_time() {
  const Nanoseconds begin_ns = machine_->now();
  timed_.back().events.push_back(machine_->streams().record_timed(stream_));
  cost_ns_ += machine_->now() - begin_ns;
}

void ProgramStreams::allocated(TensorId tensor) {
  if (!ordered()) return;
  const Use use{tensor, false, true};
  if (times_) mark_time();
  TENCACHE_ORDER_SITE("wait", machine_->before_op(stream_, {&use, 1}));
  if (times_) mark_time();
  uses_.push_back(use);
}

void ProgramStreams::gone(TensorId tensor) {
  if (!ordered() || std::ranges::find(uses_, tensor, &Use::tensor) == uses_.end()) return;
  const Use use{tensor, true, true};
  TENCACHE_ORDER_SITE("table", machine_->after_use(stream_, {&use, 1}));
  std::erase_if(uses_, [tensor](const Use& other) { return other.tensor == tensor; });
}

void ProgramStreams::end(Nanoseconds duration_ns) {
  if (!ordered()) return;
  TENCACHE_ORDER_SITE("table", machine_->after_op(stream_, uses_, duration_ns));
  uses_.clear();
  if (std::exchange(times_, false)) mark_time();
}

std::vector<ProgramStreams::Time> ProgramStreams::take_times() {
  std::vector<Time> times;
  if (timed_.empty()) return times;
  DeviceStreams& streams = machine_->streams();
  machine_->await_streams();
  const Timed* before = nullptr;
  for (const Timed& op : timed_) {
    Time& time = times.emplace_back(Time{.record = op.record});
    for (std::size_t i = 0; i + 1 < op.events.size(); i += 2) {
      time.duration_ns += streams.between(op.events[i], op.events[i + 1]);
    }
    if (before != nullptr && before->stream == op.stream && !op.waited) {
      time.gap_ns = std::max<Nanoseconds>(0, streams.between(before->events.back(), op.events.front()));
    }
    before = &op;
  }
  forget_times();
  return times;
}

void ProgramStreams::forget_times() {
  for (const Timed& op : std::exchange(timed_, {})) {
    for (const DeviceEvent event : op.events) machine_->streams().let_go_timed(event);
  }
}

}  // namespace tencache
