// Plans tried out by simulating the policy under them, on one trace after another; and what that has cost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/policy.h"
#include "policies/foresight/coarse.h"
#include "policies/foresight/plan.h"

namespace tencache {

class ForesightTrials {
 public:
  // A policy that does as the plan says and rehearses nothing.
  using Make = std::function<std::unique_ptr<Policy>(const ForesightPlan& plan, Bytes chunk_bytes)>;
  struct Length {  // iterations
    std::uint64_t settling = 0, measured = 0;
  };

  // `rehearse` and the traces must outlive this object.
  ForesightTrials(const RehearseTrace& rehearse, Make make, const CoarseTrace& trace);

  // Rehearsals from now on are of that trace. The first may take long; with many more events than that one, a plan
  // moves chunks to and fro, and its rehearsal ends.
  void on(const CoarseTrace& trace);
  // Iterations that count must not be much longer than `least_ns`, of the best plan (0: there is none): else it is not
  // complete. A plan with a start that was too slow on this trace is not rehearsed again.
  Rehearsal run(const ForesightPlan& plan, Length length, Nanoseconds least_ns);

  const CoarseTrace& trace() const { return *trace_; }
  std::uint64_t events() const { return events_; }  // simulated, all together
  std::uint64_t count() const { return count_; }    // of rehearsals

 private:
  const RehearseTrace& rehearse_;
  Make make_;
  const CoarseTrace* trace_;
  std::vector<ForesightPlan> too_slow_;  // on the present trace
  std::uint64_t most_events_ = 0;        // of one rehearsal; 0: of the first, not yet known
  std::uint64_t events_ = 0, count_ = 0;
};

}  // namespace tencache
