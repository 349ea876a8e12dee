#include "sim/sim_world.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/state_hash.h"
#include "sim/interruption.h"

namespace tencache {
namespace {

constexpr std::size_t lanes = SimWorld::host_lane + std::size_t{1};

constexpr Nanoseconds never = SimServer::never;
constexpr Nanoseconds too_late = never - 1;  // the clock would pass longest_clock_ns before

BytesPerSecond bandwidth_of(const Link& link, CopyMemory memory) {
  if (memory == CopyMemory::pageable && link.pageable_bandwidth != 0) return link.pageable_bandwidth;
  if (memory != CopyMemory::unified) return link.bandwidth;
  return static_cast<BytesPerSecond>(link.paged_efficiency * static_cast<double>(link.bandwidth));
}

BytesPerSecond cap_of_copy(const Link& link, Bytes bytes, CopyMemory memory) {
  const BytesPerSecond bandwidth = bandwidth_of(link, memory);
  if (link.devices <= 1 || link.stripe_bytes == 0) return std::max<BytesPerSecond>(1, bandwidth);
  const std::uint64_t stripes = bytes / link.stripe_bytes + (bytes % link.stripe_bytes == 0 ? 0 : 1);
  const std::uint64_t reached = std::min<std::uint64_t>(link.devices, stripes);
  const uint128 cap = static_cast<uint128>(bandwidth) * reached / link.devices;
  return std::max<BytesPerSecond>(1, static_cast<BytesPerSecond>(cap));
}

}  // namespace

SimWorld::SimWorld(std::vector<const MachineSpec*> ranks) : bandwidth_(make_bandwidth(ranks)) {
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const MachineSpec& spec = *ranks[rank];
    ranks_.push_back({.spec = &spec, .first_server = servers_.size()});
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      SimServer& server = servers_.emplace_back();
      server.lane = true;
      server.flows = lane < spec.lane_uses.size() && !spec.lane_uses[lane].empty();
      server.rank = rank;
    }
    for (std::uint32_t link = 0; link < spec.links.size(); ++link) {
      SimServer& server = servers_.emplace_back();
      server.flows = !spec.lane_uses[gpu_lane].empty();
      server.rank = rank;
      server.queue_depth = std::max<std::uint32_t>(1, spec.links[link].queue_depth);
      server.flow.set_burst(spec.links[link].sustained_bandwidth, spec.links[link].burst_bytes);
      server.undisturbed =
          !server.flow.has_burst() && bandwidth_.alone(static_cast<std::uint32_t>(servers_.size() - 1));
    }
  }
  for (std::uint32_t index = 0; index < servers_.size(); ++index) server_of_.push_back(index);
  for (std::uint32_t index = 0; index < servers_.size(); ++index) {
    moves_of_.push_back(servers_[index].lane ? index : static_cast<std::uint32_t>(server_of_.size()));
    if (!servers_[index].lane) server_of_.push_back(index);
  }
  next_ns_.assign(servers_.size(), never);
  front_.assign(servers_.size(), 0);
}

Bandwidth SimWorld::make_bandwidth(const std::vector<const MachineSpec*>& ranks) {
  std::vector<BytesPerSecond> capacities, usual_caps;
  std::vector<std::vector<std::uint32_t>> uses;
  std::map<std::uint32_t, std::uint32_t> shared;  // number -> index into capacities
  std::vector<std::vector<std::uint32_t>> moves;  // by link of all ranks: what its moves use
  for (const MachineSpec* spec : ranks) {
    std::vector<std::uint32_t> index;  // of the rank's resources
    for (const Resource& resource : spec->resources) {
      const auto fresh = static_cast<std::uint32_t>(capacities.size());
      if (resource.shared != none) {
        const auto [known, inserted] = shared.emplace(resource.shared, fresh);
        if (!inserted && capacities[known->second] != resource.bandwidth) {
          throw Error("machine '" + spec->name + "': resource '" + resource.name +
                      "' is shared between ranks, which state different bandwidths for it");
        }
        index.push_back(known->second);
        if (!inserted) continue;
      } else {
        index.push_back(fresh);
      }
      capacities.push_back(resource.bandwidth);
    }
    const auto add = [&](const std::vector<std::uint8_t>& resources, BytesPerSecond usual_cap) {
      auto& of_flow = uses.emplace_back();
      for (const std::uint8_t resource : resources) of_flow.push_back(index[resource]);
      usual_caps.push_back(usual_cap);
    };
    for (const auto& of_lane : spec->lane_uses) add(of_lane, 0);
    add({}, 0);  // the communication lane: its ranks' interconnect is in its ops' durations
    add({}, 0);  // the host lane
    for (const Link& link : spec->links) add(link.uses, link.bandwidth);
    std::vector<std::uint32_t> of_moves;
    if (spec->tiers[0].bandwidth > 0) {
      for (const std::uint8_t resource : spec->lane_uses[gpu_lane]) of_moves.push_back(index[resource]);
    }
    moves.insert(moves.end(), spec->links.size(), of_moves);
  }
  uses.insert(uses.end(), moves.begin(), moves.end());
  usual_caps.resize(uses.size(), 0);
  return Bandwidth(std::move(capacities), std::move(uses), std::move(usual_caps));
}

// ---- Jobs -----------------------------------------------------------------------------------------------------------

Fence SimWorld::submit(std::size_t rank, const CopyCommand& copy, Tag tag, const CopyFault& fault) {
  const Link& link = ranks_[rank].spec->links[copy.link];
  const std::size_t server = ranks_[rank].first_server + lanes + copy.link;
  SimServer::Job& job = servers_[server].jobs.emplace_back();
  job.tag = tag;
  job.bytes = copy.bytes;
  job.fixed_ns = copy.setup_ns + link.latency_ns + fault.delay_ns;
  job.cap = std::max<BytesPerSecond>(1, cap_of_copy(link, copy.bytes, copy.memory) / fault.slow_factor);
  job.fails = fault.failure.has_value();
  if (ranks_[rank].spec->host.per_transfer_ns > 0 && ranks_[rank].spec->run_ahead.ops == 0) ++ranks_[rank].uncharged;
  return take_up(server);
}

Fence SimWorld::execute(std::size_t rank, const OpCommand& op, Tag tag) {
  const std::size_t server = ranks_[rank].first_server + op.lane;
  SimServer::Job& job = servers_[server].jobs.emplace_back();
  job.tag = tag;
  job.fixed_ns = op.duration_ns;
  if (op.lane == gpu_lane && ranks_[rank].spec->run_ahead.ops == 0) {
    Rank& at = ranks_[rank];
    job.fixed_ns += at.spec->host.per_transfer_ns * static_cast<Nanoseconds>(std::exchange(at.uncharged, 0));
  }
  job.bytes = op.bytes;
  job.op = op.op;
  job.rendezvous = op.rendezvous;
  return take_up(server);
}

Nanoseconds SimWorld::time_of(std::size_t rank, const MoveCommand& move) const {
  const BytesPerSecond bandwidth = ranks_[rank].spec->tiers[move.from.tier].bandwidth;
  TENCACHE_CHECK(bandwidth > 0);
  return later(DataFlow::time_of(DataFlow::amount(2 * move.bytes), bandwidth)) - now_;
}

Fence SimWorld::move(std::size_t rank, const MoveCommand& move, std::optional<Tag> tag) {
  Rank& at = ranks_[rank];
  const std::size_t server = at.first_server + (move.link == no_link ? std::size_t{gpu_lane} : lanes + move.link);
  SimServer::Job& job = servers_[server].jobs.emplace_back();
  job.tag = tag.value_or(0);
  job.fixed_ns = time_of(rank, move);
  job.bytes = 2 * move.bytes;
  job.move = true;
  job.untold = !tag;
  if (at.spec->host.per_transfer_ns > 0 && at.spec->run_ahead.ops == 0) ++at.uncharged;
  return take_up(server);
}

// The server's last job is new.
Fence SimWorld::take_up(std::size_t index) {
  SimServer& server = servers_[index];
  const Fence fence = server.jobs.back().fence = ++last_fence_;
  if (server.state == State::idle) {
    begin(index);
  } else {
    start_latency(index, server.jobs.size() - 1);
  }
  return fence;
}

// The server's first job, if there is one, begins once the other ranks have come.
void SimWorld::begin(std::size_t index) {
  SimServer& server = servers_[index];
  next_ns_[index] = never;
  server.state = State::idle;
  if (server.jobs.empty()) return;
  const SimServer::Job& job = server.first();
  front_[index] = job.fence;
  if (job.cancelled) {
    server.state = State::stopped;
    next_ns_[index] = now_;
  } else if (job.rendezvous != 0 && !meet_others(index)) {
    server.state = State::meeting;
  } else {
    start(index);
  }
}

bool SimWorld::meet_others(std::size_t index) {
  const auto found = meetings_.find(servers_[index].first().rendezvous);
  if (found == meetings_.end()) return true;
  Meeting& meeting = found->second;
  if (meeting.arrived.size() + 1 < meeting.rank_count) {
    meeting.arrived.push_back(index);
    return false;
  }
  for (const std::size_t other : meeting.arrived) start(other);
  meeting.arrived.clear();
  return true;
}

void SimWorld::start(std::size_t index) {
  SimServer& server = servers_[index];
  SimServer::Job& job = server.first();
  server.start_ns = now_;
  if (server.first_is_fixed()) {
    if (server.flows && job.bytes > 0 && job.fixed_ns > 0) {
      job.cap = std::max<BytesPerSecond>(
          1, static_cast<BytesPerSecond>(DataFlow::amount(job.bytes) / static_cast<uint128>(job.fixed_ns)));
      start_flowing(index);
    } else {
      server.state = State::fixed;
      next_ns_[index] = later(static_cast<uint128>(job.fixed_ns));
    }
    return;
  }
  if (job.ready_ns == never) job.ready_ns = later(static_cast<uint128>(job.fixed_ns));
  if (server.undisturbed) {
    const Nanoseconds latency_left_ns = std::max<Nanoseconds>(job.ready_ns - now_, 0);
    server.state = State::fixed;
    next_ns_[index] =
        later(static_cast<uint128>(latency_left_ns) + DataFlow::time_of(DataFlow::amount(job.bytes), job.cap));
  } else if (job.ready_ns <= now_) {
    start_flowing(index);
  } else {
    server.state = State::latency;
    next_ns_[index] = job.ready_ns;
  }
}

void SimWorld::start_latency(std::size_t index, std::size_t position) {
  SimServer::Job* const job = servers_[index].due(position);
  if (job != nullptr) job->ready_ns = later(static_cast<uint128>(job->fixed_ns));
}

// ---- Flow -----------------------------------------------------------------------------------------------------------

// Of the server's first job.
std::uint32_t SimWorld::flow_of(std::size_t index) const {
  return servers_[index].first().move ? moves_of_[index] : static_cast<std::uint32_t>(index);
}

void SimWorld::set_cap(std::size_t index) {
  SimServer& server = servers_[index];
  DataFlow& data = server.first_flow();
  const std::uint32_t flow = flow_of(index);
  const BytesPerSecond cap = std::max<BytesPerSecond>(data.cap(server.first().cap), 1);
  if (bandwidth_.alone(flow)) {
    data.set_rate(cap, now_);
    schedule(index);
  } else {
    bandwidth_.set(flow, cap);
  }
}

void SimWorld::start_flowing(std::size_t index) {
  servers_[index].start_flowing(now_);
  set_cap(index);
}

// Settles what has flowed and gives each its new rate.
void SimWorld::share_bandwidth() {
  while (bandwidth_.pending()) {
    for (const std::uint32_t shared : bandwidth_.share()) {
      const std::uint32_t index = server_of_[shared];
      DataFlow& flow = servers_[index].first_flow();
      const BytesPerSecond rate = bandwidth_.rate(shared);
      if (flow.rate() == rate) continue;
      flow.set_rate(rate, now_);
      schedule(index);
    }
  }
}

void SimWorld::schedule(std::size_t index) {
  SimServer& server = servers_[index];
  const DataFlow& flow = server.first_flow();
  const Nanoseconds end_ns = later(flow.ns_to_end());
  const Nanoseconds next_ns = flow.exhausts() ? later(flow.ns_to_exhaustion()) : end_ns;
  next_ns_[index] = server.first().cancelled ? now_ : next_ns;
}

Nanoseconds SimWorld::later(uint128 delay_ns) const {
  return delay_ns > static_cast<uint128>(longest_clock_ns - now_) ? too_late
                                                                  : now_ + static_cast<Nanoseconds>(delay_ns);
}

void SimWorld::throw_too_slow(const MachineSpec& spec) {
  std::string slowest;
  BytesPerSecond rate = unlimited;
  const auto look_at = [&](const std::string& what, BytesPerSecond bandwidth) {
    if (bandwidth >= rate) return;
    slowest = what;
    rate = bandwidth;
  };
  for (const Link& link : spec.links) {
    look_at("link '" + link.name + "'", link.bandwidth);
    if (link.sustained_bandwidth > 0) look_at("link '" + link.name + "' after its burst", link.sustained_bandwidth);
  }
  for (const Resource& resource : spec.resources) look_at("resource '" + resource.name + "'", resource.bandwidth);
  throw TooSlow("machine '" + spec.name + "': the simulated clock passes a hundred years; check " +
                (slowest.empty() ? std::string("the trace's durations")
                                 : "the slowest, " + slowest + " with " + format_bandwidth(rate) +
                                       ", then the trace's sizes and durations"));
}

// ---- Completions ----------------------------------------------------------------------------------------------------

void SimWorld::cancel(Fence fence) {
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    for (SimServer::Job& job : servers_[i].jobs) {
      if (job.fence != fence || job.cancelled) continue;
      job.cancelled = true;
      if (job.fence != servers_[i].first().fence) continue;  // it ends when it comes to the front
      next_ns_[i] = now_;
    }
  }
}

bool SimWorld::wait(std::size_t& rank, Completion& completion) {
  constexpr std::uint32_t waits_between_interruption_points = 1u << 16;
  if (++waits_ % waits_between_interruption_points == 1) interruption_point();
  while (true) {
    if (bandwidth_.pending()) share_bandwidth();
    std::size_t next = 0;
    for (std::size_t i = 1; i < next_ns_.size(); ++i) {
      if (next_ns_[i] < next_ns_[next] || (next_ns_[i] == next_ns_[next] && front_[i] < front_[next])) next = i;
    }
    if (next_ns_[next] == never) return false;
    if (next_ns_[next] == too_late) throw_too_slow(*ranks_[servers_[next].rank].spec);
    TENCACHE_CHECK(next_ns_[next] >= now_);
    now_ = next_ns_[next];
    SimServer& server = servers_[next];
    rank = server.rank;
    if (server.first().cancelled) {
      complete(next, CompletionStatus::cancelled, completion);
      return true;
    }
    if (server.state == State::latency) {
      start_flowing(next);
    } else if (server.state == State::flowing && server.first_flow().exhausts()) {
      server.flow.exhaust(now_);
      set_cap(next);
    } else {
      const bool untold = server.first().untold;
      complete(next, server.first().fails ? CompletionStatus::failed : CompletionStatus::done, completion);
      if (!untold) return true;
    }
  }
}

void SimWorld::complete(std::size_t index, CompletionStatus status, Completion& completion) {
  SimServer& server = servers_[index];
  if (server.state == State::flowing) {
    server.first_flow().settle(now_);
    const std::uint32_t flow = flow_of(index);
    if (!bandwidth_.alone(flow)) bandwidth_.stop(flow);
  }
  completion = server.finish(status, now_);
  if (status == CompletionStatus::failed) ranks_[server.rank].last_failed = completion.fence;
  begin(index);
  start_latency(index, server.queue_depth - std::size_t{1});
}

std::vector<SimWorld::Waiting> SimWorld::waiting() const {
  std::vector<Waiting> result;
  for (const SimServer& server : servers_) {
    if (server.state != State::meeting) continue;
    result.push_back({server.rank, server.first().op, server.first().rendezvous});
  }
  return result;
}

std::uint64_t SimWorld::state(std::size_t rank) const {
  StateHash hash;
  const std::size_t end = rank + 1 < ranks_.size() ? ranks_[rank + 1].first_server : servers_.size();
  hash.mix(ranks_[rank].uncharged);
  for (std::size_t i = ranks_[rank].first_server; i < end; ++i) {
    const SimServer& server = servers_[i];
    const bool flowing = server.state == State::flowing;
    hash.mix(static_cast<std::uint64_t>(server.state));
    hash.mix(server.jobs.size());
    hash.mix(next_ns_[i] == never ? 0 : static_cast<std::uint64_t>(next_ns_[i] - now_));
    if (flowing) hash.mix(static_cast<std::uint64_t>(server.first_flow().left(now_)));
    if (!server.flow.has_burst()) continue;
    const uint128 credit = server.flow.credit(now_, flowing && !server.first().move);
    hash.mix(static_cast<std::uint64_t>(credit));
    hash.mix(static_cast<std::uint64_t>(credit >> 64));
  }
  return hash.value();
}

}  // namespace tencache
