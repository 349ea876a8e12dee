// Import of PyTorch's execution traces. docs/import.md says what is known from them and what is inferred.
#pragma once

#include <optional>
#include <string>

#include "traces/pytorch/byte_stream.h"
#include "traces/pytorch/steps.h"
#include "traces/pytorch/to_trace.h"

namespace tencache {

struct PytorchImportOptions {
  std::string execution_trace;
  IterationChoice iteration;
  // For durations by roofline. Without it the import is an error.
  std::optional<GpuSpec> gpu;
  std::string model;         // empty: the file's name
  bool as_recorded = false;  // keep what only a first step does (traces/pytorch/to_trace.h)
  std::uint64_t batch = 0, sequence_length = 0;
  ImportProgress progress;
};

ImportedTrace import_pytorch(const PytorchImportOptions& options);

// "gpt2" of "a/gpt2_et.json.tar.gz".
std::string model_name_of(const std::string& path);

}  // namespace tencache
