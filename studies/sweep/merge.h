// Shards of a sweep joined.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "studies/sweep/sweep_results.h"

namespace tencache {

struct Merge {
  SweepResults results;            // fronts are those of all rows
  std::uint64_t combinations = 0;  // of the sweep, but for those of the policy `ideal`
  std::uint64_t missing = 0;       // that no file has
  std::uint64_t in_several = 0;    // that more than one file has, alike
};
// Throws Error if the files are not parts of one sweep, of one version at the same prices, or disagree on a row.
Merge merge_sweeps(const std::vector<std::string>& paths);

}  // namespace tencache
