// Rows of published experiments against what the simulations gave: arithmetic alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "studies/validation/gpu.h"
#include "studies/validation/run.h"

namespace tencache {
namespace {

double metric_of(const RunFigures& run, const ValidationRow& row) {
  if (!row.training) return run.figure(row.metric);
  const double forward = run.figure("forward_seconds");
  const double seconds = row.metric == "tokens_per_second"           ? run.figure("seconds")
                         : row.metric == "forward_tokens_per_second" ? forward
                                                                     : forward + run.figure("backward_seconds");
  return row.training->tokens / seconds;
}

// The run of `operand`, which may be the ideal on the machine of `other`.
RunKey key_of(const ValidationFile& file, const std::string& workload, const std::string& operand,
              const std::string& other) {
  if (operand != ideal_system) return {workload, operand};
  return {workload, ideal_run(file.system_named(other))};
}

// A system of the row that is not the ideal.
std::string reference_of(const ValidationRow& row) {
  if (!row.order.empty()) {
    const auto found = std::ranges::find_if(row.order, [](const std::string& name) { return name != ideal_system; });
    return found == row.order.end() ? row.order.front() : *found;
  }
  return row.of == ideal_system ? row.over : row.of;
}

std::vector<RunKey> keys_of(const ValidationFile& file, const ValidationRow& row) {
  if (row.kind == RowKind::kernels) return {};
  std::vector<std::string> operands = row.order;
  if (row.kind != RowKind::order) operands.push_back(row.of);
  if (!row.over.empty()) operands.push_back(row.over);
  std::vector<RunKey> keys;
  for (const std::string& workload : row.workloads) {
    for (const std::string& operand : operands) keys.push_back(key_of(file, workload, operand, reference_of(row)));
  }
  return keys;
}

// Counts rows by what became of them.
class Tally {
 public:
  void add(const ValidationRow& row, const RowResult& result) {
    if (result.verdict == Verdict::skipped) {
      ++summary_.skipped;
    } else if (result.verdict == Verdict::listed) {
      ++(row.fitted ? summary_.fitted : summary_.listed);
    } else {
      ++summary_.judged;
      if (result.verdict == Verdict::missed) {
        ++summary_.missed;
        summary_.passed = false;
      }
      if (!result.error) return;
      summary_.worst_error = std::max(summary_.worst_error.value_or(0), std::abs(*result.error));
      if (!row.published.is_range()) errors_.push_back(std::abs(*result.error));
    }
  }
  ValidationSummary summary() const {
    ValidationSummary summary = summary_;
    summary.median_error = median_of(errors_);
    summary.p90_error = p90_of(errors_);
    return summary;
  }

 private:
  ValidationSummary summary_;
  std::vector<double> errors_;  // absolute, of the figures that count and have one published number
};

class Evaluation {
 public:
  Evaluation(const ValidationFile& file, RunTable runs, const KernelTable& kernels) : kernels_(kernels) {
    result_.file = &file;
    result_.runs = std::move(runs);
  }

  ValidationResult evaluate() {
    Tally tally;
    for (const ValidationExperiment& experiment : result_.file->experiments) {
      result_.rows.emplace_back();
      for (const ValidationRow& row : experiment.rows) {
        result_.rows.back().push_back(result_of(row));
        tally.add(row, result_.rows.back().back());
      }
    }
    static_cast<ValidationSummary&>(result_) = tally.summary();
    hold("median error", result_.median_error, result_.file->tolerance.median);
    hold("p90 of the errors", result_.p90_error, result_.file->tolerance.p90);
    hold_gpus();
    result_.passed = result_.passed && result_.failures.empty();
    return std::move(result_);
  }

 private:
  const RunFigures& run(const RunKey& key) const { return result_.runs.at(key); }

  void hold(const char* what, const std::optional<double>& figure, const std::optional<double>& most) {
    if (!figure || !most || *figure <= *most) return;
    result_.failures.push_back(fmt::format("{} {:.1f} %, at most {:.0f} %", what, 100 * *figure, 100 * *most));
  }
  void hold_gpus() {
    const std::optional<double>& most = result_.file->tolerance.gpu_median;
    if (!most) return;
    const std::vector<TrainingRatio> ratios = training_ratios(result_);
    for (const std::string& gpu : gpus_of(ratios)) {
      const RatioFigures figures =
          figures_where(ratios, [&](const TrainingRatio& r) { return r.run->gpu == gpu && r.judged; });
      if (std::abs(figures.median_ratio - 1) <= *most) continue;
      result_.failures.push_back(
          fmt::format("{}: median ratio {:.3f}, {:.2f} to {:.2f}", gpu, figures.median_ratio, 1 - *most, 1 + *most));
    }
  }

  RowResult result_of(const ValidationRow& row) const {
    if (row.kind == RowKind::kernels) return kernels(row);
    for (const RunKey& key : keys_of(*result_.file, row)) {
      if (run(key).state != RunState::skipped) continue;
      return {.verdict = Verdict::skipped, .simulated = {}, .error = {}, .detail = run(key).reason};
    }
    switch (row.kind) {
      case RowKind::figure:
        return figure(row);
      case RowKind::order:
        return order(row);
      case RowKind::fails:
        return fails(row);
      case RowKind::kernels:
        break;
    }
    return {};
  }

  RowResult kernels(const ValidationRow& row) const {
    const auto found = kernels_.find(&*row.kernels);
    RowResult result;
    if (found == kernels_.end() || found->second.kernels == 0) {
      result.detail = "the table has no such kernels";
      return result;
    }
    const KernelFigures& figures = found->second;
    result.kernels = figures;
    result.simulated = figures.median;
    result.verdict = figures.median <= row.kernels->target ? Verdict::within : Verdict::missed;
    result.detail = fmt::format("{} kernels, median ratio {:.3f}, p90 {:.1f} %", figures.kernels, figures.median_ratio,
                                100 * figures.p90);
    return result;
  }

  RowResult figure(const ValidationRow& row) const {
    double sum = 0;
    for (const std::string& workload : row.workloads) {
      const RunFigures& of = run(key_of(*result_.file, workload, row.of, row.over));
      if (of.state != RunState::done) return misfit(row.of, of);
      double value = metric_of(of, row);
      if (!row.over.empty()) {
        const RunFigures& over = run(key_of(*result_.file, workload, row.over, row.of));
        if (over.state != RunState::done) return misfit(row.over, over);
        value /= metric_of(over, row);
      }
      sum += value;
    }
    RowResult result;
    const double simulated = sum / static_cast<double>(row.workloads.size());
    if (!std::isfinite(simulated)) {
      result.verdict = Verdict::missed;
      result.detail = "nothing to divide by";
      return result;
    }
    result.simulated = simulated;
    result.error = row.published.error_of(simulated);
    const bool counts = !row.fitted && row.not_judged.empty();
    // A range has its own tolerance: what is outside of it is missed.
    const double tolerated =
        row.published.is_range() ? 0 : result_.file->tolerance.worst.value_or(std::numeric_limits<double>::infinity());
    result.verdict = !counts                                ? Verdict::listed
                     : std::abs(*result.error) <= tolerated ? Verdict::within
                                                            : Verdict::missed;
    return result;
  }

  static RowResult misfit(const std::string& system, const RunFigures& run) {
    return {.verdict = Verdict::missed, .simulated = {}, .error = {}, .detail = system + ": " + run.reason};
  }

  RowResult order(const ValidationRow& row) const {
    RowResult result{.verdict = Verdict::within, .simulated = {}, .error = {}, .detail = {}};
    for (const std::string& workload : row.workloads) {
      double last = 0;
      for (const std::string& name : row.order) {
        const RunFigures& figures = run(key_of(*result_.file, workload, name, reference_of(row)));
        if (figures.state != RunState::done) return misfit(name, figures);
        const double seconds = figures.figure("seconds");
        if (seconds < last) result.verdict = Verdict::missed;
        last = seconds;
        result.detail += fmt::format("{}{:.4g}",
                                     result.detail.empty()         ? ""
                                     : &name == &row.order.front() ? "; "
                                                                   : " < ",
                                     seconds);
      }
    }
    result.detail += " s";
    if (!row.not_judged.empty()) result.verdict = Verdict::listed;
    return result;
  }

  RowResult fails(const ValidationRow& row) const {
    RowResult result{.verdict = Verdict::within, .simulated = {}, .error = {}, .detail = {}};
    for (const std::string& workload : row.workloads) {
      const RunFigures& figures = run({workload, row.of});
      if (figures.state == RunState::refused) return misfit(row.of, figures);
      if (figures.state == RunState::done) {
        result.verdict = Verdict::missed;
        result.detail = fmt::format("it fits: {:.4g} s", figures.figure("seconds"));
        break;
      }
      result.detail = figures.reason;
    }
    if (!row.not_judged.empty()) result.verdict = Verdict::listed;
    return result;
  }

  const KernelTable& kernels_;
  ValidationResult result_;
};

}  // namespace

std::string ideal_run(const ValidationSystem& compared_with) {
  return std::string(ideal_system) + " on " + compared_with.machine().name;
}

std::vector<RunKey> runs_needed(const ValidationFile& file) {
  std::vector<RunKey> all, ordered;
  for (const ValidationExperiment& experiment : file.experiments) {
    for (const ValidationRow& row : experiment.rows) {
      for (RunKey& key : keys_of(file, row)) {
        if (std::ranges::find(all, key) == all.end()) all.push_back(std::move(key));
      }
    }
  }
  for (const ValidationWorkload& workload : file.workloads) {
    for (const RunKey& key : all) {
      if (key.first == workload.name) ordered.push_back(key);
    }
  }
  return ordered;
}

ValidationResult evaluate(const ValidationFile& file, RunTable runs, const KernelTable& kernels) {
  return Evaluation(file, std::move(runs), kernels).evaluate();
}

ValidationSummary summarize(const std::vector<ValidationResult>& results, ValidationKind kind,
                            bool without_recordings) {
  Tally tally;
  bool passed = true;
  for (const ValidationResult& result : results) {
    if (result.file->kind != kind) continue;
    passed = passed && (without_recordings || result.passed);
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
      const std::vector<ValidationRow>& rows = result.file->experiments[i].rows;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (without_recordings && result.file->needs_recording(rows[row])) continue;
        tally.add(rows[row], result.rows[i][row]);
      }
    }
  }
  ValidationSummary summary = tally.summary();
  summary.passed = summary.passed && passed;
  return summary;
}

std::optional<double> median_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace tencache
