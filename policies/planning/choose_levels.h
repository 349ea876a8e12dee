// Which layers' results are recomputed, of a trace with choices.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/trace.h"

namespace tencache {

// All choices at the level, as far as they offer it.
std::vector<RecomputeLevel> all_at(const Trace& trace, RecomputeLevel level);

struct ChosenLevels {
  std::vector<RecomputeLevel> levels;  // by choice
  std::string note;                    // how they were chosen, for people
};

struct ProgramRun {
  Nanoseconds iteration_ns = longest_clock_ns;  // about; the longest: it does not fit, or takes longer than asked
  std::uint64_t work = 0;                       // that finding out has cost, in any unit
};
using ProgramTime = std::function<ProgramRun(const Trace& program, Nanoseconds least_ns)>;

// Programs are tried as long as that has cost less than `most_work`: all layers at each level, and every other one;
// then from the fastest on, as long as that makes it faster, a quarter of the layers at another level, an eighth, and
// so on: of all or of a quarter of the iteration; those whose results would wait longest for the backward pass are
// recomputed first, or layers that are spread evenly.
ChosenLevels choose_levels(const Trace& trace, const ProgramTime& takes, std::uint64_t most_work);

}  // namespace tencache
