// A scenario made ready: its trace and machine, loaded; and simulating them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "studies/policy_run.h"
#include "studies/scenario.h"

namespace tencache {

// Throws Error on what is not of the form key=value, or stands twice.
std::map<std::string, std::string> parse_settings(const std::vector<std::string>& settings);

struct Workload {
  Scenario scenario;  // of a generated trace, `trace.file` is how it was generated
  std::shared_ptr<const Trace> trace = std::make_shared<const Trace>();  // rescaled to the machine's GPU, and scaled
  std::string trace_sha256;
  std::optional<Rescaling> rescaling;  // none: durations are as the file has them
  std::optional<GpuTime> gpu_time;     // of its modelled durations; none: there are none, or of an unknown GPU
  MachineSpec machine;                 // with the scenario's memory sizes and limits
  std::string machine_sha256;          // empty: it was given loaded
  PriceUsed price;
  double load_seconds = 0;
  std::uint64_t seed = 0;  // of the training program that the trace was recorded from
};
// A model is generated for the machine's GPU unless the settings name another. Throws Error that says which file or
// size is wrong.
Workload load_workload(const Scenario& scenario);
// Makes `trace` the workload's, as its scenario says: durations of the machine's GPU, scaled. Throws Error, and changes
// nothing then.
void set_trace(Workload& workload, Trace trace);
// Applies the scenario's trace.batch and trace.gpu_speed to the trace of a loaded workload, and clears both. Throws
// Error.
Workload with_changed_trace(Workload workload);

// What messages call the changes of a machine.
struct ChangeNames {
  const char *gpu_memory = "--gpu-memory", *cpu_memory = "--cpu-memory", *gpu_allocator = "--gpu-allocator",
             *limit = "--limit ";
};
// The machine without its changes; and the changes. Throw Error.
MachineSpec read_machine(const MachineChoice& choice);
void change_machine(MachineSpec& machine, const MachineChoice& choice, const ChangeNames& names = {});
// Both; sets the SHA-256 of its files if asked for.
MachineSpec load_machine(const MachineChoice& choice, std::string* sha256 = nullptr);

// All files that are read for the scenario, with those that they build on: what no output may be (traces/file/output_files.h).
// Throws Error where the machine or the model is not to be found.
std::vector<std::string> input_files(const Scenario& scenario);
// Of --pinned-limit: "64GiB", or "50%" of the CPU memory of so many ranks together; none: an empty text. Throws Error.
std::optional<Bytes> parse_pinned_limit(const std::string& text, const MachineSpec& machine, std::size_t ranks);

// Whether what was measured on the machine says something of it: nothing is changed of the machine and the trace, and
// its durations are of the machine's GPU.
bool is_like_measured(const Workload& workload);
// "g5.xlarge", or "g5.xlarge with GPU memory 6.00 GiB, nvme_read at most 1.00 GB/s" where the user changed it.
std::string machine_title(const Workload& workload);

// studies/policy_run.h, timed.
Outcome simulate_policy(const Workload& workload, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders = {});
// The same of another trace, on another machine.
Outcome simulate_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const RunLimits& limits,
                        const Recorders& recorders = {});

// The same, but what this machine cannot serve or the policy refuses is a run that does not fit, with the reason.
Outcome simulate_or_refuse(const Workload& workload, const std::string& policy,
                           const std::map<std::string, std::string>& settings, const FaultPlan* faults = nullptr);

// Names separated by commas, or "all": each once. Throws Error that lists the valid names for an unknown one.
std::vector<std::string> policies_named(const std::string& list);

References references_of(const Workload& workload, const Recorders& recorders = {});

}  // namespace tencache
