// Which of a policy's options are knobs, and the values worth trying.
//
// A knob is what a user of the system may turn. An option that says what the system is (an ablation, another
// simulator's rules), what the machine has (free memory) or whether misfits count is none: the fastest value of those
// would be an answer to another question.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/registry.h"

namespace tencache {

using Settings = std::map<std::string, std::string>;  // option to text, as after --set

struct Knob {
  std::string name;
  std::vector<std::string> values;  // each once; from small to large where `ordered`
  bool ordered = false;             // numbers and sizes; else every value is a neighbour of every other
  std::string unit;
  // It has an effect only where each of these options has the value named.
  std::vector<std::pair<std::string, std::string>> only_with;
};

// Why the option is no knob; empty where it is one.
std::string_view why_fixed(const std::string& policy, const std::string& option);

// Flags and choices: all values. Numbers: the default times 1/20, 1/5, 1/2, 1, 2, 5, 20 (counts: 1/4 to 8). Shares: 1/4
// to 1. Sizes: the default times 1/16 to 16, chunks also "whole".
Knob knob_of(const std::string& policy, const Options::Info& option);
// All of them.
std::vector<Knob> knobs_of(const PolicyInfo& policy);

// A knob with the values that the user wrote, "a,b,c" or, of numbers and sizes, "lo..hi": all whole numbers of up to
// ten, else lo, 2 lo, 4 lo, … hi. Throws Error where they are none.
Knob restricted(Knob knob, const std::string& values);
// Adds a value at its place, if it is not there.
void add_value(Knob& knob, const std::string& value);
// Among its values, however the number is written: 5e8 is 500000000.
std::optional<std::size_t> index_of(const Knob& knob, const std::string& value);

// Where the settings demand another option's value: zero-infinity's sub-groups are counted, where their size is a
// knob; each overlap in its step takes 4 more optimizer buffers; a parameter buffer holds the largest parameter. What
// the settings name already stays. `largest_parameter`: elements, of the largest there is.
void complete(const std::string& policy, std::uint64_t largest_parameter, Settings& settings);

// What a rank's part of a model is, for the memory that settings reserve.
struct ModelShape {
  std::uint64_t largest_parameter = 0, parameters = 0;  // elements
  Bytes element_bytes = 2;
  Bytes state_bytes = 0;      // of master parameters and optimizer states
  std::uint64_t trained = 0;  // elements with optimizer states: by master weights, or else by two states each
  std::uint64_t shards = 1;   // ranks that share each parameter
};

// Memory that zero-infinity's settings reserve beside what a simulation holds; 0 for other policies. `resolved`: all
// options.
struct ReservedMemory {
  Bytes pinned_buffers = 0;  // CPU memory for what comes from NVMe and goes there
  Bytes cpu_home = 0;        // what lives in CPU memory for good
  Bytes gpu_bucket = 0;      // GPU memory where gradients gather
};
ReservedMemory reserved_memory(const std::string& policy, const Settings& resolved, const ModelShape& model);

}  // namespace tencache
