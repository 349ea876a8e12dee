// Which layers' results are recomputed, of a trace with choices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/trace.h"

namespace tencache {

struct ChosenLevels {
  std::vector<RecomputeLevel> levels;  // by choice
  std::string note;                    // how they were chosen, for people
};

// How long an iteration of a program takes, about, if that is no more than `least_ns`; longest_clock_ns: it does not
// fit, or takes longer.
using ProgramTime = std::function<Nanoseconds(const Trace& program, Nanoseconds least_ns)>;

// Some dozens of programs are tried: all layers at each level, and every other one; then from the fastest on, as long
// as that makes it faster, a quarter of the layers at another level, an eighth, and so on: those whose results would
// wait longest for the backward pass are recomputed first, or layers that are spread evenly.
ChosenLevels choose_levels(const Trace& trace, const ProgramTime& takes);

}  // namespace tencache
