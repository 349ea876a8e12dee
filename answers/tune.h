// What `tencache tune` found (studies/tune_run.h) as an answer, and all candidates as CSV.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/durations.h"
#include "answers/recompute_plan.h"
#include "answers/result.h"
#include "studies/tune_run.h"

namespace tencache {

struct TunedWorkloadAnswer {
  std::string trace;
  double iteration_seconds = 0, defaults_seconds = 0, ideal_seconds = 0;  // the best's first
  std::string replay;                                                     // the command that has it
  Absent<std::vector<LayerRecomputation>> recompute;  // that the policy chooses with the best, if the trace lets it
  std::vector<std::string> notes;
  std::optional<GpuTimeAnswer> gpu_time;

  std::string title;  // "gpt2, batch 8"; known only while the command runs
};
TENCACHE_ANSWER(TunedWorkloadAnswer, trace, iteration_seconds, defaults_seconds, ideal_seconds, replay, recompute,
                notes, gpu_time)

// Of a text generation.
struct TokensAnswer {
  double tokens_per_second = 0;
  std::optional<double> time_to_first_token_seconds, time_per_output_token_seconds;
};
TENCACHE_ANSWER(TokensAnswer, tokens_per_second, time_to_first_token_seconds, time_per_output_token_seconds)

struct CandidateAnswer {
  Named<std::string> settings;  // what differs from the defaults
  bool fits = false;
  std::optional<std::string> reason;
  bool capped = false;       // fits, but was given up
  double relative_time = 0;  // to the defaults
  std::vector<double> iteration_seconds;
  std::vector<std::vector<double>> samples;  // of each workload, of each copy
  std::size_t changed = 0;                   // knobs
  Absent<TokensAnswer> tokens;               // of one text generation, if it fits

  double seconds(std::size_t workload) const {
    return workload < iteration_seconds.size() ? iteration_seconds[workload] : std::numeric_limits<double>::infinity();
  }
};
TENCACHE_ANSWER(CandidateAnswer, settings, fits, reason, capped, relative_time, iteration_seconds, samples, changed,
                tokens)

struct KnobAnswer {
  std::string name;
  std::vector<std::string> values;
  std::string default_, unit;
};
TENCACHE_ANSWER(KnobAnswer, name, values, default_, unit)

TENCACHE_ANSWER(FlatnessStep, value, simulated, fits, relative_time, ties)
TENCACHE_ANSWER(Flatness, knob, value, has_effect, steps)

struct MisfitsAnswer {
  std::string reason;  // of one of them
  std::size_t count = 0;
};
TENCACHE_ANSWER(MisfitsAnswer, reason, count)

struct TuneAnswer {
  std::string policy, machine;
  std::vector<TunedWorkloadAnswer> workloads;
  CandidateAnswer best, defaults;
  std::optional<CandidateAnswer> start;
  double speedup = 0;
  bool ties_with_defaults = false;
  Bytes pinned_buffer_bytes = 0;
  std::vector<KnobAnswer> knobs;
  std::vector<std::string> untested;
  std::vector<Flatness> flatness;
  std::vector<CandidateAnswer> ties;
  std::vector<MisfitsAnswer> misfits;
  Absent<RecomputePlan> plan;  // with the best settings; where none fits, with those that were given
  double combinations = 0;
  bool exhaustive = false;
  std::size_t candidates = 0;
  std::uint64_t simulations = 0;
  Json manifest;
  Timing timing;

  // Known only while the command runs.
  std::string title;   // of the machine, "g5.xlarge with GPU memory 6.00 GiB"
  std::string copies;  // a line on jitter
  Bytes cpu_home = 0;  // of the best, beside pinned buffers
  bool spent = false;  // the whole budget
};
TENCACHE_ANSWER(TuneAnswer, policy, machine, workloads, best, defaults, start, speedup, ties_with_defaults,
                pinned_buffer_bytes, knobs, untested, flatness, ties, misfits, plan, combinations, exhaustive,
                candidates, simulations, manifest, timing)

TuneAnswer tune_answer(const Tuned& tuned);
Document document_of(const TuneAnswer& answer);
// All candidates, in the order of their simulation: one row each, a column for each knob.
DocumentTable candidates_table(const Tuned& tuned);

}  // namespace tencache
