// Runs on this computer, measured: `tencache run replay` and `tencache run python`. Each answer is a result, with what
// only a measurement has and, where one was made before, its prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answers/document.h"
#include "answers/result.h"

namespace tencache {

// ---- The rule of predictions: written and hashed before the measured run starts ----------------------------------

struct Prediction {
  Outcome outcome;
  References references;
  UntimedResult result;  // as written
  std::string file;      // empty: a temporary one
  std::string sha256;
};
// Simulates the scenario's policy, writes the result to `file` and says its SHA-256 on stderr. Without a name the file
// is gone afterwards: the hash stays. `timeline`, if given, receives the spans; `in_place`, if given, is asked in place
// of a new policy of that name.
Prediction predict(const Workload& workload, const std::string& file, Timeline* timeline, Policy* in_place = nullptr);

// `measured_seconds`, if given, is the measured iteration in place of the result's: training compares its median step.
// None where one of the two did not fit.
std::optional<ResultComparison> compare_results(const UntimedResult& predicted, const UntimedResult& measured,
                                                std::optional<double> measured_seconds = {});
// What is zero on both sides is left out.
DocumentTable comparison_table(const ResultComparison& comparison);
// What a measured result says of its prediction.
PredictedResult predicted_result(const Prediction& prediction, std::optional<ResultComparison> comparison);

// ---- A recorded trace that was replayed --------------------------------------------------------------------------

// Of the content of tensors: each is checked where it is read.
struct Verification {
  std::uint64_t tensors = 0, corrupted = 0;
  std::string first_corruption;
};
TENCACHE_ANSWER(Verification, tensors, corrupted, first_corruption)

// Ops that took longer than recorded, and by how much in all.
struct LateOps {
  std::uint64_t count = 0;
  double seconds = 0;
};
TENCACHE_ANSWER(LateOps, count, seconds)

// What giving chunks their memory cost over the whole run; `pieces`: that they were put together from.
struct MappingCost {
  std::uint64_t maps = 0, unmaps = 0;
  Bytes bytes = 0;
  std::uint64_t pieces = 0;
  double map_seconds = 0, unmap_seconds = 0;
};
TENCACHE_ANSWER(MappingCost, maps, unmaps, bytes, pieces, map_seconds, unmap_seconds)

struct ReplayedAnswer : ResultAnswer {
  std::string scale_bytes, scale_time;  // of the trace
  Verification verification;
  LateOps late_ops;
  Named<MappingCost> mapping;  // by tier of memory
  std::string host;            // how files are accessed, a line a tier

  std::string text, predicted_text;  // the results for a terminal, known only while the command runs
};
BOOST_DESCRIBE_STRUCT(ReplayedAnswer, (ResultAnswer), (scale_bytes, scale_time, verification, late_ops, mapping, host))
Document document_of(const ReplayedAnswer& answer);

// ---- A program that ran live -------------------------------------------------------------------------------------

// The median and the mean are of the steps from the third on (of all, if there are no more than two): those that ran
// under the policy with the schedule known. 0 without steps.
struct StepFigures {
  std::vector<double> step_seconds;
  double median_step_seconds = 0, mean_step_seconds = 0;
  double evictions_per_step = 0;
};
TENCACHE_ANSWER(StepFigures, step_seconds, median_step_seconds, mean_step_seconds, evictions_per_step)
StepFigures step_figures(std::vector<double> step_seconds, double evictions_per_step);

// Of a process that is one of several.
struct RankFigures {
  std::uint64_t rank = 0, world_size = 1, rank_of_host = 0, ranks_of_host = 1;
  // CPU memory: a rank's part, what this one held at most (it may have some that others left), and of all on this host.
  Bytes cpu_memory_bytes = 0, most_cpu_memory_bytes = 0, host_cpu_memory_bytes = 0;
  std::vector<std::string> shared_links;  // whose bandwidth ranks share
  bool paced = false;                     // by the machine's figures, and not by what this computer gives
};
TENCACHE_ANSWER(RankFigures, rank, world_size, rank_of_host, ranks_of_host, cpu_memory_bytes, most_cpu_memory_bytes,
                host_cpu_memory_bytes, shared_links, paced)

// What the runtime counts, from the first step on.
struct RuntimeFigures {
  Named<Bytes> link_bytes;
  Bytes peak_bytes = 0, live_bytes = 0;  // of all storages at once, at most (what 100 % of the memory is) and now
  Bytes gpu_memory_bytes = 0, largest_op_bytes = 0;  // the latter is the least GPU memory
  std::string largest_op;
  std::uint64_t faults = 0;           // touches of code that is no op
  std::uint64_t exposed_tensors = 0;  // whose address got known outside PyTorch: they never move
  std::uint64_t evictions = 0, deviations = 0;
  std::string first_deviation;
  std::uint64_t ops = 0, ops_on_schedule = 0;  // since the schedule is known, but for those of steps asleep
  std::uint64_t steps_asleep = 0;              // that began so: no op was seen, and nothing moved
  double stall_seconds = 0;
  Absent<RankFigures> ranks;
};
TENCACHE_ANSWER(RuntimeFigures, link_bytes, peak_bytes, live_bytes, gpu_memory_bytes, largest_op_bytes, largest_op,
                faults, exposed_tensors, evictions, deviations, first_deviation, ops, ops_on_schedule, steps_asleep,
                stall_seconds, ranks)

// With what Python knows of the program (python/tencache/_live.py).
struct ProgramFigures : RuntimeFigures {
  Bytes process_bytes = 0;                   // of the whole process, at most, since its first parameter
  Bytes process_bytes_before = 0;            // until then
  Bytes taken_bytes = 0;                     // at its first parameter, under a limit on the whole process
  bool started = false;                      // a model was called, or a backward pass
  Named<std::uint64_t> exposed_at;           // FILE:LINE that asked for the addresses of tensors, and how often
  std::uint64_t split_ops = 0;               // on lists of tensors, that ran in groups
  std::uint64_t update_tasks = 0;            // updates of optimizers that ran as tasks
  std::vector<std::string> optimizers_left;  // to PyTorch, and why
  Bytes adopted_bytes = 0;
  Bytes bytes_left_in_files = 0;  // read from the files that they were loaded from
  Bytes unadopted_bytes = 0;      // others may share their memory
  std::vector<double> step_seconds;
};
BOOST_DESCRIBE_STRUCT(ProgramFigures, (RuntimeFigures),
                      (process_bytes, process_bytes_before, taken_bytes, started, exposed_at, split_ops, update_tasks,
                       optimizers_left, adopted_bytes, bytes_left_in_files, unadopted_bytes, step_seconds))

struct LiveAnswer : ResultAnswer {
  StepFigures training;
  ProgramFigures live;

  std::string text;  // the result for a terminal, known only while the command runs
};
BOOST_DESCRIBE_STRUCT(LiveAnswer, (ResultAnswer), (training, live))

// The workload's trace is the recorded step, without ops where there is none; the outcome's window the steps from the
// third on. `prediction` may be null.
LiveAnswer live_answer(const Workload& workload, const Outcome& outcome, ProgramFigures figures,
                       const Prediction* prediction);
Document document_of(const LiveAnswer& answer);

}  // namespace tencache
