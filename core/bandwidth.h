// How flows that occupy the same resources share them: max-min fair, by progressive filling. Again and again, every
// flow without a rate is offered the least of its own cap and of what its resources have left over the number of such
// flows that use them (rounded down); those with the least offer get it (at least 1), and their resources have that
// much less. A flow that lists a resource twice takes two shares of it.
//
// Only flows that share a resource, directly or through others, are worked out together.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/units.h"

namespace tencache {

class Bandwidth {
 public:
  // `uses`: by flow, indices into `capacities`. `usual_caps`: what a flow mostly runs at; rates of sets of flows with
  // their usual caps are remembered.
  Bandwidth(std::vector<BytesPerSecond> capacities, std::vector<std::vector<std::uint32_t>> uses,
            std::vector<BytesPerSecond> usual_caps);

  // It uses nothing that it could share: its rate is its cap, and nothing need be said of it here.
  bool alone(std::uint32_t flow) const { return flows_[flow].uses.empty(); }
  // The flow begins, goes on with another cap, or ends.
  void set(std::uint32_t flow, BytesPerSecond cap);
  void stop(std::uint32_t flow);
  // After one or many of these: while `pending`, `share` works out the rates of some flows and returns those that run,
  // in ascending order; valid until the next call.
  bool pending() const { return !pending_.empty(); }
  std::span<const std::uint32_t> share();
  // In bytes per second; of a flow that runs, when nothing is pending.
  BytesPerSecond rate(std::uint32_t flow) const { return flows_[flow].rate; }

 private:
  struct Flow {
    std::vector<std::uint32_t> uses;
    BytesPerSecond usual_cap = 0;
    BytesPerSecond cap = 0, rate = 0;  // 0: does not run
    std::uint32_t group = 0;
    std::uint32_t bit = 0;  // in its group
  };
  // Flows that may have to do with each other.
  struct Group {
    std::uint32_t size = 0;
    std::vector<std::uint32_t> resources;
    std::vector<std::uint32_t> running;  // ascending
    std::uint32_t unusual = 0;           // of them, with another cap than their usual one
    std::uint64_t set = 0;               // the running ones as bits, if the group is small enough
    std::uint64_t shared_set = 0;        // that the flows' rates are for; 0: another
    bool pending = false;
    std::unordered_map<std::uint64_t, std::vector<BytesPerSecond>> known;  // by `set`, rates in the order of `running`
  };
  // Progressive filling itself, with its scratch.
  class Filling {
   public:
    explicit Filling(std::vector<BytesPerSecond> capacities);
    std::size_t resource_count() const { return capacities_.size(); }
    // Sets the rates of the group's running flows.
    void fill(const Group& group, std::vector<Flow>& flows);

   private:
    std::vector<BytesPerSecond> capacities_;
    std::vector<BytesPerSecond> left_;         // by resource
    std::vector<BytesPerSecond> users_;        // by resource
    std::vector<std::uint32_t> open_, bound_;  // flows
  };

  void form_groups();
  void mark(std::uint32_t group);
  void work_out(Group& group);

  Filling filling_;
  std::vector<Flow> flows_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> pending_;  // groups
};

}  // namespace tencache
