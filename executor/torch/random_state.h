// The state of LibTorch's generators of random numbers, on the CPU and on the GPU that is in use, in memory of its own:
// at::Generator::get_state gives a tensor, which would be paged.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <optional>
#include <string>

#include "executor/torch/torch_cuda.h"

namespace tencache {

class RandomState {
 public:
  // Of the default generators, as they are now.
  static RandomState capture();
  // The default generators go on from here; that of a GPU which was not in use then stays as it is.
  void restore() const;

  // For files: the same bytes for the same state, on computers of one byte order. `from_bytes` throws Error when they
  // are none that `to_bytes` gave.
  std::string to_bytes() const;
  static RandomState from_bytes(const std::string& bytes);

 private:
  at::mt19937 engine_;
  c10::optional<float> next_float_;  // normal numbers are drawn in pairs
  c10::optional<double> next_double_;
  std::optional<torch_cuda::RandomState> gpu_;
};

}  // namespace tencache
