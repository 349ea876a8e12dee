// The kernel model against recorded times of kernels: those rows of configs/kernels/*.csv that nothing was fitted on.
#pragma once

#include <cstddef>

#include "configs/yaml_layers.h"
#include "studies/validation/file.h"

namespace tencache {

struct KernelFigures {
  std::size_t kernels = 0;
  double median = 0, p90 = 0;  // of the absolute relative errors
  double median_ratio = 1;     // modelled ÷ recorded
};

// Adds an experiment of the chip: a row for each kind of kernel that has a target, attention by head dimension. Throws
// Error with file and line.
void read_kernel_section(const YamlValue& item, const std::string& file, ValidationFile& result);

// No kernels where the chip's table has none of that group. Throws Error.
KernelFigures figures_of_kernels(const KernelGroup& group);

}  // namespace tencache
