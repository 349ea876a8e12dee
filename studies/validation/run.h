// Published experiments rerun: each distinct simulation once, then every row against what it gave.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "studies/validation/file.h"
#include "studies/validation/kernels.h"

namespace tencache {

enum class RunState : std::uint8_t { skipped, refused, out_of_memory, done };

// What one simulation gave.
struct RunFigures {
  RunState state = RunState::skipped;
  std::string reason;  // unless done
  // By name, of an iteration: "seconds" and of its phases ("forward_seconds"), whose sum is that of the steady state;
  // "hit_rate.bytes", "peak_bytes" of the GPU, "bytes.LINK", "stall_seconds.CAUSE"; in files of peak memory
  // "peak_reserved_bytes", what PyTorch's allocator then reserves.
  std::map<std::string, double, std::less<>> figures;
  std::string waits_for;           // what the GPU waits for most, such as "h2d 61 %"
  std::vector<std::string> notes;  // of the policy

  // 0 where there is none.
  double figure(std::string_view name) const {
    const auto found = figures.find(name);
    return found == figures.end() ? 0 : found->second;
  }
};

// Names a simulation: a workload under a system, or under `ideal_run` of a system's machine.
using RunKey = std::pair<std::string, std::string>;
using RunTable = std::map<RunKey, RunFigures>;
std::string ideal_run(const ValidationSystem& compared_with);

enum class Verdict : std::uint8_t {
  within,   // a figure that counts, its error within the worst that is tolerated; or order or failure as published
  missed,   // not so
  listed,   // a figure that does not count: fitted on, or not judged
  skipped,  // not simulated
};

struct RowResult {
  Verdict verdict = Verdict::skipped;
  std::optional<double> simulated, error;     // of a figure; the error is relative
  std::string detail;                         // why skipped or missed, or what came out
  std::optional<KernelFigures> kernels = {};  // of RowKind::kernels
};

using KernelTable = std::map<const KernelGroup*, KernelFigures>;

struct ValidationSummary {
  std::size_t judged = 0, missed = 0, fitted = 0, listed = 0, skipped = 0;  // rows
  // Absolute, of the figures that count; the first two of those with one published number.
  std::optional<double> median_error, p90_error, worst_error;
  bool passed = true;  // no row that counts is missed, and no file has failures

  std::size_t rows() const { return judged + fitted + listed + skipped; }
};

struct ValidationResult : ValidationSummary {
  const ValidationFile* file = nullptr;
  RunTable runs;
  std::vector<std::vector<RowResult>> rows;  // by experiment
  std::vector<std::string> failures;         // limits of the whole file that are not kept: "median 7.1 %, at most 6 %"
};

// The simulations that the file's rows need, in the order of its workloads.
std::vector<RunKey> runs_needed(const ValidationFile& file);

// Rows against runs; every key of runs_needed is there. Groups of kernels that `kernels` lacks are skipped.
ValidationResult evaluate(const ValidationFile& file, RunTable runs, const KernelTable& kernels = {});

// Of all files of a kind; or of their rows that need no recordings, whatever failures the files have.
ValidationSummary summarize(const std::vector<ValidationResult>& results, ValidationKind kind,
                            bool without_recordings = false);

// Half-way between the middle two of an even number. nullopt of none.
std::optional<double> median_of(std::vector<double> values);

struct ValidationOptions {
  std::string traces;  // folder of the recordings; empty: they are skipped
  bool quick = false;  // without workloads that the file calls slow
  std::function<void(const std::string& text)> progress;
};

// Of several files, in threads; the results, in the order of the files, refer to them. Deterministic. Throws Error
// where a workload cannot be made.
std::vector<ValidationResult> run_validations(const std::vector<ValidationFile>& files,
                                              const ValidationOptions& options);

}  // namespace tencache
