#include "sim/sim_machine.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr std::size_t lanes = 2;
constexpr Nanoseconds longest_ns = std::numeric_limits<Nanoseconds>::max() / 3;  // of one copy; about a hundred years

}  // namespace

SimMachine::SimMachine(const MachineSpec& spec) : spec_(spec), servers_(lanes + spec.links.size()) {}

Fence SimMachine::submit(const CopyCommand& copy, Fence after, Tag tag) {
  Job job;
  job.after = after;
  job.tag = tag;
  job.bytes = copy.bytes;
  job.duration_ns = spec_.links[copy.link].latency_ns;
  push(lanes + copy.link, job);
  return last_fence_;
}

Fence SimMachine::execute(const OpCommand& op, Fence after, Tag tag) {
  Job job;
  job.after = after;
  job.tag = tag;
  job.duration_ns = op.duration_ns;
  push(op.lane, job);
  return last_fence_;
}

void SimMachine::push(std::size_t server, Job job) {
  job.fence = ++last_fence_;
  servers_[server].jobs.push_back(job);
  if (servers_[server].state == State::idle) begin(server);
}

// Starts the server's first job, if there is one and its fence has passed.
void SimMachine::begin(std::size_t index) {
  Server& server = servers_[index];
  server.next_ns = never;
  if (server.jobs.empty()) {
    server.state = State::idle;
    return;
  }
  const Job& job = server.jobs.front();
  if (!passed(job.after)) {
    server.state = State::blocked;
    return;
  }
  server.start_ns = now_;
  if (index < lanes || job.duration_ns > 0) {
    server.state = State::latency;
    server.next_ns = now_ + job.duration_ns;
  } else {
    set_flowing(index, true);
  }
}

void SimMachine::set_flowing(std::size_t index, bool flowing) {
  Server& server = servers_[index];
  const std::uint64_t bit = std::uint64_t{1} << (index - lanes);
  if (flowing) {
    server.state = State::flowing;
    server.left = static_cast<uint128>(server.jobs.front().bytes) * static_cast<uint128>(second_ns);
    server.updated_ns = now_;
    server.rate = 0;
    flowing_ |= bit;
  } else {
    flowing_ &= ~bit;
  }
  share_bandwidth();
}

// The set of flowing links changed: settles what has flowed and gives each its new rate.
void SimMachine::share_bandwidth() {
  if (flowing_ == 0) return;
  const std::vector<BytesPerSecond>& rates = rates_of(flowing_);
  for (std::size_t link = 0; link < rates.size(); ++link) {
    if ((flowing_ >> link & 1) == 0) continue;
    Server& server = servers_[lanes + link];
    if (server.rate == rates[link]) continue;
    const uint128 flowed = static_cast<uint128>(server.rate) * static_cast<uint128>(now_ - server.updated_ns);
    server.left = flowed >= server.left ? 0 : server.left - flowed;
    server.updated_ns = now_;
    server.rate = rates[link];
    const uint128 flow_ns = (server.left + server.rate - 1) / server.rate;
    if (flow_ns > static_cast<uint128>(longest_ns)) {
      throw Error("machine '" + spec_.name + "': a copy over link '" + spec_.links[link].name +
                  "' would take more than a hundred years; check its bandwidth and the tensors' sizes");
    }
    server.next_ns = now_ + static_cast<Nanoseconds>(flow_ns);
  }
}

const std::vector<BytesPerSecond>& SimMachine::rates_of(std::uint64_t flowing) {
  const auto found = rates_.find(flowing);
  if (found != rates_.end()) return found->second;
  std::vector<BytesPerSecond> rates(spec_.links.size(), 0);
  std::vector<BytesPerSecond> left(spec_.resources.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = spec_.resources[i].bandwidth;
  std::uint64_t open = flowing;  // links without a final rate
  while (open != 0) {
    // The smallest equal share over all resources, and over the links' own bandwidth, fixes the links that it binds.
    BytesPerSecond share = std::numeric_limits<BytesPerSecond>::max();
    std::vector<std::uint64_t> users(left.size(), 0);
    for (std::size_t link = 0; link < rates.size(); ++link) {
      if ((open >> link & 1) == 0) continue;
      share = std::min(share, spec_.links[link].bandwidth);
      for (const std::uint8_t resource : spec_.links[link].uses) ++users[resource];
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (users[i] > 0) share = std::min(share, left[i] / users[i]);
    }
    std::uint64_t bound = 0;
    for (std::size_t link = 0; link < rates.size(); ++link) {
      if ((open >> link & 1) == 0) continue;
      bool binds = spec_.links[link].bandwidth == share;
      for (const std::uint8_t resource : spec_.links[link].uses) binds |= left[resource] / users[resource] == share;
      if (binds) bound |= std::uint64_t{1} << link;
    }
    TENCACHE_CHECK(bound != 0);
    for (std::size_t link = 0; link < rates.size(); ++link) {
      if ((bound >> link & 1) == 0) continue;
      rates[link] = std::max<BytesPerSecond>(share, 1);
      for (const std::uint8_t resource : spec_.links[link].uses) left[resource] -= std::min(left[resource], share);
    }
    open &= ~bound;
  }
  return rates_.emplace(flowing, std::move(rates)).first->second;
}

bool SimMachine::passed(Fence fence) const {
  if (fence == 0) return true;
  for (const Server& server : servers_) {
    for (const Job& job : server.jobs) {
      if (job.fence == fence) return false;
    }
  }
  return true;
}

void SimMachine::cancel(Fence fence) {
  for (Server& server : servers_) {
    for (Job& job : server.jobs) {
      if (job.fence == fence) job.cancelled = true;
    }
  }
}

bool SimMachine::wait(Completion& completion) {
  while (true) {
    for (std::size_t i = 0; i < servers_.size(); ++i) {  // all of them first: beginning one changes the rates of others
      if (servers_[i].state == State::blocked && passed(servers_[i].jobs.front().after)) begin(i);
    }
    std::size_t next = servers_.size();
    Nanoseconds next_ns = never;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      Server& server = servers_[i];
      if (server.jobs.empty()) continue;
      const Job& job = server.jobs.front();
      const Nanoseconds at = job.cancelled ? now_ : server.next_ns;
      if (at < next_ns || (at == next_ns && at != never && job.fence < servers_[next].jobs.front().fence)) {
        next = i;
        next_ns = at;
      }
    }
    if (next_ns == never) return false;
    TENCACHE_CHECK(next_ns >= now_);
    now_ = next_ns;
    Server& server = servers_[next];
    if (server.jobs.front().cancelled) {
      complete(next, CompletionStatus::cancelled, completion);
      return true;
    }
    if (next >= lanes && server.state == State::latency) {
      set_flowing(next, true);
      continue;
    }
    complete(next, CompletionStatus::done, completion);
    return true;
  }
}

void SimMachine::complete(std::size_t index, CompletionStatus status, Completion& completion) {
  Server& server = servers_[index];
  const Job job = server.jobs.front();
  const bool started = server.state != State::blocked;
  completion = {job.fence, job.tag, status, started ? server.start_ns : now_, now_};
  const bool was_flowing = server.state == State::flowing;
  server.jobs.pop_front();
  server.state = State::idle;
  if (was_flowing) set_flowing(index, false);
  begin(index);
}

}  // namespace tencache
