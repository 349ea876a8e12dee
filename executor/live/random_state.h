// The state of LibTorch's generator of random numbers on the CPU, in memory of its own: at::Generator::get_state gives
// a tensor, which would be paged.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <string>

namespace tencache {

class RandomState {
 public:
  // Of the default generator, as it is now.
  static RandomState capture();
  // The default generator goes on from here.
  void restore() const;

  // For files: the same bytes for the same state, on computers of one byte order. `from_bytes` throws Error when they
  // are none that `to_bytes` gave.
  std::string to_bytes() const;
  static RandomState from_bytes(const std::string& bytes);

 private:
  at::mt19937 engine_;
  c10::optional<float> next_float_;  // normal numbers are drawn in pairs
  c10::optional<double> next_double_;
};

}  // namespace tencache
