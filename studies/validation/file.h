// Published experiments, as the files of configs/validation describe them: workloads, machines, systems (a policy with
// its options on a machine) and what the paper measured of them. The format is described in docs/validation-format.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "studies/scenario.h"
#include "traces/generate/model.h"

namespace tencache {

using Settings = std::map<std::string, std::string>;

// offloading: systems that move data, compared by times and ratios; gpu: times of the GPU alone; memory: its peaks.
// Their summaries are kept apart: many accurate rows of one kind must not hide a miss of another.
enum class ValidationKind : std::uint8_t { offloading, gpu, memory };
const std::vector<std::string>& validation_kind_names();  // in the order of the enum

struct ValidationWorkload {
  std::string name;
  std::string title;                         // what it is in the paper
  std::string recording;                     // a folder under --traces; empty: generated
  std::string size_column;                   // of a recording
  GenerateSettings generate;                 // of a generated one
  std::optional<ModelDescription> model;     // in place of the one that `generate` names
  bool one_rank = false;                     // ranks that are all alike are simulated once: they share nothing
  bool slow = false;                         // left out with --quick
  std::map<std::string, Settings> settings;  // system to options that differ for this workload
};

struct ValidationSystem {
  std::string name;
  Scenario scenario;          // but for the trace; its last iteration's time counts, or else the steady state's
  GenerateSettings generate;  // where its traces differ from the workload's: another precision of gradients

  const MachineSpec& machine() const { return *scenario.machine.loaded; }
};

// A number, or a range that any number in it agrees with.
struct Published {
  double from = 0, to = 0;
  std::string text;  // as written: "10562/1758"

  bool is_range() const { return from < to; }
  // Of the simulated figure: simulated ÷ published - 1; 0 within the range.
  double error_of(double simulated) const;
};

enum class RowKind : std::uint8_t {
  figure,   // `of`'s metric, or its ratio to `over`'s
  order,    // the systems from fast to slow
  fails,    // `of` runs out of memory
  kernels,  // the kernel model against recorded kernels
};

// Recorded kernels of a chip, and the median error that the kernel model may have on them.
struct KernelGroup {
  std::string chip;  // whose table: configs/kernels/CHIP.csv
  std::string gpu;   // of configs/gpus.yaml
  KernelKind kind = KernelKind::unknown;
  std::uint64_t head_dimension = 0;  // of attention
  bool causal = false;               // the same
  bool fp8 = false;                  // of products
  double target = 0;
};

// What a row of a throughput table ran.
struct TrainingRun {
  std::string gpu, model;
  std::uint64_t sequence = 0, gpus = 0;
  bool recomputed = false;
  double tokens = 0;  // of a GPU in the simulated iteration
};

struct ValidationRow {
  RowKind kind = RowKind::figure;
  std::string name;
  std::vector<std::string> workloads;  // the mean over them
  std::string metric = "seconds";      // RunFigures; of a throughput table, tokens of a GPU over a time
  std::string of, over;                // systems; `over` may be empty
  std::vector<std::string> order;
  Published published;
  std::optional<TrainingRun> training;  // of a throughput table
  std::optional<KernelGroup> kernels;   // of RowKind::kernels
  std::string source;                   // empty: the experiment's
  bool fitted = false;
  std::string note;        // where it is missed: why, as far as is known
  std::string not_judged;  // why it is listed only; empty: it counts
};

struct ValidationExperiment {
  std::string name, source;
  std::vector<ValidationRow> rows;
};

struct FittedParameter {
  std::string parameter, value, on;
};

// An option of a throughput table, and why it is as it is.
struct StatedOption {
  std::string section, option, value, source;
};

// Of the absolute errors; none: not judged.
struct ValidationTolerance {
  std::optional<double> median = 0.10, p90, worst = 0.25;
  std::optional<double> gpu_median;  // how far a GPU's median ratio may be from 1
};

// What was published, and how far off may be what is simulated.
struct ValidationHead {
  std::string name, system, source, url;  // name: of the file
  ValidationKind kind = ValidationKind::offloading;
  ValidationTolerance tolerance;
};

struct ValidationRemarks {
  std::vector<FittedParameter> fitted;
  std::vector<std::string> remarks, not_modelled;
};

struct ValidationFile : ValidationHead, ValidationRemarks {
  std::vector<StatedOption> options;
  std::vector<ValidationWorkload> workloads;
  std::vector<ValidationSystem> systems;
  std::vector<ValidationExperiment> experiments;

  bool needs_recording(const ValidationRow& row) const;
  const ValidationWorkload& workload(const std::string& wanted) const;
  const ValidationSystem& system_named(const std::string& wanted) const;
};

// The system that every row may name: all in GPU memory, on the machine of the system it is compared with.
inline constexpr const char* ideal_system = "ideal";

// A workload's options with those of a system over them.
GenerateSettings generate_for(const ValidationWorkload& workload, const GenerateSettings& changes);

// Throws Error with file and line; unknown keys, names, policies and options are errors that list the valid ones.
ValidationFile parse_validation(const std::string& text, const std::string& file);

// Those that ship if `names_or_files` is empty. Throws Error that lists the valid names for an unknown one.
std::vector<ValidationFile> read_validations(const std::vector<std::string>& names_or_files);

}  // namespace tencache
