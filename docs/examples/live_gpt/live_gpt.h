// A small GPT that LibTorch trains under a policy: how a C++ program is paged, through the same library as Python
// programs (executor/torch/interception.h). main.cpp is the program; tests train on it, on the host and on a fake GPU.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/live/live_runtime.h"

namespace tencache::live_gpt {

struct Options {
  std::int64_t layers = 6, width = 256, heads = 8, context = 128, vocabulary = 256;
  std::int64_t batch = 8;  // sequences a step
  double dropout = 0.1;
  double learning_rate = 1e-3;
  double clip = 1.0;  // largest norm of the gradients
  std::uint64_t seed = 1;
  std::uint64_t steps = 20;            // from the beginning, before what is resumed
  std::string checkpoint{};            // a file to write after the last step; empty: none
  std::uint64_t checkpoint_every = 0;  // and after every so many
  std::string resume{};                // a file to go on from
  std::function<void(std::uint64_t step, float loss, Nanoseconds duration_ns)> on_step{};  // counted from 1
  std::function<void(std::uint64_t steps)> on_checkpoint{};
};

// Where LibTorch computes, and where the GPU tier is: by default both are this computer's ordinary memory.
struct Compute {
  c10::DeviceType device = c10::DeviceType::CPU;
  std::shared_ptr<Accelerator> accelerator{};
  std::function<void()> fence{};
  std::function<void*()> stream{};  // the calling thread's
};
// The first GPU. Throws Error that says what is missing.
Compute on_cuda();
// The options of a runtime for programs that compute there.
LiveOptions on(const Compute& compute, LiveOptions live = {});

struct Result {
  std::uint64_t parameters = 0;
  std::uint64_t resumed_steps = 0;
  std::vector<float> losses;  // of the steps since
  std::vector<Nanoseconds> step_ns;
  std::vector<float> weights;  // all of them, in LibTorch's order
};

// With a runtime all tensors are in its memory, without one in LibTorch's: the same bits. Nothing is left in it on return.
// Throws OutOfMemory when an op does not fit, and Error when a copy fails for good or the checkpoint does not suit.
Result train(const Options& options, LiveRuntime* runtime, const Compute& compute = {});

}  // namespace tencache::live_gpt
