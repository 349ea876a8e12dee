// The simulated machines of all ranks under one virtual clock: lanes that run ops, links that copy, and the resources
// that they share, within a rank and between ranks.
//
// Links. A link moves the data of its copies one after the other, in order of submission. Before its data a copy has a
// latency (`setup_ns` and the link's own), during which only the link is busy; the latencies of the first `queue_depth`
// copies of a link pass at the same time. A copy's start is when it came to the front of its link.
// Data flows at the link's bandwidth, or less where flows share a resource: max-min fair, core/bandwidth.h. Of a link
// over several devices a copy reaches min(devices, ceil(bytes / stripe_bytes)), and as large a part of the bandwidth
// (rounded down).
// Burst. A link with a `sustained_bandwidth` has a credit of at most `burst_bytes`, full at first. Each byte that flows
// takes one off; while no data flows it grows at the sustained bandwidth. While there is credit the link has its full
// bandwidth, without any the sustained one, from the next whole nanosecond after it has run out. The credit is the
// link's own, also where ranks share the device.
// Lanes. An op takes its duration. Where the lane occupies resources (MachineSpec::lane_uses) and the op's traffic is
// known, that traffic flows over them at most at bytes / duration: alone the op takes exactly its duration, beside
// copies longer, and they do too.
// What each copy or move costs the host (`HostCosts::per_transfer_ns`) is added to the next thing that the rank's GPU
// lane does, an op or a gap: the thread that submits copies is the one that runs ops. Of a rank that runs ahead
// sim/ordered_machine.h adds it, on the host lane: the program's thread.
// Ops with a rendezvous start when each rank that `meet` names has come to its own.
//
// Moves. A chunk that moves within the memory of tier 0 is read and written there once, at the tier's bandwidth. The
// lane or link that needs the room does it, in order. Its traffic flows as that of an op of the GPU's lane does, over
// the resources that this lane occupies: alone the move takes just that time. Only where it has a tag is its end told.
//
// All arithmetic is in integers (bytes x nanoseconds), so a time is exact to the nanosecond, rounded up once.
// Equal times are ordered by submission, over all ranks.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/bandwidth.h"
#include "core/fault_plan.h"
#include "core/machine.h"
#include "core/metrics.h"
#include "sim/sim_server.h"

namespace tencache {

class SimWorld {
 public:
  // Beside the lanes of core/timeline.h.
  static constexpr std::uint8_t host_lane = lane_count;

  // One machine a rank. Resources with the same `shared` number are one; throws Error if their bandwidths differ. The
  // specs must outlive the world.
  explicit SimWorld(std::vector<const MachineSpec*> ranks);

  std::size_t rank_count() const { return ranks_.size(); }
  const MachineSpec& spec(std::size_t rank) const { return *ranks_[rank].spec; }
  // So many ranks have ops with this rendezvous; without this an op waits for nobody.
  void meet(NameId rendezvous, std::size_t rank_count) { meetings_[rendezvous].rank_count = rank_count; }

  // A copy with a failure takes its time and then fails.
  Fence submit(std::size_t rank, const CopyCommand& copy, Tag tag, const CopyFault& fault = {});
  Fence execute(std::size_t rank, const OpCommand& op, Tag tag);
  // The rank's tier 0 has a bandwidth.
  Fence move(std::size_t rank, const MoveCommand& move, std::optional<Tag> tag);
  // How long it takes by itself.
  Nanoseconds time_of(std::size_t rank, const MoveCommand& move) const;
  void cancel(Fence fence);
  // The next completion of any rank. False when nothing can complete any more. Throws TooSlow where the clock would pass
  // longest_clock_ns.
  bool wait(std::size_t& rank, Completion& completion);
  Nanoseconds now() const { return now_; }
  // The rank's last copy that failed; 0 if none did.
  Fence last_failed(std::size_t rank) const { return ranks_[rank].last_failed; }

  // A hash of what a rank's links and lanes have in progress, and of their credits; times relative to now.
  std::uint64_t state(std::size_t rank) const;

  // An op that has come to its rendezvous before others.
  struct Waiting {
    std::size_t rank = 0;
    OpIndex op = none;
    NameId rendezvous = 0;
  };
  std::vector<Waiting> waiting() const;

 private:
  using State = SimServer::State;
  struct Rank {
    const MachineSpec* spec;
    std::size_t first_server;     // the lanes, then the links
    std::uint64_t uncharged = 0;  // copies submitted since the GPU's lane got something to do
    Fence last_failed = 0;
  };
  struct Meeting {
    std::size_t rank_count = 1;
    std::vector<std::size_t> arrived;  // servers
  };

  static Bandwidth make_bandwidth(const std::vector<const MachineSpec*>& ranks);
  Fence take_up(std::size_t server);
  void begin(std::size_t server);
  bool meet_others(std::size_t server);
  void start(std::size_t server);
  void start_latency(std::size_t server, std::size_t position);
  void start_flowing(std::size_t server);
  std::uint32_t flow_of(std::size_t server) const;
  void set_cap(std::size_t server);
  void share_bandwidth();
  void schedule(std::size_t server);
  // The time after the delay.
  Nanoseconds later(uint128 delay_ns) const;
  [[noreturn]] static void throw_too_slow(const MachineSpec& spec);
  void complete(std::size_t server, CompletionStatus status, Completion& completion);

  std::vector<Rank> ranks_;
  std::vector<SimServer> servers_;
  std::vector<Nanoseconds> next_ns_;              // by server: when the state of its first job ends, as things are
  std::vector<Fence> front_;                      // by server: of its first job
  Bandwidth bandwidth_;                           // flows are servers, then what moves for each of the links
  std::vector<std::uint32_t> moves_of_;           // by server: the flow of its moves
  std::vector<std::uint32_t> server_of_;          // by flow
  std::unordered_map<NameId, Meeting> meetings_;  // looked up only
  Nanoseconds now_ = 0;
  std::uint32_t waits_ = 0;  // counted for interruption points alone
  Fence last_fence_ = 0;
};

}  // namespace tencache
