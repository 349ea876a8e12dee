// Results as JSON (the contract of the command line) and as text. What each figure means: docs/results.md.
#pragma once

#include <string>

#include "answers/json.h"
#include "answers/manifest.h"
#include "studies/workload.h"

namespace tencache {

// Every key of the contract, without an interval. Deterministic but for the object `timing`. Where the trace does not
// fit, `fits` is false, `reason` says why and the figures of the run are null.
Json result_json(const Workload& workload, const Outcome& outcome, const References& references);

// The lower bound as a row of `compare --json`: a result of this policy name, of which only the time is known.
inline constexpr const char* bound_row = "bound";
Json bound_row_json(const Workload& workload, const References& references);

// One result for people, several lines.
std::string result_text(const Workload& workload, const Outcome& outcome, const References& references);

// Of the wait for the CPU's optimizer: while the CPU computes, and while it waits itself for what it reads. The text is
// empty where nothing waits for it.
Json cpu_wait_json(const RunResult& result);
std::string cpu_wait_text(const RunResult& result);

// What DeepSpeed would take of CPU memory for this run (studies/deepspeed_memory.h), and a sentence where that is too much,
// though the simulation fits. Null, empty: of another policy, or it does not fit.
Json deepspeed_memory_json(const Workload& workload, const Outcome& outcome);
std::string deepspeed_note(const Workload& workload, const Outcome& outcome);

// What a reader of the result must know, a sentence each.
std::vector<std::string> notes_of(const Workload& workload);

// Null where durations are as the trace has them.
Json rescaling_json(const Workload& workload);

// How far off the modelled durations of GPU ops may be (traces/generate/gpu_time.h); null where none is modelled, or
// the GPU is unknown.
Json gpu_time_json(const Workload& workload);
// "GPU times are modelled for the h100 (eager): ± 6 % (median error)".
std::string gpu_time_note(const GpuTime& time);

Json machine_json(const MachineSpec& machine);

// "BERT, batch 256" where the trace says so, else the file's name.
std::string trace_title(const Workload& workload);

// █ for compute and gaps, ▒ for what it waits for most, ░ for other stalls; `longest_seconds` fills the width,
// and what is longer ends in ▸.
std::string time_bar(const RunResult& result, double longest_seconds, std::size_t width);
}  // namespace tencache
