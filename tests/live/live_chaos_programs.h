// The programs of the chaos (live_chaos_test.cpp), and what they share. A program keeps its results in the session.
#pragma once

#include <vector>

#include "tests/live/live_support.h"

namespace tencache::live_test {

struct ChaosProgram {
  const char* name;
  void (*program)(Session&);
};
inline std::ostream& operator<<(std::ostream& stream, const ChaosProgram& value) { return stream << value.name; }

std::vector<ChaosProgram> chaos_networks();
std::vector<ChaosProgram> chaos_ops();

// Trains a module for a few steps and keeps its parameters, buffers and losses.
template <typename Module, typename Loss>
void train(Session& session, Module& module, torch::optim::Optimizer& optimizer, const Loss& loss_of, int steps = 4) {
  for (int step = 0; step < steps; ++step) {
    session.step();
    const auto closure = [&] {
      optimizer.zero_grad();
      const torch::Tensor loss = loss_of();
      loss.backward();
      return loss;
    };
    session.keep(optimizer.step(closure));
  }
  for (const torch::Tensor& parameter : module->parameters()) session.keep(parameter);
  for (const torch::Tensor& buffer : module->buffers()) session.keep(buffer);
}

inline torch::Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

inline void backward_and_keep(Session& session, const torch::Tensor& loss, const std::vector<torch::Tensor>& leaves) {
  loss.backward();
  session.keep(loss);
  for (const torch::Tensor& tensor : leaves) session.keep(tensor.grad());
}

}  // namespace tencache::live_test
