// Import of PyTorch's execution traces, by themselves or with a Kineto trace of the same run. docs/import.md says what
// is known from them and what is inferred.
#pragma once

#include <optional>
#include <string>

#include "traces/import/pytorch/byte_stream.h"
#include "traces/import/pytorch/steps.h"
#include "traces/import/pytorch/to_trace.h"

namespace tencache {

struct PytorchImportOptions {
  std::string execution_trace;
  std::string kineto;  // empty: none
  IterationChoice iteration;
  std::optional<std::int64_t> kineto_iteration;  // empty: the same one, or else the last complete one
  // For modelled durations, of those ops that the Kineto trace has no time for. Without it and without a Kineto
  // trace the import is an error.
  std::optional<GpuSpec> gpu;
  Nanoseconds launch_ns = 0;  // of the host, for a kernel (configs/stacks.yaml)
  std::string model;          // empty: the file's name
  bool as_recorded = false;   // keep what only a first step does (traces/import/pytorch/to_trace.h)
  std::uint64_t batch = 0, sequence_length = 0;
  ImportProgress progress;
};

ImportedTrace import_pytorch(const PytorchImportOptions& options);

// "gpt2" of "a/gpt2_et.json.tar.gz".
std::string model_name_of(const std::string& path);

}  // namespace tencache
