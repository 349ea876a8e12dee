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
};

struct Tuned {
  TuneRequest request;
  std::vector<Workload> workloads;
  Settings defaults, fixed;
  std::vector<Knob> knobs;
  std::optional<Settings> start;  // of a configuration that the search starts at
  std::optional<std::size_t> start_candidate;
  std::vector<double> ideal_seconds;  // by workload
  std::vector<ModelShape> models;     // by workload, of a rank
  TuneResult result;
  double run_seconds = 0;

  const Candidate& best() const { return result.candidates[result.best]; }
  const Candidate& standard() const { return result.candidates.front(); }
  const MachineSpec& machine() const { return workloads.front().machine; }
  // All options of the policy.
  Settings resolved(const Candidate& candidate) const;
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
