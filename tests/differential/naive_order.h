// The machine of sim/ordered_machine.h a second time, from that header: every touch of memory is kept until its job is
// over, and a job comes after all those of other lanes and links that conflict with it. Where the machine does not run
// ahead it is NaiveMachine.
#pragma once

#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "tests/differential/naive_machine.h"

namespace tencache {

class NaiveOrderedMachine {
 public:
  explicit NaiveOrderedMachine(const MachineSpec& spec)
      : spec_(spec),
        below_(spec),
        lines_(naive_lanes + spec.links.size()),
        offered_(lines_.size()),
        alive_(lines_.size()) {}

  NaiveMachine& below() { return below_; }
  Nanoseconds now() const { return below_.now(); }
  bool runs_ahead() const { return spec_.run_ahead.ops > 0; }

  int push(std::size_t server, Job job) {
    if (!runs_ahead()) {
      const int id = below_.push(server, std::move(job));
      below_.begin_what_can();
      return id;
    }
    job.number = ++last_number_;
    const int number = job.number;
    if (job.move) {
      ++copies_not_charged_;
      put_in_line(server, std::move(job));
    } else if (server == gpu_lane || server == communication_lane) {
      host_.push_back({server, std::move(job)});
    } else if (server >= naive_lanes) {
      ++copies_not_charged_;
      if (is_stream(server)) {
        offered_[server].push_back(std::move(job));
      } else {
        put_in_line(server, std::move(job));
      }
    } else {
      put_in_line(server, std::move(job));
    }
    go_on();
    return number;
  }

  void cancel(int id) {
    if (!runs_ahead()) return below_.cancel(id);
    for (std::size_t server = 0; server < lines_.size(); ++server) {
      for (Job& job : offered_[server]) {
        if (job.number != id) continue;
        job.cancelled = true;
        job.start_ns = now();
        withdrawn_[id] = {server, job};
      }
      std::erase_if(offered_[server], [id](const Job& job) { return job.number == id; });
      if (is_stream(server)) continue;
      for (Job& job : lines_[server]) job.cancelled |= job.number == id;
      for (const Job& job : alive_[server]) {
        if (job.number == id && job.id != 0) below_.cancel(job.id);
      }
    }
  }

  bool next(Ended& ended) {
    if (!runs_ahead()) return below_.next(ended);
    for (const auto& [number, withdrawn] : withdrawn_) ready_.push_back(withdrawn);
    withdrawn_.clear();
    while (ready_.empty()) {
      Ended over;
      if (!below_.next(over)) return false;
      take(over);
      go_on();
    }
    ended = ready_.front();
    ready_.pop_front();
    return true;
  }

 private:
  struct Past {
    std::size_t server = 0;
    int number = 0;  // of the job
    Touch touch;
  };

  const Link& link(std::size_t server) const { return spec_.links[server - naive_lanes]; }
  // Completions say that what comes next is ordered behind.
  bool is_stream(std::size_t server) const {
    if (server < naive_lanes) return server == gpu_lane || server == communication_lane;
    std::multiset<TierKind> kinds{spec_.tiers[link(server).from].kind, spec_.tiers[link(server).to].kind};
    return kinds == std::multiset<TierKind>{TierKind::gpu, TierKind::cpu};
  }

  void put_in_line(std::size_t server, Job job) {
    std::set<int> after;
    for (const Past& past : touches_) {
      if (past.server == server) continue;
      for (const Touch& mine : job.touches) {
        const bool same = past.touch.tier == mine.tier && past.touch.number == mine.number;
        if (same && (past.touch.write || mine.write)) after.insert(past.number);
      }
    }
    for (const Touch& mine : job.touches) touches_.push_back({server, job.number, mine});
    after_[job.number] = after;
    alive_[server].push_back(job);
    lines_[server].push_back(std::move(job));
  }

  void take(const Ended& over) {
    if (over.server == host_lane && host_pays_) {
      host_works_ = false;
      return;
    }
    if (over.server == host_lane) {
      auto [server, job] = host_.front();
      host_.pop_front();
      host_works_ = false;
      if (!job.gap) put_in_line(server, job);
      ready_.push_back({server, job});
      return;
    }
    over_.insert(over.job.number);
    std::erase_if(touches_, [&](const Past& past) { return past.number == over.job.number; });
    std::erase_if(alive_[over.server], [&](const Job& job) { return job.number == over.job.number; });
    if (over.job.move) return;
    if (!is_stream(over.server)) ready_.push_back(over);
    if (!over.job.cancelled && !over.job.gap) ready_.push_back({over.server, over.job, true});
  }

  void go_on() {
    for (std::size_t server = naive_lanes; server < lines_.size(); ++server) {
      while (!offered_[server].empty() && hands_over(server)) {
        const Job job = offered_[server].front();
        offered_[server].pop_front();
        put_in_line(server, job);
        ready_.push_back({server, job});
      }
    }
    if (!host_works_) {
      Job job;
      host_pays_ = copies_not_charged_ * spec_.host.per_transfer_ns > 0;
      host_works_ = host_pays_ || (!host_.empty() && (host_.front().second.gap || window_open()));
      if (host_pays_) {
        job.fixed_ns = copies_not_charged_ * spec_.host.per_transfer_ns;
        copies_not_charged_ = 0;
      } else if (host_works_ && host_.front().second.gap) {
        job.fixed_ns = host_.front().second.fixed_ns;
      }
      if (host_works_) below_.push(host_lane, job);
    }
    for (std::size_t server = 0; server < lines_.size(); ++server) {
      while (!lines_[server].empty()) {
        const Job& first = lines_[server].front();
        if (!std::ranges::includes(over_, after_[first.number])) break;
        const int id = below_.push(server, first);
        if (first.cancelled) below_.cancel(id);
        for (Job& job : alive_[server]) {
          if (job.number == first.number) job.id = id;
        }
        lines_[server].pop_front();
      }
    }
    below_.begin_what_can();
  }

  bool hands_over(std::size_t server) const {
    uint128 data = 0;  // bytes x 1e9
    std::size_t copies = 0;
    for (const Job& job : alive_[server]) {
      if (!job.move) data += job.data, ++copies;
    }
    return copies < spec_.run_ahead.copies ||
           data < static_cast<uint128>(link(server).bandwidth) * static_cast<uint128>(spec_.run_ahead.copies_ns);
  }
  bool window_open() const {
    Nanoseconds behind_ns = 0;
    std::size_t launched = 0;
    bool copies = false;
    for (std::size_t server = 0; server < alive_.size(); ++server) {
      if (!is_stream(server)) continue;
      bool first = true;
      for (const Job& job : alive_[server]) {
        if (job.move) continue;
        if (server >= naive_lanes) {
          copies = true;
          continue;
        }
        ++launched;
        if (!first) behind_ns += job.fixed_ns;
        first = false;
      }
    }
    return launched < spec_.run_ahead.ops && (!copies || behind_ns < spec_.run_ahead.time_ns);
  }

  const MachineSpec& spec_;
  NaiveMachine below_;
  std::deque<std::pair<std::size_t, Job>> host_;
  bool host_works_ = false, host_pays_ = false;  // pays: for copies
  std::vector<std::deque<Job>> lines_;           // in line, and not let go
  std::vector<std::deque<Job>> offered_;         // not handed over
  std::vector<std::vector<Job>> alive_;          // in line, and not over
  std::vector<Past> touches_;
  std::map<int, std::set<int>> after_;  // of each job: those that it comes after
  std::set<int> over_;
  std::deque<Ended> ready_;
  std::map<int, Ended> withdrawn_;  // cancelled before they were handed over, by number
  int last_number_ = 0;
  int copies_not_charged_ = 0;
};

}  // namespace tencache
