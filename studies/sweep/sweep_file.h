// Sweep files: what is to be simulated, as YAML. The format is described in docs/sweep.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "studies/scenario.h"
#include "studies/sweep/cost.h"

namespace tencache {

// The value of a setting of `generate` that each machine fills in: its GPU, its number of GPUs.
inline constexpr std::string_view of_the_machine = "machine";

// What scenarios are made of, one of each, and where in the file it stands.
struct SweepWorkload {
  std::string name;   // "gpt2, batch 8"; no two are alike
  TraceChoice trace;  // values of `generate` may be `of_the_machine`
  std::uint64_t line = 0;
  std::map<std::string, std::uint64_t> setting_lines = {};  // by the names in `generate`
};
struct SweepMachine {
  MachineChoice machine;
  std::uint64_t line = 0;
  std::size_t item = 0;  // which of the file's items it is a variant of
};

// A combination matches where each of the keys does: its value is one of the patterns, in which * stands for anything.
struct SweepFilter {
  std::vector<std::pair<std::string, std::vector<std::string>>> patterns;
  std::uint64_t line = 0;
};

struct SweepCostSettings {
  double run_tokens = 0;                              // of a run; 0: none asked for
  double budget_usd_per_hour = 0;                     // for the recommendation; 0: none
  double attached_storage_gb = 0;                     // to machines without storage of their own
  std::optional<double> interruptions_per_hour = {};  // of spot; 0: never; none: as in the price table
  CheckpointCosts checkpoints;
};

struct SweepFile {
  std::string file, name, description;
  std::vector<SweepWorkload> workloads;
  std::vector<SweepMachine> machines;
  std::vector<PolicyChoice> policies;
  std::vector<SweepFilter> only, exclude;     // those that match one of `only` (if there is one) and none of `exclude`
  std::uint64_t iterations = 0;               // of each simulation; 0: until it is steady
  std::uint64_t most_combinations = 100'000;  // more are an error
  double most_usd_per_hour = 0;               // dearer machines are left out, and those without a price; 0: none is
  std::uint64_t most_gpus = 0;                // so are those with more; 0: none is
  SweepCostSettings cost;
};

// `setting_names`: the valid names of a workload's settings. Relative paths are relative to the file's folder. Throws
// Error with file and line, and with the valid names where one was not known.
SweepFile parse_sweep_file(std::string_view text, const std::string& file,
                           const std::vector<std::string>& setting_names);
// A path, or the name of a shipped sweep; settings are those of `tencache generate`.
SweepFile read_sweep_file(const std::string& name_or_file);

// Whether `text` is what the pattern says; * stands for any characters, also none.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace tencache
