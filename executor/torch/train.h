// Training a GPT, plainly or on a live runtime. Both forms are the same program with the same optimizer tasks, and
// compute the same bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/live/live_runtime.h"
#include "executor/torch/checkpoint.h"
#include "executor/torch/gpt.h"
#include "executor/torch/optimizer.h"
#include "executor/torch/text_data.h"
#include "executor/training_config.h"
#include "executor/training_result.h"

namespace tencache {

// Where a program computes: by default on this computer's processor, with ordinary memory as the GPU tier.
struct TrainingDevice {
  c10::DeviceType torch = c10::DeviceType::CPU;  // LibTorch's tensors
  std::shared_ptr<Accelerator> accelerator{};    // whose memory is the GPU tier; there where LibTorch computes on a GPU
  std::function<void()> fence{};                 // LiveOptions::fence
};
// The first GPU, for LibTorch and for us. Throws Error that says what is missing.
TrainingDevice cuda_training_device();

// What updates run on. Shared with tasks, which may outlive the program.
struct UpdateKernels {
  std::shared_ptr<AdamWKernels> host = std::make_shared<HostAdamWKernels>();
  std::shared_ptr<AdamWKernels>
      device{};  // of an accelerator's addresses; nullptr: the GPU's tier is the host's memory
};
// Runs the optimizer's next step: as tasks of the runtime; null: here and now, on the device if there is one.
void run_updates(Optimizer& optimizer, LiveRuntime* runtime, const UpdateKernels& kernels = {});

// The program: model, optimizer and data. With a runtime, construct, use and destroy it under a ThreadGuard.
class TrainingProgram {
 public:
  // Seeds LibTorch's generators. Config, data and runtime outlive the program; `runtime` null: plain training. Weights
  // are drawn on the CPU, so that they are the same on all devices.
  TrainingProgram(const TrainingConfig& config, const TextData& data, LiveRuntime* runtime,
                  const TrainingDevice& device = {});
  TrainingProgram(const TrainingProgram&) = delete;
  TrainingProgram& operator=(const TrainingProgram&) = delete;

  // One training step, counted from 0; returns the loss before the update.
  float step(std::uint64_t number);
  // Everything that the next step depends on, after `steps` of them. Between two steps; it is no part of either.
  void save(const std::string& path, std::uint64_t steps);
  // Goes on from what `save` wrote; returns the number of the next step. Before the first step, once.
  std::uint64_t resume(const std::string& path);
  // All parameters one after the other, in LibTorch's order; bf16 ones widened.
  std::vector<float> weights();
  std::uint64_t parameter_count() const { return parameter_count_; }

 private:
  void announce_state();
  void enter(Phase phase);
  void run_optimizer();
  Checkpoint state();

  const TrainingConfig& config_;
  const TextData& data_;
  LiveRuntime* runtime_;
  TrainingDevice device_;
  UpdateKernels kernels_;
  Gpt model_{nullptr};
  std::unique_ptr<Optimizer> optimizer_;
  std::uint64_t parameter_count_ = 0;
  std::string text_sha256_;  // once it was asked for
};

struct TrainingOptions {
  std::uint64_t steps = 0;  // from the program's beginning, before what is resumed; 0: the configuration's
  bool keep_weights = false;
  // After each step, counted from 1.
  std::function<void(std::uint64_t step, float loss, Nanoseconds duration_ns)> on_step;
  std::string checkpoint{};            // a file to write; empty: none
  std::uint64_t checkpoint_every = 0;  // steps; 0: after the last one only
  std::string resume{};                // a file to go on from; empty: the beginning
  // Between two steps, and after the last one; with the runtime of paged training.
  std::function<void(const LiveRuntime& runtime)> on_boundary{};
  // After each checkpoint: steps done.
  std::function<void(std::uint64_t steps)> on_checkpoint{};
};

// Both throw Error when the checkpoint to go on from does not suit or has no fewer steps than are asked for.
TrainingResult train_plain(const TrainingConfig& config, const TextData& data, const TrainingOptions& options,
                           const TrainingDevice& device = {});

// Throws OutOfMemory when an op does not fit. The device's accelerator and fence take the place of those of `live`.
PagedTraining train_paged(const TrainingConfig& config, const TextData& data, const MachineSpec& machine,
                          Policy& policy, const LiveOptions& live, const TrainingOptions& options,
                          const TrainingDevice& device = {});

// What recordings of this program say about themselves.
TraceHeader recording_header(const TrainingConfig& config, const TrainingDevice& device = {});

// A machine whose GPU tier holds anything this computer or the accelerator can: for recordings and for finding out a
// program's peak.
MachineSpec uncapped_machine(const Accelerator* accelerator = nullptr);

// Two uncapped steps, for `peak_live_bytes` and `largest_op_bytes`.
PagedTraining measure_demand(const TrainingConfig& config, const TextData& data, const TrainingDevice& device = {});

// The options with the device in them.
LiveOptions on_device(LiveOptions live, const TrainingDevice& device);

}  // namespace tencache
