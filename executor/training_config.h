// What is trained: configs/training/*.yaml.
#pragma once

#include <cstdint>
#include <string>

#include "executor/adamw.h"

namespace tencache {

enum class TrainingPrecision : std::uint8_t {
  fp32,
  bf16,  // weights, activations and gradients; the optimizer keeps masters and moments in fp32, the loss is fp32
};
enum class Recompute : std::uint8_t {
  none,
  block,  // of a block only the input is kept; backward runs its forward again, on the same random numbers
};

struct TrainingConfig {
  std::string name;  // of the model, for reports

  // Model.
  std::int64_t layers = 6;
  std::int64_t width = 256;  // of the residual stream
  std::int64_t heads = 8;
  std::int64_t context = 128;     // tokens a sequence
  std::int64_t vocabulary = 256;  // tokens; the text's bytes are the first 256, others do not occur in it
  double dropout = 0.1;
  bool tied_head = false;  // the head uses the embedding's weights

  TrainingPrecision precision = TrainingPrecision::fp32;
  Recompute recompute = Recompute::none;  // which does not change a bit

  // Data and run.
  std::int64_t batch = 8;  // sequences a step
  std::int64_t steps = 20;
  std::uint64_t seed = 1;
  std::string text;  // a file or a folder (its *.md and *.txt files), resolved

  // Optimizer.
  AdamWOptions adamw;
  double clip = 1.0;                               // global norm; 0: no clipping
  std::uint64_t sub_group_parameters = 1'000'000;  // a sub-group is closed when it has at least as many

  std::string file;  // where it was read from
};

// Reads and checks a YAML file. Relative paths of `text` count from the file's own folder. Throws Error with the line:
// unknown keys (listing the valid ones), values out of range, wrong types.
TrainingConfig read_training_config(const std::string& path);

}  // namespace tencache
