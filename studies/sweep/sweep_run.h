// A sweep's simulations on threads, written as they come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "configs/validated.h"
#include "studies/sweep/ranks.h"
#include "studies/sweep/sweep_plan.h"
#include "studies/sweep/sweep_results.h"

namespace tencache {

// Simulates units. Traces are made where they are first needed and freed once a later one is asked for: units should
// come in the plan's order. Threads may call run() at once. A recorded trace that cannot be read is an Error.
class SweepRunner {
 public:
  explicit SweepRunner(const SweepPlan& plan);
  ~SweepRunner();
  // What does not fit, and what machine or policy refuse, is a row with the reason. Rows of `skip` are left out.
  std::vector<SweepRow> run(const SweepUnit& unit, const std::set<std::string>& skip);

 private:
  class Traces;

  const SweepPlan& plan_;
  std::unique_ptr<Traces> traces_;
  std::vector<Validated> validated_;
};

// What is there of the plan already, when the sweep starts.
struct SweepResume {
  std::set<std::string> done;  // keys
  std::size_t dropped = 0;     // combinations of an earlier version of the sweep that it has no more
};
// Drops rows that the plan does not have. Throws Error where there are rows of another build of the program or of its
// policy library, or where none of the store's rows is the plan's: it is another sweep's.
SweepResume resume(const SweepPlan& plan, SweepStore& store);

using SweepProgress = std::function<void(std::uint64_t rows_done, std::uint64_t rows)>;  // from any thread, one at once

// Simulates what is not done, then finish_sweep(). On threads (0: as many as there are cores; if there is a leader, 1)
// and, if there is a leader, on the other ranks, each of which follows with answer_units() of the same plan.
void run_sweep(const SweepPlan& plan, SweepStore& store, const SweepResume& resumed, std::size_t threads,
               const SweepProgress& progress, RankLeader* leader = nullptr);
// `plan` outlives it.
Answer answer_units(const SweepPlan& plan);
// Costs at the plan's prices, fronts and what the file says about itself.
void finish_sweep(const SweepPlan& plan, SweepStore& store);

}  // namespace tencache
