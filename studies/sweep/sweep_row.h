// One combination of a sweep and what came out of it. The same fields stand, under the same names, in the results
// file, in CSV and in JSON.
#pragma once

#include <boost/describe.hpp>
#include <boost/mp11.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "core/text.h"

namespace tencache {

// price_source of a machine with more memory than it is sold with, which has no price.
constexpr const char* what_if_price = "what-if: no such machine is sold";

// What was simulated.
struct SweepCombination {
  std::string key;             // SHA-256 of all that the simulation depends on, the program's build included
  std::uint64_t position = 0;  // among the combinations of the file
  std::string build;           // of the program: version and the start of its hash; of a policy library beside it

  std::string workload;  // "gpt2, batch 8": what is compared with one another
  std::string model;     // as the trace says
  std::string trace;     // its file, or how it was generated
  std::uint64_t batch = 0, sequence_length = 0, tokens_per_iteration = 0;  // 0: not known
  std::string durations;      // measured, modelled, or rescaled to the machine's GPU; empty: there was no trace
  std::string rescaled_from;  // the GPU that rescaled durations are of
  std::string machine, gpu;
  std::string gpu_memory, cpu_memory, limits;  // where the sweep changes the machine's; else empty
  std::string policy;
  ObjectText options;  // resolved

  bool operator==(const SweepCombination&) const = default;
};
BOOST_DESCRIBE_STRUCT(SweepCombination, (),
                      (key, position, build, workload, model, trace, batch, sequence_length, tokens_per_iteration,
                       durations, rescaled_from, machine, gpu, gpu_memory, cpu_memory, limits, policy, options))

struct SweepFigures {
  bool fits = false;
  TextOrNull reason;  // why not
  // Where it fits:
  std::optional<double> iteration_seconds, first_iteration_seconds, slowdown;  // slowdown: ÷ ideal
  std::optional<double> ideal_seconds, bound_seconds;                          // also where it does not fit
  std::string bound_term;
  std::optional<double> bound_choice_seconds;  // of a trace with choices of recomputation, whatever is recomputed
  std::string waits_for;                       // the longest stall's cause; empty: none
  std::optional<double> waits_seconds;
  std::optional<std::uint64_t> gpu_peak_bytes, cpu_peak_bytes, nvme_peak_bytes;
  std::optional<double> tokens_per_second;
  std::optional<double> time_to_first_token_seconds, time_per_output_token_seconds;  // of text generations

  // Of a row that fits, what may be believed of its time (configs/validated.h): "validated within 43.7 % (…)", or
  // "extrapolated", with what is known; the first as a share.
  std::string validity;
  std::optional<double> validated_within;
  // Where it uses links of which only bounds are known (studies/validity.h): the iteration with them at either end.
  std::optional<double> iteration_seconds_fast, iteration_seconds_slow;
  // Of modelled GPU times (traces/generate/gpu_time.h): their median error, and the share that is of shapes beyond the
  // measured ones (1: of a GPU that was not measured).
  std::optional<double> gpu_time_error, gpu_time_extrapolated_share;
  // The system that runs such a step under the policy today (policies/counterparts.h), and whether training then ends
  // elsewhere; empty: not known.
  std::string runs_with, changes_training;

  bool operator==(const SweepFigures&) const = default;
};
BOOST_DESCRIBE_STRUCT(SweepFigures, (),
                      (fits, reason, iteration_seconds, first_iteration_seconds, slowdown, ideal_seconds, bound_seconds,
                       bound_term, bound_choice_seconds, waits_for, waits_seconds, gpu_peak_bytes, cpu_peak_bytes,
                       nvme_peak_bytes, tokens_per_second, time_to_first_token_seconds, time_per_output_token_seconds,
                       validity, validated_within, iteration_seconds_fast, iteration_seconds_slow, gpu_time_error,
                       gpu_time_extrapolated_share, runs_with, changes_training))

// Where the prices are known (studies/sweep/cost.h); of the whole machine.
struct SweepCosts {
  std::uint64_t gpus = 0, gpus_used = 0;  // paid for; with a rank of the trace
  std::optional<double> usd_per_hour, usd_per_iteration, usd_per_million_tokens, run_hours, run_usd;
  std::optional<double> spot_usd_per_hour, spot_interruptions_per_hour, spot_slowdown, spot_checkpoint_interval_seconds;
  std::optional<double> spot_usd_per_iteration, spot_usd_per_million_tokens, spot_run_hours, spot_run_usd;
  std::optional<double> storage_usd_per_hour;  // of what is attached, a part of both; none: nothing is, or not known

  bool operator==(const SweepCosts&) const = default;
};
BOOST_DESCRIBE_STRUCT(SweepCosts, (),
                      (gpus, gpus_used, usd_per_hour, usd_per_iteration, usd_per_million_tokens, run_hours, run_usd,
                       spot_usd_per_hour, spot_interruptions_per_hour, spot_slowdown, spot_checkpoint_interval_seconds,
                       spot_usd_per_iteration, spot_usd_per_million_tokens, spot_run_hours, spot_run_usd,
                       storage_usd_per_hour))

// Where the figures are from; confidence: published, measured, estimated, given (by the user).
struct SweepSources {
  std::string price_source, price_retrieved, price_confidence;
  std::string spot_price_source, spot_price_retrieved, spot_price_confidence;
  std::string interruptions_source, interruptions_retrieved, interruptions_confidence;
  std::string storage_price_source, storage_price_retrieved, storage_price_confidence;

  bool operator==(const SweepSources&) const = default;
};
BOOST_DESCRIBE_STRUCT(SweepSources, (),
                      (price_source, price_retrieved, price_confidence, spot_price_source, spot_price_retrieved,
                       spot_price_confidence, interruptions_source, interruptions_retrieved, interruptions_confidence,
                       storage_price_source, storage_price_retrieved, storage_price_confidence))

struct SweepRow : SweepCombination, SweepFigures, SweepCosts, SweepSources {
  bool on_front = false;         // of time against cost on demand, among the rows of its workload
  bool ties_with_front = false;  // not on it, but within tie_margin() of a row that is, in both

  bool operator==(const SweepRow&) const = default;
};
BOOST_DESCRIBE_STRUCT(SweepRow, (SweepCombination, SweepFigures, SweepCosts, SweepSources), (on_front, ties_with_front))

// visit(name, field) for each field, in order; `Row` is SweepRow or const SweepRow.
template <typename Row, typename Visit>
void for_each_field(Row& row, Visit&& visit) {
  namespace describe = boost::describe;
  using Fields = describe::describe_members<SweepRow, describe::mod_public | describe::mod_inherited>;
  boost::mp11::mp_for_each<Fields>([&](auto field) { visit(field.name, row.*field.pointer); });
}

}  // namespace tencache
