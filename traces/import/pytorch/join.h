// An execution trace and a Kineto trace of the same run brought together: which recorded call is which, and so the time
// of each op.
//
//   1. Calls are the same that have the same record-function id and name.
//   2. Where the files share none, the names of all calls of one iteration are aligned, in the order in which they
//   began
//      (the longest common subsequence, Myers 1986). Less than 80 % of the execution trace's calls in common, and the
//      files are not of the same program: an error.
//   3. The time of a call is that of the kernels that it launched, or, where nothing ran on a GPU, its own on the host
//      without that of other calls within it.
#pragma once

#include <string>
#include <vector>

#include "traces/import/pytorch/kineto.h"
#include "traces/import/pytorch/steps.h"
#include "traces/import/pytorch/to_trace.h"

namespace tencache {

struct Joined {
  MeasuredIteration measured;
  std::vector<std::string> notes;
};

// `iteration` of the execution trace. `kineto_iteration`: by number; empty: the one of the same number or id, else the
// last complete one.
Joined join_kineto(const ExecutionTrace& trace, const Iterations& iterations, const std::string& kineto_file,
                   const std::optional<std::int64_t>& kineto_iteration, const ImportProgress& progress);

// Pairs of indices of equal elements, increasing in both: a longest common subsequence. Empty where more than
// `most_edits` elements differ.
std::vector<std::pair<std::uint32_t, std::uint32_t>> align(const std::vector<std::uint32_t>& a,
                                                           const std::vector<std::uint32_t>& b, std::size_t most_edits);

// When what ran; exposed for the import of Kineto traces alone. `node_of` gives each call's node (none: of no node).
std::vector<Activity> activities_of(const KinetoWindow& window, const std::vector<std::uint32_t>& node_of);

}  // namespace tencache
