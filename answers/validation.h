// Published experiments against their simulations, as an answer. Deterministic.
#pragma once

#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/validation_gpu.h"
#include "studies/validation/run.h"

namespace tencache {

BOOST_DESCRIBE_ENUM(ValidationKind, offloading, gpu, memory)
BOOST_DESCRIBE_ENUM(RowKind, figure, order, fails, kernels)
BOOST_DESCRIBE_ENUM(Verdict, within, missed, listed, skipped)
TENCACHE_ANSWER(Published, text, from, to)
TENCACHE_ANSWER(TrainingRun, gpu, model, sequence, gpus, recomputed)
TENCACHE_ANSWER(FittedParameter, parameter, value, on)
TENCACHE_ANSWER(ValidationTolerance, median, p90, worst, gpu_median)
TENCACHE_ANSWER(ValidationHead, name, system, source, url, kind, tolerance)
TENCACHE_ANSWER(ValidationRemarks, fitted, remarks, not_modelled)
TENCACHE_ANSWER(ValidationSummary, judged, missed, fitted, listed, skipped, median_error, p90_error, worst_error,
                passed)

struct KernelsAnswer {
  std::string chip, gpu, kind;
  double target = 0;  // the median error that is tolerated
  std::optional<std::uint64_t> head_dimension;
  std::optional<bool> causal;
  Absent<bool> fp8;
  // Of a group that was simulated.
  Absent<std::size_t> count;
  Absent<double> median_ratio, median_error, p90_error;
};
TENCACHE_ANSWER(KernelsAnswer, chip, gpu, kind, target, head_dimension, causal, fp8, count, median_ratio, median_error,
                p90_error)

// Which of the first members a row has, its kind says.
struct ValidatedRow {
  std::string experiment, row;
  RowKind kind = RowKind::figure;
  std::vector<std::string> workloads;
  Absent<std::string> metric, of;
  Absent<std::optional<std::string>> over;
  Absent<Published> published;
  Absent<TrainingRun> training;
  Absent<KernelsAnswer> kernels;
  Absent<std::vector<std::string>> order;
  std::string source;
  bool fitted = false;
  std::optional<std::string> note, not_judged;
  Verdict verdict = Verdict::skipped;
  std::optional<double> simulated, error;
  std::optional<std::string> detail;
};
TENCACHE_ANSWER(ValidatedRow, experiment, row, kind, workloads, metric, of, over, published, training, kernels, order,
                source, fitted, note, not_judged, verdict, simulated, error, detail)

struct ValidationHits {
  double accesses = 0, bytes = 0, tensors = 0;
};
TENCACHE_ANSWER(ValidationHits, accesses, bytes, tensors)

struct ValidationRun {
  std::string workload, system;
  std::optional<double> iteration_seconds;
  std::optional<std::string> reason;  // without a time
  Absent<ValidationHits> gpu_hit_rate;
  Absent<Named<double>> traffic_bytes;
  Absent<std::vector<std::string>> policy_notes;
};
TENCACHE_ANSWER(ValidationRun, workload, system, iteration_seconds, reason, gpu_hit_rate, traffic_bytes, policy_notes)

struct ValidationOutcome {
  std::vector<std::string> failures;
  std::vector<GpuAccuracy> gpus;
  ValidationSummary summary;
};
TENCACHE_ANSWER(ValidationOutcome, failures, gpus, summary)

struct ValidatedSystem : ValidationHead, ValidationOutcome, ValidationRemarks {
  std::vector<ValidatedRow> rows;  // in the order of experiments
  std::vector<ValidationRun> runs;
};
BOOST_DESCRIBE_STRUCT(ValidatedSystem, (ValidationHead, ValidationOutcome, ValidationRemarks), (rows, runs))

struct ValidationAnswer {
  std::string version;
  // Files of the three kinds are summed up apart: none hides what another misses.
  ValidationSummary summary, summary_without_recordings, gpu_summary, memory_summary;
  std::vector<GpuAccuracy> gpus;
  std::vector<ValidatedSystem> systems;
};
TENCACHE_ANSWER(ValidationAnswer, version, summary, summary_without_recordings, gpu_summary, memory_summary, gpus,
                systems)

ValidationAnswer validation_answer(const std::vector<ValidationResult>& results);
Document document_of(const ValidationAnswer& answer);
// What docs have of it, with how each experiment was set up.
std::string validation_markdown(const std::vector<ValidationResult>& results);

}  // namespace tencache
