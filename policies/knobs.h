// A policy's options as knobs to turn, and the values worth trying. Which option is one, and with which other option's
// value it has an effect, is said where the policy declares it (options.h).
//
// A knob is what a user of the system may turn. An option that says what the system is (an ablation, another
// simulator's rules), what the machine has (free memory) or whether misfits count is none: the fastest value of those
// would be an answer to another question.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/registry.h"

namespace tencache {

struct Knob {
  std::string name;
  std::vector<std::string> values;  // each once; from small to large where `ordered`
  bool ordered = false;             // numbers and sizes; else every value is a neighbour of every other
  std::string unit;
  // It has an effect only where each of these options has the value named.
  std::vector<std::pair<std::string, std::string>> only_with;
};

// Flags and choices: all values. Numbers: the default times 1/20, 1/5, 1/2, 1, 2, 5, 20 (counts: 1/4 to 8). Shares: 1/4
// to 1. Sizes: the default times 1/16 to 16, of pieces also all in one.
Knob knob_of(const Options::Info& option);
// All of the policy's options that are knobs.
std::vector<Knob> knobs_of(const PolicyInfo& policy);

// A knob with the values that the user wrote, "a,b,c" or, of numbers and sizes, "lo..hi": all whole numbers of up to
// ten, else lo, 2 lo, 4 lo, … hi. Throws Error where they are none.
Knob restricted(Knob knob, const std::string& values);
// Adds a value at its place, if it is not there.
void add_value(Knob& knob, const std::string& value);
// Among its values, however the number is written: 5e8 is 500000000.
std::optional<std::size_t> index_of(const Knob& knob, const std::string& value);

}  // namespace tencache
