// The simulated machine: a virtual clock, links that share resources, and lanes that run ops for their duration.
// The twin of executor/host_machine.h.
//
// Model. A link serves its copies one after the other: first the latency, during which only the link is busy, then the
// data. Data flows at the link's bandwidth, or less where several links use one resource: rates are then max-min fair
// (progressive filling: the links of the most loaded resource share it equally, what they leave is shared by the rest).
// All arithmetic is in integers (bytes x nanoseconds), so a time is exact to the nanosecond, rounded up once.
// Equal times are ordered by submission.
#pragma once

#include <array>
#include <deque>
#include <unordered_map>
#include <vector>

#include "core/machine.h"
#include "core/metrics.h"

namespace tencache {

class SimMachine final : public Machine {
 public:
  explicit SimMachine(const MachineSpec& spec);

  Fence submit(const CopyCommand& copy, Fence after, Tag tag) override;
  Fence execute(const OpCommand& op, Fence after, Tag tag) override;
  Fence last_of_lane(std::uint8_t lane) const override {
    return servers_[lane].jobs.empty() ? 0 : servers_[lane].jobs.back().fence;
  }
  void cancel(Fence fence) override;
  bool wait(Completion& completion) override;
  bool pretends() const override { return true; }
  Nanoseconds now() const override { return now_; }

 private:
  static constexpr Nanoseconds never = std::numeric_limits<Nanoseconds>::max();

  struct Job {
    Fence fence = 0, after = 0;
    Tag tag = 0;
    Nanoseconds duration_ns = 0;  // lanes: of the op; links: latency before the data
    Bytes bytes = 0;              // links
    bool cancelled = false;
  };
  enum class State : std::uint8_t { idle, blocked, latency, flowing };
  // A lane (0, 1) or a link (2 + link): serves the first of its jobs.
  struct Server {
    std::deque<Job> jobs;
    State state = State::idle;
    Nanoseconds start_ns = 0;
    Nanoseconds next_ns = never;  // when the present state ends, at the present rate
    Nanoseconds updated_ns = 0;   // when `left` was true
    uint128 left = 0;             // bytes x 1e9
    BytesPerSecond rate = 0;
  };

  void push(std::size_t server, Job job);
  void begin(std::size_t server);
  void set_flowing(std::size_t server, bool flowing);
  void share_bandwidth();
  const std::vector<BytesPerSecond>& rates_of(std::uint64_t flowing);
  bool passed(Fence fence) const;
  void complete(std::size_t server, CompletionStatus status, Completion& completion);

  const MachineSpec& spec_;
  Nanoseconds now_ = 0;
  Fence last_fence_ = 0;
  std::vector<Server> servers_;
  std::uint64_t flowing_ = 0;                                             // bit per link
  std::unordered_map<std::uint64_t, std::vector<BytesPerSecond>> rates_;  // by the set of flowing links; looked up only
};

}  // namespace tencache
