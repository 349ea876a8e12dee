// Inside `tencache tune`: the workloads, the problem that is searched, and what came out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policies/knobs.h"
#include "studies/tune.h"
#include "studies/workload.h"

namespace tencache {

struct TuneRequest {
  std::vector<TraceChoice> traces;                    // files or loaded
  Scenario scenario;                                  // but for the traces; a model to generate is one more workload
  std::string from_deepspeed, from_deepspeed_sha256;  // the file that `start` was read from, for the manifest
  std::string policy;
  std::vector<std::string> settings, over;  // --set, --over
  std::uint64_t budget = 300, seed = 1, threads = 0;
  double jitter = 0;         // share of the durations
  std::uint64_t copies = 0;  // 0: 5 with jitter, else 1
  double tie = 0.005;
  bool chooses_plan = false;                  // of recomputation, afterwards: no knobs are no error, no choices are
  std::optional<Nanoseconds> most_per_token;  // --max-tpot: what is slower does not count
};

struct Tuned {
  TuneRequest request;
  std::vector<Workload> workloads;
  Settings defaults, fixed;  // of the policy, and of the block
  std::vector<Knob> knobs;
  // Of a generated text generation that is the only workload, what of its block is searched: requests, micro-batches,
  // order, kv-page, as far as the user did not say it.
  std::vector<std::string> of_block;
  std::optional<Settings> start;  // of a configuration that the search starts at
  std::optional<std::size_t> start_candidate;
  std::vector<double> ideal_seconds;  // by workload
  std::vector<ModelShape> models;     // by workload, of a rank
  TuneResult result;
  std::vector<std::vector<RecomputeLevel>> levels;  // by workload, that the policy chose with the best settings
  double run_seconds = 0;

  const Candidate& best() const { return result.candidates[result.best]; }
  const Candidate& standard() const { return result.candidates.front(); }
  const MachineSpec& machine() const { return workloads.front().machine; }
  // All options of the policy, and of the block.
  Settings resolved(const Candidate& candidate) const;
  // Of settings, those of the policy.
  Settings of_policy(Settings settings) const;
  // How a workload is generated with the candidate's block; empty: it was not generated, or has no such options.
  GenerateSettings generated(const Settings& settings, std::size_t workload) const;
};

// Each of its workloads: the traces, then the model. Throws Error where there is none.
std::vector<Scenario> workloads_of(const TuneRequest& request);

// `start`: settings to begin at. Throws Error where a file, name or value is wrong, or the policy has no knobs.
Tuned run_tune(const TuneRequest& request, const std::optional<Settings>& start);

// What the candidate's settings reserve, on the workload where that is most.
ReservedMemory reserved_memory(const Tuned& tuned, const Candidate& candidate);

// "replay T --machine M … --policy P --set …": the words of the command that simulates the candidate, quoted for a
// shell.
std::string replay_command(const Tuned& tuned, const Candidate& candidate, std::size_t workload);

}  // namespace tencache
