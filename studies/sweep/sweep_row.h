// One combination of a sweep and what came out of it. The same fields stand, under the same names, in the results
// file, in CSV and in JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tencache {

// price_source of a machine with more memory than it is sold with, which has no price.
constexpr const char* what_if_price = "what-if: no such machine is sold";

struct SweepRow {
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
  std::string options;  // resolved, a JSON object

  bool fits = false;
  std::string reason;  // why not
  // Where it fits:
  std::optional<double> iteration_seconds, first_iteration_seconds, slowdown;  // slowdown: ÷ ideal
  std::optional<double> ideal_seconds, bound_seconds;                          // also where it does not fit
  std::string bound_term;
  std::string waits_for;  // the longest stall's cause; empty: none
  std::optional<double> waits_seconds;
  std::optional<std::uint64_t> gpu_peak_bytes, cpu_peak_bytes, nvme_peak_bytes;
  std::optional<double> tokens_per_second;

  // Of a row that fits, what may be believed of its time (configs/validated.h): "validated within 43.7 % (…)", or
  // "extrapolated", with what is known; the first as a share.
  std::string validity;
  std::optional<double> validated_within;
  // Of modelled GPU times (traces/generate/gpu_time.h): their median error, and the share that is of shapes beyond the
  // measured ones (1: of a GPU that was not measured).
  std::optional<double> gpu_time_error, gpu_time_extrapolated_share;

  // Cost, where the prices are known (studies/sweep/cost.h); of the whole machine.
  std::uint64_t gpus = 0, gpus_used = 0;  // paid for; with a rank of the trace
  std::optional<double> usd_per_hour, usd_per_iteration, usd_per_million_tokens, run_hours, run_usd;
  std::optional<double> spot_usd_per_hour, spot_interruptions_per_hour, spot_slowdown, spot_checkpoint_interval_seconds;
  std::optional<double> spot_usd_per_iteration, spot_usd_per_million_tokens, spot_run_hours, spot_run_usd;
  std::optional<double> storage_usd_per_hour;  // of what is attached, a part of both; none: nothing is, or not known
  // Where the figures are from; confidence: published, measured, estimated, given (by the user).
  std::string price_source, price_retrieved, price_confidence;
  std::string spot_price_source, spot_price_retrieved, spot_price_confidence;
  std::string interruptions_source, interruptions_retrieved, interruptions_confidence;
  std::string storage_price_source, storage_price_retrieved, storage_price_confidence;
  bool on_front = false;         // of time against cost on demand, among the rows of its workload
  bool ties_with_front = false;  // not on it, but within tie_margin() of a row that is, in both

  friend bool operator==(const SweepRow&, const SweepRow&) = default;
};

// visit(name, field) for each field, in order; `Row` is SweepRow or const SweepRow.
template <typename Row, typename Visit>
void for_each_field(Row& row, Visit&& visit) {
  visit("key", row.key);
  visit("position", row.position);
  visit("build", row.build);
  visit("workload", row.workload);
  visit("model", row.model);
  visit("trace", row.trace);
  visit("batch", row.batch);
  visit("sequence_length", row.sequence_length);
  visit("tokens_per_iteration", row.tokens_per_iteration);
  visit("durations", row.durations);
  visit("rescaled_from", row.rescaled_from);
  visit("machine", row.machine);
  visit("gpu", row.gpu);
  visit("gpu_memory", row.gpu_memory);
  visit("cpu_memory", row.cpu_memory);
  visit("limits", row.limits);
  visit("policy", row.policy);
  visit("options", row.options);
  visit("fits", row.fits);
  visit("reason", row.reason);
  visit("iteration_seconds", row.iteration_seconds);
  visit("first_iteration_seconds", row.first_iteration_seconds);
  visit("slowdown", row.slowdown);
  visit("ideal_seconds", row.ideal_seconds);
  visit("bound_seconds", row.bound_seconds);
  visit("bound_term", row.bound_term);
  visit("waits_for", row.waits_for);
  visit("waits_seconds", row.waits_seconds);
  visit("gpu_peak_bytes", row.gpu_peak_bytes);
  visit("cpu_peak_bytes", row.cpu_peak_bytes);
  visit("nvme_peak_bytes", row.nvme_peak_bytes);
  visit("tokens_per_second", row.tokens_per_second);
  visit("validity", row.validity);
  visit("validated_within", row.validated_within);
  visit("gpu_time_error", row.gpu_time_error);
  visit("gpu_time_extrapolated_share", row.gpu_time_extrapolated_share);
  visit("gpus", row.gpus);
  visit("gpus_used", row.gpus_used);
  visit("usd_per_hour", row.usd_per_hour);
  visit("usd_per_iteration", row.usd_per_iteration);
  visit("usd_per_million_tokens", row.usd_per_million_tokens);
  visit("run_hours", row.run_hours);
  visit("run_usd", row.run_usd);
  visit("spot_usd_per_hour", row.spot_usd_per_hour);
  visit("spot_interruptions_per_hour", row.spot_interruptions_per_hour);
  visit("spot_slowdown", row.spot_slowdown);
  visit("spot_checkpoint_interval_seconds", row.spot_checkpoint_interval_seconds);
  visit("spot_usd_per_iteration", row.spot_usd_per_iteration);
  visit("spot_usd_per_million_tokens", row.spot_usd_per_million_tokens);
  visit("spot_run_hours", row.spot_run_hours);
  visit("spot_run_usd", row.spot_run_usd);
  visit("storage_usd_per_hour", row.storage_usd_per_hour);
  visit("price_source", row.price_source);
  visit("price_retrieved", row.price_retrieved);
  visit("price_confidence", row.price_confidence);
  visit("spot_price_source", row.spot_price_source);
  visit("spot_price_retrieved", row.spot_price_retrieved);
  visit("spot_price_confidence", row.spot_price_confidence);
  visit("interruptions_source", row.interruptions_source);
  visit("interruptions_retrieved", row.interruptions_retrieved);
  visit("interruptions_confidence", row.interruptions_confidence);
  visit("storage_price_source", row.storage_price_source);
  visit("storage_price_retrieved", row.storage_price_retrieved);
  visit("storage_price_confidence", row.storage_price_confidence);
  visit("on_front", row.on_front);
  visit("ties_with_front", row.ties_with_front);
}

}  // namespace tencache
