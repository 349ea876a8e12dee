#include "tests/live/rules/device_engines.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace tencache::rules {

std::size_t DeviceEngines::engine_of(JobKind kind) {
  return kind == JobKind::upload ? 0 : kind == JobKind::download ? 1 : 2;
}

double DeviceEngines::speed(const Running& job) const {
  double asked = 0;
  for (const std::optional<Running>& other : engines_) asked += other ? other->demand : 0;
  return job.demand > 0 && asked > model_.hbm_bytes_per_ns ? model_.hbm_bytes_per_ns / asked : 1;
}

Nanoseconds DeviceEngines::end_ns(const Running& job) const {
  return now_ns_ + std::llround(std::ceil(job.left_ns / speed(job) - 1e-6));
}

// Of those that could begin on an idle engine, the one that could first.
void DeviceEngines::begin_jobs() {
  for (std::size_t engine = 0; engine < engines_.size(); ++engine) {
    if (engines_[engine]) continue;
    std::optional<Line> first;
    for (const Enabled& job : queue_.enabled()) {
      if (engine_of(job.kind) != engine || queue_.ready_ns(job.stream) > now_ns_) continue;
      if (!first || queue_.ready_ns(job.stream) < queue_.ready_ns(*first)) first = job.stream;
    }
    if (!first) continue;
    const DeviceJob& job = queue_.first(*first);
    engines_[engine] = Running{*first, now_ns_, static_cast<double>(model_.duration_ns(job)), model_.demand(job)};
  }
}

std::optional<Nanoseconds> DeviceEngines::next_ns() const {
  std::optional<Nanoseconds> next;
  const auto consider = [&](Nanoseconds moment_ns) { next = next ? std::min(*next, moment_ns) : moment_ns; };
  for (const std::optional<Running>& job : engines_) {
    if (job) consider(end_ns(*job));
  }
  for (const Enabled& job : queue_.enabled()) {
    if (!engines_[engine_of(job.kind)]) consider(std::max(queue_.ready_ns(job.stream), now_ns_));
  }
  return next;
}

void DeviceEngines::work(Nanoseconds until_ns) {
  std::array<double, 3> done{};
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i]) done[i] = speed(*engines_[i]) * static_cast<double>(until_ns - now_ns_);
  }
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i]) engines_[i]->left_ns -= done[i];
  }
  now_ns_ = until_ns;
}

void DeviceEngines::advance(Nanoseconds to_ns) {
  TENCACHE_CHECK(to_ns >= now_ns_);
  while (true) {
    begin_jobs();
    const std::optional<Nanoseconds> next = next_ns();
    if (!next || *next > to_ns) break;
    work(*next);
    for (std::optional<Running>& job : engines_) {
      if (!job || job->left_ns > 1e-6) continue;
      const Running over = *job;
      job.reset();
      queue_.run_first(over.line, over.begin_ns, now_ns_);
    }
  }
  work(to_ns);
}

}  // namespace tencache::rules
