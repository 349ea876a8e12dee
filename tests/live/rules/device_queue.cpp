#include "tests/live/rules/device_queue.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace tencache::rules {

DeviceQueue::Stream* DeviceQueue::find(Line line) {
  const auto found = streams_.find(line);
  return found == streams_.end() || found->second.destroyed ? nullptr : &found->second;
}

std::size_t DeviceQueue::live_streams() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(streams_, [](const auto& stream) { return !stream.second.destroyed; }));
}

Moment DeviceQueue::submit(Line line, DeviceJob job, const VectorClock& host, Nanoseconds now_ns) {
  Stream& stream = streams_.at(line);
  stream.clock.learn(host);
  const Moment moment = stream.clock.tick(line);
  stream.given = job.number = moment.number;
  job.after = std::exchange(stream.waits, {});
  job.begin_ns = now_ns;  // not before
  stream.jobs.push_back(std::move(job));
  return moment;
}

void DeviceQueue::wait(Line line, Moment moment, const VectorClock& known) {
  Stream& stream = streams_.at(line);
  stream.clock.learn(known);
  if (moment.number != 0) stream.waits.push_back(moment);  // over or not: its end counts for times
}

Moment DeviceQueue::last(Line line) const { return {line, streams_.at(line).given}; }

bool DeviceQueue::over(Moment moment) const {
  const auto found = streams_.find(moment.line);
  return moment.number == 0 || (found != streams_.end() && found->second.done >= moment.number);
}

Nanoseconds DeviceQueue::end_ns(Moment moment) const {
  return moment.number == 0 ? 0 : streams_.at(moment.line).ends_ns.at(moment.number - 1);
}

bool DeviceQueue::touches(const Range& range) const {
  for (const auto& [line, stream] : streams_) {
    for (const DeviceJob& job : stream.jobs) {
      if (std::ranges::any_of(job.accesses, [&](const Access& access) { return access.range.overlaps(range); })) {
        return true;
      }
    }
  }
  return false;
}

std::vector<Moment> DeviceQueue::conflicts(Line line, const Access& access) const {
  std::map<Line, std::uint64_t> before = {{line, streams_.at(line).given}};  // by stream: its jobs up to that number
  for (std::vector<Line> next = {line}; !next.empty();) {
    const Line at = next.back();
    next.pop_back();
    for (const DeviceJob& job : streams_.at(at).jobs) {
      if (job.number > before[at]) break;
      for (const Moment& moment : job.after) {
        if (over(moment) || moment.number <= before[moment.line]) continue;
        before[moment.line] = moment.number;
        next.push_back(moment.line);
      }
    }
  }
  std::vector<Moment> result;
  for (const auto& [at, number] : before) {
    Moment last{at, 0};
    for (const DeviceJob& job : streams_.at(at).jobs) {
      if (job.number > number) break;
      if (std::ranges::any_of(job.accesses, [&](const Access& other) {
            return (other.write || access.write) && other.range.overlaps(access.range);
          })) {
        last.number = job.number;
      }
    }
    if (last.number != 0) result.push_back(last);
  }
  return result;
}

std::size_t DeviceQueue::waiting() const {
  std::size_t sum = 0;
  for (const auto& [line, stream] : streams_) sum += stream.jobs.size();
  return sum;
}

std::size_t DeviceQueue::kernels() const {
  std::size_t sum = 0;
  for (const auto& [line, stream] : streams_) {
    sum += static_cast<std::size_t>(std::ranges::count(stream.jobs, JobKind::kernel, &DeviceJob::kind));
  }
  return sum;
}

bool DeviceQueue::may_run(const Stream& stream) const {
  return !stream.jobs.empty() &&
         std::ranges::all_of(stream.jobs.front().after, [&](const Moment& moment) { return over(moment); });
}

std::vector<Enabled> DeviceQueue::enabled() const {
  std::vector<Enabled> result;
  for (const auto& [line, stream] : streams_) {
    if (may_run(stream)) result.push_back({line, stream.jobs.front().kind});
  }
  return result;
}

Nanoseconds DeviceQueue::ready_ns(Line line) const {
  const Stream& stream = streams_.at(line);
  const DeviceJob& job = stream.jobs.front();
  Nanoseconds ready_ns = std::max(job.begin_ns, end_ns({line, stream.done}));
  for (const Moment& moment : job.after) ready_ns = std::max(ready_ns, end_ns(moment));
  return ready_ns;
}

void DeviceQueue::run_first(Line line) {
  TENCACHE_CHECK(may_run(streams_.at(line)));
  DeviceJob& job = streams_.at(line).jobs.front();
  job.begin_ns = ready_ns(line);
  run_first(line, job.begin_ns, job.begin_ns + (cost_ ? cost_(job) : 0));
}

void DeviceQueue::run_first(Line line, Nanoseconds begin_ns, Nanoseconds end_ns) {
  Stream& stream = streams_.at(line);
  TENCACHE_CHECK(may_run(stream));
  DeviceJob job = std::move(stream.jobs.front());
  stream.jobs.pop_front();
  job.begin_ns = begin_ns;
  job.end_ns = end_ns;
  job.run();
  stream.ends_ns.push_back(job.end_ns);
  stream.done = job.number;
  if (watch_) watch_(job);
}

// Every wait names what was submitted before it, so this ends.
void DeviceQueue::force(Moment moment) {
  while (!over(moment)) {
    const auto found = streams_.find(moment.line);
    TENCACHE_CHECK(found != streams_.end() && !found->second.jobs.empty());
    const std::vector<Moment> after = found->second.jobs.front().after;
    for (const Moment& earlier : after) force(earlier);
    run_first(moment.line);
  }
}

void DeviceQueue::run_all() {
  for (const auto& [line, stream] : streams_) force(last(line));
}

void DeviceQueue::drop_all() {
  for (auto& [line, stream] : streams_) {
    stream.jobs.clear();
    stream.ends_ns.resize(stream.given);
    stream.done = stream.given;
  }
}

}  // namespace tencache::rules
