// Inside the generator: what happens to the parameters of a rank and their gradients between the blocks' ops: gathered,
// reduced over the ranks, updated.
#pragma once

#include <optional>
#include <vector>

#include "traces/generate/blocks.h"
#include "traces/generate/optimizer.h"
#include "traces/generate/parallel.h"

namespace tencache::generator {

class ParameterOps {
 public:
  // Adds the optimizer's tensors. All three outlive it.
  ParameterOps(Step& step, Collectives& collectives, RankModel& model);

  // ZeRO-3: the block's parameters from the shards of all data-parallel ranks, for as long as the block needs them.
  void gather(const std::vector<Parameter*>& parameters, const Module& module);
  // Whether those of the next block are gathered beside the kernels of the present one.
  bool gathers_ahead() const { return options_.zero == 3 && collectives_.overlaps(); }
  // After a block's backward pass. A tied weight is complete only when its other use is through as well.
  void finish_block(const std::vector<Parameter*>& parameters, const Module& module, Count index);
  // After the last backward pass.
  void update();

 private:
  // The block's gradients over the data-parallel ranks: once an iteration, or under ZeRO-2 and -3 after every
  // micro-batch, as each rank keeps its part only.
  void reduce(const std::vector<Parameter*>& parameters, const Module& module, Count index);
  // The two copies of a tied embedding, on the first and the last stage.
  void finish_gradients();

  const GenerateOptions& options_;
  Step& step_;
  Collectives& collectives_;
  RankModel& model_;
  std::optional<OptimizerTensors> optimizer_;
  Parameter* tied_ = nullptr;  // the embedding that is the head as well, or this stage's copy of it
  std::vector<TensorId> shards_, wholes_, accumulated_;  // reused
  std::vector<Parameter*> finished_;                     // reused
};

}  // namespace tencache::generator
