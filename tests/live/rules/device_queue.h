// Streams and events: what the device was given and has not done. Order within a stream, none between streams but what
// events and the legacy stream make.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "tests/live/rules/adversary.h"
#include "tests/live/rules/device_job.h"

namespace tencache::rules {

class DeviceQueue {
 public:
  struct Stream {
    bool blocking = false;  // ordered with the legacy stream
    bool destroyed = false;
    VectorClock clock;  // what is over when all that it was given is
    std::deque<DeviceJob> jobs;
    std::uint64_t given = 0, done = 0;
    std::vector<Moment> waits;         // of its next job
    std::vector<Nanoseconds> ends_ns;  // of the jobs that are over
  };

  // `watch` hears of each job when it is over; it may be empty.
  DeviceQueue(JobCost cost, std::function<void(const DeviceJob&)> watch)
      : cost_(std::move(cost)), watch_(std::move(watch)) {}

  void add_stream(Line line, bool blocking) { streams_[line].blocking = blocking; }
  // What it was given is done all the same.
  void destroy_stream(Line line) { streams_.at(line).destroyed = true; }
  Stream* find(Line line);
  std::size_t live_streams() const;

  // The job's moment; `host` is what the thread that submits it knows.
  Moment submit(Line line, DeviceJob job, const VectorClock& host, Nanoseconds now_ns);
  // What is submitted to the stream from now on comes after it.
  void wait(Line line, Moment moment, const VectorClock& known);
  // What is known when all that the stream was given is over; its last work.
  Moment last(Line line) const;
  const VectorClock& known_after(Line line) const { return streams_.at(line).clock; }

  bool over(Moment moment) const;
  Nanoseconds end_ns(Moment moment) const;  // of what is over; number 0: 0
  // Whether a job that is not over touches it.
  bool touches(const Range& range) const;
  // Jobs that are not over, that the stream's next one comes after, and that touch the same bytes, one of both writing:
  // of the stream itself and of each that its jobs wait for, and so on, the last one.
  std::vector<Moment> conflicts(Line line, const Access& access) const;
  // What the stream's next job waits for.
  const std::vector<Moment>& waits(Line line) const { return streams_.at(line).waits; }
  std::size_t waiting() const;  // jobs
  std::size_t kernels() const;  // of them
  std::vector<Enabled> enabled() const;
  // The first job of the stream, and when it may begin: it is enabled.
  const DeviceJob& first(Line line) const { return streams_.at(line).jobs.front(); }
  Nanoseconds ready_ns(Line line) const;
  // Runs it, for as long as it costs; or in that time.
  void run_first(Line line);
  void run_first(Line line, Nanoseconds begin_ns, Nanoseconds end_ns);
  // All that must be over for it, in the order of submission.
  void force(Moment moment);
  void run_all();
  // A fault: nothing that waits runs any more.
  void drop_all();

 private:
  bool may_run(const Stream& stream) const;

  JobCost cost_;
  std::function<void(const DeviceJob&)> watch_;
  std::map<Line, Stream> streams_;
};

}  // namespace tencache::rules
