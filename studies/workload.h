// A trace, a machine and policies by the names the user gave, and simulating them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "configs/generate_settings.h"
#include "configs/price_table.h"
#include "configs/rescale_to_machine.h"
#include "core/engine/engine.h"
#include "core/machine_spec.h"
#include "core/trace.h"
#include "studies/policy_run.h"

namespace tencache {

// What the user asked for, as text; shared by the commands that run something.
struct WorkloadOptions {
  std::string trace;
  GenerateSettings generate;  // instead of a trace
  std::string machine;
  std::string gpu_memory, cpu_memory;  // sizes; empty: the machine's
  std::vector<std::string> limits;     // LINK=BANDWIDTH each
  std::uint64_t iterations = 0;        // 0: until the steady state recurs
  RescaleOptions rescale;
  PriceChoice prices;
  std::string faults;                // a plan (core/fault_plan.h); empty: nothing goes wrong on purpose
  std::string trace_at, machine_at;  // where these files are, if not where their names say
};
// Throws Error on what is not of the form key=value, or stands twice.
std::map<std::string, std::string> parse_settings(const std::vector<std::string>& settings);

struct Workload {
  WorkloadOptions options;
  Trace trace;  // rescaled to the machine's GPU
  std::string trace_sha256;
  std::optional<Rescaling> rescaling;  // none: durations are as the file has them
  std::optional<GpuTime> gpu_time;     // of its modelled durations; none: there are none, or of an unknown GPU
  MachineSpec machine;                 // with the user's memory sizes and limits
  std::string machine_sha256;
  PriceUsed price;
  double load_seconds = 0;
  std::uint64_t seed = 0;                          // of the training program that the trace was recorded from
  std::map<std::string, std::string> run_options;  // of the command, for the manifest
};
// A model is generated for the machine's GPU unless --gpu names one. Throws Error that says which file or size is
// wrong.
Workload load_workload(const WorkloadOptions& options);
// For the machine's GPU unless the settings name another.
Trace generate_for(GenerateSettings settings, const MachineSpec& machine);
// The machine of `options` alone; sets its SHA-256 if asked for.
MachineSpec load_machine(const WorkloadOptions& options, std::string* sha256 = nullptr);
// All files that the command reads for `options`, with those that they build on: what none of its outputs may be
// (cli/output_files.h). Throws Error where the machine or the model is not to be found.
std::vector<std::string> input_files(const WorkloadOptions& options);
// Of --pinned-limit: "64GiB", or "50%" of the CPU memory of so many ranks together; none: an empty text. Throws Error.
std::optional<Bytes> parse_pinned_limit(const std::string& text, const MachineSpec& machine, std::size_t ranks);

// "g5.xlarge", or "g5.xlarge with GPU memory 6.00 GiB, nvme_read at most 1.00 GB/s" where the user changed it.
std::string machine_title(const Workload& workload);

// studies/policy_run.h, timed.
Outcome simulate_policy(const Workload& workload, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders = {});
// The same on a machine of the caller's choice, of a trace that is no file.
Outcome simulate_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const RunLimits& limits,
                        const Recorders& recorders = {});
// The same on another machine than the workload's.
Outcome simulate_policy(const Workload& workload, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders = {});

// The same, but what this machine cannot serve or the policy refuses is a run that does not fit, with the reason.
Outcome simulate_or_refuse(const Workload& workload, const std::string& policy,
                           const std::map<std::string, std::string>& settings, const FaultPlan* faults = nullptr);

// Names separated by commas, or "all": each once. Throws Error that lists the valid names for an unknown one.
std::vector<std::string> policies_named(const std::string& list);

References references_of(const Workload& workload);

}  // namespace tencache
