// The files of configs/kernels: how well kernels use a chip, by what was measured on it. One YAML file a chip with the
// constants and their sources, and beside it tables of measured times (one of them of products in fp8), whose rows are
// of two sets: the constants and the model's corrections come from `fit`, `judge` only says how far off they are.
#pragma once

#include <string>
#include <vector>

#include "traces/generate/gpu_spec.h"
#include "traces/generate/kernel_factors.h"
#include "traces/generate/kernel_model.h"

namespace tencache {

// A row of a table.
struct MeasuredKernel {
  Kernel kernel;
  Bytes bytes = 0;  // memory traffic, of kernels without a shape
  Nanoseconds time_ns = 0;
  bool judge = false;
};

// Of the row as a serving engine launches it: causal attention is that of a prompt, whose keys and values go into the
// KV cache. `model`: of 16 bits.
Nanoseconds modelled_ns(const KernelModel& model, const MeasuredKernel& row);

// From `folder` / `name`.yaml and the table that it names. Throws Error with file and line.
KernelConstants read_kernels(const std::string& folder, const std::string& name);

// A file of `calibrated_kernels`, or any other of that format; its table lies beside it or in the shipped folder.
// Throws Error with file and line.
KernelConstants read_kernel_file(const std::string& path);

// The shipped file of the GPU's chip with factors that a recording showed; `trace` says where they come from. Read back
// by read_kernel_file.
std::string calibrated_kernels(const GpuSpec& gpu, const std::vector<KernelFactor>& factors, const std::string& trace);

// "kernels: calibrated from step.trace.jsonl (812 ops)"; empty where they are not.
std::string calibration_note(const KernelConstants& kernels);

// All rows of `name`'s tables, those in fp8 last (Kernel::fp8); empty where the chip has none.
std::vector<MeasuredKernel> read_kernel_table(const std::string& folder, const std::string& name);

// The same from text, without the table; `file` is for messages.
KernelConstants parse_kernels(const std::string& text, const std::string& file);

// The shipped folder. Throws Error where it is not to be found.
std::string kernel_folder();

}  // namespace tencache
