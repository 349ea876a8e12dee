// Checkpoints of a training program: everything that the steps to come depend on, so that a resumed run computes the
// same bits as one that was never interrupted, under the same policy or another.
//
// The file: one line of JSON (format, version, what is trained, steps done, the state of the random numbers, and name,
// type and shape of each tensor), the tensors' bytes one after the other in that order, and the SHA-256 of all that in
// 64 hexadecimal digits. It says nothing of policy, machine or time: equal states give equal files. It appears under
// its name complete and synced, or not at all; one that was there before stays until then.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "executor/live/live_runtime.h"
#include "executor/torch/random_state.h"
#include "executor/training_config.h"

namespace tencache {

struct Checkpoint {
  std::uint64_t steps = 0;  // done; the data's position, too, since a batch is a function of the step
  RandomState random;
  // Contiguous, of the program itself: read when writing, overwritten when reading.
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
};

// Throws Error for a name that means something else: .zst is read as compressed.
void check_checkpoint_name(const std::string& path);
// With a runtime, call both under its ThreadGuard, between two steps. `text_sha256` is the training text's.
// Throws Error when the file cannot be written; a file of that name is then as it was.
void write_checkpoint(const std::string& path, const TrainingConfig& config, const std::string& text_sha256,
                      const Checkpoint& checkpoint, LiveRuntime* runtime);

// Fills the tensors, which have the names, types and shapes of those that were written, and returns steps and random
// numbers. Throws Error before anything is changed when the file is damaged, of another version, or not of this
// program: another model, precision, batch, seed or text. What the bits of a step do not depend on may differ
// (recomputation, sub-groups), and so may the optimizer's rates.
void read_checkpoint(const std::string& path, const TrainingConfig& config, const std::string& text_sha256,
                     Checkpoint& checkpoint);

}  // namespace tencache
