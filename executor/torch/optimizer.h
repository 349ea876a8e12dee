// AdamW with clipping, on fp32 parameters or on bf16 ones with fp32 masters, as a list of tasks: what the runtime
// orders, places and runs, and what plain training calls.
//
// Parameters are taken in sub-groups of whole parameters. A step is, in this order: `grad_norm.k` of each sub-group
// (gradients → sums of squares), `clip` (sums of squares → coefficient), `adamw.k` of each sub-group. Split, order and
// place do not change a bit (adamw.h).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "executor/adamw_kernels.h"
#include "executor/training_config.h"

namespace tencache {

class Optimizer {
 public:
  struct Use {
    torch::Tensor tensor;
    bool read = false, write = false;
  };
  struct Slice;
  struct Task {
    std::string name;
    std::int32_t group = -1;   // sub-group, -1: none
    bool reorderable = false;  // among the other sub-groups' tasks of the same name
    std::vector<Use> uses{};   // each storage once
    // Takes the addresses of the storages of `uses` on the device that the kernels are for, in that order; over when it
    // returns. Needs nothing of LibTorch.
    std::function<void(AdamWKernels& kernels, std::span<std::byte* const>)> body{};

    // Adds the tensor to `uses`, and says where its elements lie; tensors of one storage are one use.
    Slice use(const torch::Tensor& tensor, bool read, bool write);
  };
  struct State {
    std::string name;
    torch::Tensor tensor;
    Role role = Role::optimizer_state;
  };

  // Allocates the states on the parameters' device: moments of zero, masters that equal the parameters. The parameters
  // are all of the configuration's precision, contiguous, and stay the same tensors.
  Optimizer(std::vector<std::pair<std::string, torch::Tensor>> parameters, const TrainingConfig& config);

  // The tasks of the next step, for the gradients that the parameters have now. Every parameter has one. Run them once,
  // before anything else happens to the gradients.
  std::vector<Task> next_step();
  // What it has allocated, with names.
  std::vector<State> states() const;
  // Steps done; a resumed run sets it, together with the content of `states`.
  void set_steps(std::uint64_t steps) { step_ = steps; }

 private:
  struct Parameter {
    std::string name;
    torch::Tensor value, first_moment, second_moment;
    torch::Tensor master;  // of bf16 parameters only
  };
  struct Group {
    std::vector<std::size_t> members;  // of parameters_
    torch::Tensor partials;            // double, one for each block of each member
  };

  Task norm_task(std::size_t group) const;
  Task clip_task() const;
  Task update_task(std::size_t group) const;

  AdamWOptions options_;
  double clip_;
  bool low_;  // parameters and gradients are bf16
  std::uint64_t step_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
  torch::Tensor coefficient_;  // float, one element
};

}  // namespace tencache
