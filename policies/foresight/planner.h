// Steps 1 and 8 of foresight.cpp: decisions tried out, one after the other, by simulating the policy under them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/policy.h"
#include "policies/foresight/coarse.h"
#include "policies/foresight/plan.h"
#include "policies/foresight/trials.h"

namespace tencache {

struct PlanningLimits {
  std::uint64_t events = 0;  // simulated completions, about; each trace is searched as long as its first rehearsal took
  // Times the bytes that the first rehearsal writes to storage: a plan may write no more, but for a ten-thousandth of
  // what persists, which may be written because of a few small tensors.
  double storage_limit = 1.1;
  bool careful = false;  // in small steps: a share may be worse than both of its neighbours
  bool wide = false;     // spends all of the events: not only one change after the other, but several at once
};

class ForesightPlanner {
 public:
  // What is simulated are these, the coarsest first, all of one trace: a coarse one tells roughly what is good, the
  // finer ones have the last word. `compute_ns`: of an iteration whose GPU never waits for a transfer, wherever updates
  // run; with that it is content. All must outlive this object.
  ForesightPlanner(const RehearseTrace& rehearse, ForesightTrials::Make make, const std::vector<CoarseTrace>& traces,
                   PlanningLimits limits, Nanoseconds compute_ns);

  // The best found, beginning with that one. Its start is of the trace that the coarse ones were made from.
  ForesightPlan plan(const ForesightPlan& first);
  // Of that plan, as it was rehearsed last on that trace; 0: no rehearsal came to its end.
  Nanoseconds iteration_ns() const { return least_ns_; }
  const Trace& trace() const { return trials_.trace().trace(); }
  const std::vector<std::string>& notes() const { return notes_; }  // what it did, a sentence each

 private:
  bool begin(const CoarseTrace& trace, const ForesightPlan& first, std::uint64_t allowed);
  void search(bool roughly);
  void confirm();
  bool attempt(ForesightPlan plan, const std::string& change);
  bool settled() const;
  bool never_waits() const;
  void scan_shares();
  void search_shares(double finest);
  void search_order();
  void search_knobs();
  void search_widely();

  const std::vector<CoarseTrace>& traces_;
  ForesightTrials trials_;
  PlanningLimits limits_;
  Nanoseconds compute_ns_;
  ForesightPlan first_, best_;
  Nanoseconds first_ns_ = 0;   // of the first
  Nanoseconds least_ns_ = 0;   // of the best; 0: none came to its end
  bool first_recurs_ = false;  // so that its time lasts
  bool best_recurs_ = false;
  double most_written_ = 0;    // to storage, bytes an iteration
  std::uint64_t allowed_ = 0;  // events, of all trials together
  std::vector<std::string> notes_;
};

}  // namespace tencache
