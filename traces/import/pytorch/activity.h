// When what ran in an iteration, and how that becomes the durations and gaps of a trace's ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/trace.h"

namespace tencache {

// A stretch of recorded work.
struct Activity {
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::uint32_t node = none;  // whose; none: of nobody that is known
};

struct OpTimes {
  std::vector<Nanoseconds> duration_ns, gap_before_ns;  // by op
  Nanoseconds foreign_ns = 0;                           // work of no op, within the gaps
  Nanoseconds overrun_ns = 0;                           // by which the work ends after the iteration's period
};

// Time runs from the beginning of the first activity; where several run at once, the one that began first has it. Idle
// time, and the work of no op, goes to the gap of the op that ends it, what is left of `iteration_ns` to that of op 0:
// durations and gaps add up to the iteration, or to the activities where those take longer. `op_of` gives an activity's
// op by its node; none: of no op. `activities` are sorted by their beginning.
inline OpTimes times_of_ops(const std::vector<Activity>& activities, Nanoseconds iteration_ns, std::size_t op_count,
                            const std::function<std::uint32_t(std::uint32_t)>& op_of) {
  OpTimes times;
  times.duration_ns.assign(op_count, 0);
  times.gap_before_ns.assign(op_count, 0);
  if (activities.empty() || op_count == 0) return times;
  const Nanoseconds start = activities.front().begin_ns;
  Nanoseconds covered = start, pending = 0;
  for (const Activity& activity : activities) {
    const Nanoseconds idle = std::max<Nanoseconds>(0, activity.begin_ns - covered);
    const Nanoseconds busy = std::max<Nanoseconds>(0, activity.end_ns - std::max(activity.begin_ns, covered));
    covered = std::max(covered, activity.end_ns);
    const std::uint32_t op = activity.node == none ? none : op_of(activity.node);
    if (op == none) {
      pending += idle + busy;
      times.foreign_ns += busy;
      continue;
    }
    times.gap_before_ns[op] += pending + idle;
    times.duration_ns[op] += busy;
    pending = 0;
  }
  const Nanoseconds left = iteration_ns - (covered - start);
  times.gap_before_ns.front() += pending + std::max<Nanoseconds>(0, left);
  times.overrun_ns = std::max<Nanoseconds>(0, -left);
  return times;
}

}  // namespace tencache
