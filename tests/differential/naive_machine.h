// The simulated machine of naive_engine.h, a second time from docs/engine.md: at every step the rates of all flows are
// found anew. One rank; times in integer nanoseconds, data in bytes x 1e9.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

#include "core/machine_spec.h"
#include "core/metrics.h"

namespace tencache {

// Those of core/timeline.h, then the host's: the program's thread, where it runs ahead.
inline constexpr std::size_t host_lane = lane_count, naive_lanes = lane_count + 1;

// A chunk in a tier, a unit of memory in which chunks move, or a staging buffer: in the tier behind the last one.
struct Touch {
  std::size_t tier = 0;
  std::uint64_t number = 0;
  bool write = false;
};

struct Job {
  int id = 0;
  int transfer = -1;  // -1: an op, a gap or a move
  bool gap = false;
  bool move = false;
  OpIndex op = none;
  std::vector<Touch> touches;
  int number = 0;            // of the ordered machine: in order of submission
  Nanoseconds fixed_ns = 0;  // the op, or what comes before the data
  uint128 data = 0;          // bytes x 1e9 still to flow
  BytesPerSecond cap = 0;    // of the flow
  bool waits = false;        // its fixed time has begun
  bool begun = false, flowing = false, cancelled = false;
  Nanoseconds start_ns = 0, fixed_end_ns = 0;
};

struct Ended {
  std::size_t server = 0;
  Job job;
  bool observed = false;  // it was reported before
};

// Servers are the lanes, then the links.
class NaiveMachine {
 public:
  explicit NaiveMachine(const MachineSpec& spec) : spec_(spec), servers_(naive_lanes + spec.links.size()) {
    for (const Link& link : spec.links) credits_.push_back(static_cast<uint128>(link.burst_bytes) * 1'000'000'000u);
  }

  // A copy over the link, `setup_ns` before its latency.
  Job copy(LinkId link, Bytes bytes, Nanoseconds setup_ns) const {
    const Link& l = spec_.links[link];
    Job job;
    job.fixed_ns = setup_ns + l.latency_ns;
    job.data = static_cast<uint128>(bytes) * 1'000'000'000u;
    job.cap = l.bandwidth;
    if (l.devices > 1 && l.stripe_bytes > 0) {
      const std::uint64_t stripes = (bytes + l.stripe_bytes - 1) / l.stripe_bytes;
      job.cap = std::max<BytesPerSecond>(
          1, static_cast<BytesPerSecond>(static_cast<uint128>(l.bandwidth) *
                                         std::min<std::uint64_t>(l.devices, stripes) / l.devices));
    }
    return job;
  }
  // `duration_ns` of an op or a gap, and the host's cost of the copies before it.
  Job op(std::size_t lane, Nanoseconds duration_ns, Bytes bytes) {
    if (lane == gpu_lane && spec_.run_ahead.ops == 0) {
      duration_ns += uncharged_ * spec_.host.per_transfer_ns;
      uncharged_ = 0;
    }
    Job job;
    job.fixed_ns = duration_ns;
    give_traffic(job, lane, bytes);
    return job;
  }

  // A chunk moves within tier 0.
  Job move(Bytes bytes) const {
    const BytesPerSecond rate = spec_.tiers[0].bandwidth;
    Job job;
    job.move = true;
    job.fixed_ns = static_cast<Nanoseconds>((static_cast<uint128>(2 * bytes) * 1'000'000'000u + rate - 1) / rate);
    give_traffic(job, gpu_lane, 2 * bytes);
    return job;
  }

  int push(std::size_t server, Job job) {
    job.id = ++last_id_;
    if (server >= naive_lanes || job.move) ++uncharged_;
    servers_[server].push_back(job);
    return job.id;
  }
  void cancel(int id) {
    for (auto& server : servers_) {
      for (Job& job : server) job.cancelled |= job.id == id;
    }
  }
  Nanoseconds now() const { return now_; }

  bool next(Ended& ended) {
    while (true) {
      begin_what_can();
      const std::vector<BytesPerSecond> rates = share();
      Nanoseconds first_ns = std::numeric_limits<Nanoseconds>::max();
      std::size_t first = servers_.size();
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        if (servers_[i].empty()) continue;
        const Job& job = servers_[i].front();
        Nanoseconds at = job.fixed_end_ns;
        if (job.flowing) {
          const uint128 until = runs_dry(i) ? credits_[i - naive_lanes] : job.data;
          at = now_ + static_cast<Nanoseconds>((until + rates[i] - 1) / rates[i]);
        }
        if (job.cancelled) at = now_;
        if (first == servers_.size() || at < first_ns || (at == first_ns && job.id < servers_[first].front().id)) {
          first = i;
          first_ns = at;
        }
      }
      if (first == servers_.size()) return false;
      const bool dry = runs_dry(first);
      for (std::size_t i = 0; i < servers_.size(); ++i) let_flow(i, rates[i], first_ns - now_);
      now_ = first_ns;
      Job& job = servers_[first].front();
      if (first >= naive_lanes && !job.flowing && !job.cancelled && !job.move) {
        job.flowing = true;
        continue;
      }
      if (job.flowing && !job.cancelled && dry) {
        credits_[first - naive_lanes] = 0;
        continue;
      }
      ended = {first, job};
      servers_[first].pop_front();
      begin_what_can();
      if (!ended.job.move || spec_.run_ahead.ops > 0) return true;
    }
  }
  void begin_what_can() {
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      const std::size_t depth =
          i < naive_lanes ? 1 : std::max<std::size_t>(1, spec_.links[i - naive_lanes].queue_depth);
      for (std::size_t place = 0; place < std::min(depth, servers_[i].size()); ++place) {
        Job& job = servers_[i][place];
        if (job.waits || (job.move && place > 0)) continue;
        job.waits = true;
        job.fixed_end_ns = now_ + job.fixed_ns;
      }
      if (servers_[i].empty() || servers_[i].front().begun) continue;
      Job& job = servers_[i].front();
      job.begun = true;
      job.start_ns = now_;
      job.flowing = i < naive_lanes || job.move ? job.data > 0 : job.fixed_end_ns <= now_;
      if (i >= naive_lanes) job.fixed_end_ns = std::max(job.fixed_end_ns, now_);
    }
  }

 private:
  bool moves(std::size_t i) const { return !servers_[i].empty() && servers_[i].front().move; }
  bool has_credit(std::size_t i) const {
    return i >= naive_lanes && spec_.links[i - naive_lanes].sustained_bandwidth > 0;
  }
  bool bursts(std::size_t i) const { return has_credit(i) && !moves(i); }
  // The lane's job, which takes its fixed time, has so much traffic meanwhile.
  void give_traffic(Job& job, std::size_t lane, Bytes bytes) const {
    if (uses_of(lane).empty() || bytes == 0 || job.fixed_ns == 0) return;
    job.cap = std::max<BytesPerSecond>(1, static_cast<BytesPerSecond>(static_cast<uint128>(bytes) * 1'000'000'000u /
                                                                      static_cast<uint128>(job.fixed_ns)));
    job.data = static_cast<uint128>(job.cap) * static_cast<uint128>(job.fixed_ns);
  }
  // What comes next to the server's flow is the end of its credit.
  bool runs_dry(std::size_t i) const {
    return bursts(i) && credits_[i - naive_lanes] > 0 && credits_[i - naive_lanes] < servers_[i].front().data;
  }
  void let_flow(std::size_t i, BytesPerSecond rate, Nanoseconds passed_ns) {
    const uint128 flowed = static_cast<uint128>(rate) * static_cast<uint128>(passed_ns);
    const bool flows = !servers_[i].empty() && servers_[i].front().flowing;
    if (flows) {
      uint128& data = servers_[i].front().data;
      data -= std::min(data, flowed);
    }
    if (flows && bursts(i)) {
      credits_[i - naive_lanes] -= std::min(credits_[i - naive_lanes], flowed);
    } else if (has_credit(i)) {
      const Link& link = spec_.links[i - naive_lanes];
      credits_[i - naive_lanes] = std::min(
          static_cast<uint128>(link.burst_bytes) * 1'000'000'000u,
          credits_[i - naive_lanes] + static_cast<uint128>(link.sustained_bandwidth) * static_cast<uint128>(passed_ns));
    }
  }
  const std::vector<std::uint8_t>& uses_of(std::size_t i) const {
    static const std::vector<std::uint8_t> nothing;
    if (moves(i)) return spec_.lane_uses[gpu_lane];
    if (i == communication_lane || i == host_lane) return nothing;
    return i < naive_lanes ? spec_.lane_uses[i] : spec_.links[i - naive_lanes].uses;
  }
  // Max-min fairness by filling: whoever is bound first gets its share, the rest is filled further.
  std::vector<BytesPerSecond> share() const {
    std::vector<BytesPerSecond> rates(servers_.size(), 0);
    std::vector<BytesPerSecond> spare;
    for (const Resource& resource : spec_.resources) spare.push_back(resource.bandwidth);
    std::set<std::size_t> open;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i].empty() && servers_[i].front().flowing) open.insert(i);
    }
    while (!open.empty()) {
      std::map<std::size_t, BytesPerSecond>
          offer;  // by link: the least of its own bandwidth and its resources' equal shares
      for (const std::size_t i : open) {
        offer[i] = servers_[i].front().cap;
        if (bursts(i) && credits_[i - naive_lanes] == 0)
          offer[i] = std::min(offer[i], spec_.links[i - naive_lanes].sustained_bandwidth);
        for (const std::uint8_t resource : uses_of(i)) {
          BytesPerSecond users = 0;
          for (const std::size_t other : open) {
            const auto& uses = uses_of(other);
            users += static_cast<BytesPerSecond>(std::count(uses.begin(), uses.end(), resource));
          }
          offer[i] = std::min(offer[i], spare[resource] / users);
        }
      }
      BytesPerSecond least = std::numeric_limits<BytesPerSecond>::max();
      for (const auto& [i, rate] : offer) least = std::min(least, rate);
      for (const auto& [i, rate] : offer) {
        if (rate != least) continue;
        rates[i] = std::max<BytesPerSecond>(least, 1);
        for (const std::uint8_t resource : uses_of(i)) spare[resource] -= std::min(spare[resource], least);
        open.erase(i);
      }
    }
    return rates;
  }

  const MachineSpec& spec_;
  std::vector<std::deque<Job>> servers_;
  std::vector<uint128> credits_;  // by link, bytes x 1e9
  Nanoseconds now_ = 0;
  int last_id_ = 0;
  int uncharged_ = 0;  // copies
};

}  // namespace tencache
