// The best settings of a policy's knobs within a budget of simulations, on one or several workloads at once.
//
// Where the budget allows all combinations, all are simulated. Else the search is BasicILS of ParamILS (Hutter, Hoos,
// Leyton-Brown, Stützle, "ParamILS: an automatic algorithm configuration framework", JAIR 36, 2009, section 3.1), an
// iterated local search in the space of settings, with its capping of hopeless candidates (section 4):
//   1. The defaults, the starts and random settings are simulated; the best is where the search begins.
//   2. Local search: knob by knob in random order, the one-exchange neighbours (all values of a choice; of an ordered
//      knob those 1, 2 and 4 steps away); the best of them is taken if it is better, until no knob improves.
//   3. Three random exchanges, local search again; what comes out replaces the best unless it is slower. Every fifth
//      time it begins at random settings instead.
//   4. When the search's share of the budget is spent (what is left lets each change of the best be tried without), the
//      best is simplified: a knob returns to its default where that ties. Then each knob alone moves one step and to
//      its default, to show how flat the optimum is. Where either comes upon something faster, that is the best, and
//      this step begins again.
// Settings whose knobs have no effect (Knob::only_with) are the same candidate, and none is simulated twice.
//
// With several copies of a workload (jittered durations) each candidate is judged by the median of its times on the
// same copies. A candidate that is far slower than the best on the first copy, or does not fit there, is not simulated
// on the others.
//
// Deterministic for a seed, whatever the number of threads: candidates are chosen in batches that do not depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "policies/knobs.h"

namespace tencache {

// Of a text generation (studies/generation.h).
struct TokenTimes {
  std::optional<double> time_to_first_token_seconds, time_per_output_token_seconds;
};

struct Measured {
  double seconds = std::numeric_limits<double>::infinity();  // of an iteration; infinite where it does not fit
  std::string misfit = {};                                   // why it does not
  double work = 1;  // of an iteration, against what the workload's was asked to do: more than 1 for a larger block
  std::optional<TokenTimes> tokens = {};
};

struct TuneProblem {
  std::vector<Knob> knobs;       // none of them fixed
  Settings defaults;             // of all options of the policy
  Settings fixed;                // of every candidate, the defaults' too
  std::vector<Settings> starts;  // tried first; values that no knob has are left out
  std::size_t workloads = 1, copies = 1;
  std::vector<double> reference_seconds;  // of each workload, for where the defaults do not fit: any fixed time
  // Adds what the settings demand of other options; may be empty.
  std::function<void(Settings&)> complete;
  // Called from several threads at once.
  std::function<Measured(const Settings&, std::size_t workload, std::size_t copy)> measure;
};

struct TuneOptions {
  std::uint64_t budget =
      300;  // simulations, of one workload's copy each; the defaults' and the starts' are always made
  std::uint64_t seed = 1;
  std::size_t threads = 0;  // 0: one a core
  double tie = 0.005;       // times closer than this share are a tie
  double spread = 0;        // of the copies' durations: widens the capping
  std::function<void(std::uint64_t done, std::uint64_t budget)> progress = {};
};

struct Candidate {
  Settings settings;  // what differs from the defaults, the fixed and the demanded among them
  bool fits = false;
  bool capped = false;  // fits, but given up after the first copy
  std::string misfit;
  // Geometric mean of median times ÷ work ÷ the reference's.
  double score = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> seconds;  // of each workload, of each copy that was simulated
  std::size_t changed = 0;                   // knobs that are not at their default
  double work = 1;                           // Measured::work, by which times are divided to be compared
  std::optional<TokenTimes> tokens = {};     // of the first workload's first copy

  double median_seconds(std::size_t workload) const;  // infinite where it does not fit
};

// How the score moves when one knob alone does: ratio to the best's, infinite where it does not fit.
struct FlatnessStep {
  std::string value;
  bool simulated = false;    // false: the budget ended before
  std::optional<bool> fits;  // where it was simulated
  double relative_time = std::numeric_limits<double>::infinity();
  bool ties = false;
};
struct Flatness {
  std::string knob, value;  // of the best
  bool has_effect = true;   // false: its Knob::only_with is not met
  // One down and one up, or all others of a choice; then the default, if it is none of them.
  std::vector<FlatnessStep> steps;
};

struct TuneResult {
  std::vector<Candidate> candidates;               // in the order of their simulation; the first are the defaults
  std::size_t best = 0;                            // fits unless none does
  std::vector<std::optional<std::size_t>> starts;  // of the problem's, none where the budget ended before
  std::vector<std::size_t> ties;                   // with the best, the best not among them; fewest changes first
  std::vector<Flatness> flatness;                  // by knob
  // Knobs that the best has changed and that no simulation had at the default, all else as in it: the budget ended.
  std::vector<std::string> untested;
  bool exhaustive = false;
  double combinations = 0;  // of all knobs' values
  std::uint64_t simulations = 0;
  std::vector<double> reference_seconds;  // by workload: the defaults' median, or the problem's
};

// Whether `b` is neither faster nor slower than `a`: their ratio's median over all copies is within `tie` of 1 or,
// with several copies, the middle 90 % of the paired ratios contain 1.
bool ties(const Candidate& a, const Candidate& b, double tie);

TuneResult tune(const TuneProblem& problem, const TuneOptions& options);

}  // namespace tencache
