// Inside the generator: what the ops of all blocks of one rank need.
#pragma once

#include "traces/generate/parallel.h"
#include "traces/generate/stack.h"
#include "traces/generate/step.h"

namespace tencache::generator {

// Everything but the step and the collectives, to which ops are appended, is fixed. All referred to outlive it.
struct RankContext {
  RankContext(Step& step, Collectives& collectives, const ModelDescription& model);

  Step& step;
  Collectives& collectives;
  const ModelDescription& model;
  StackKernels kernels;
  Count heads, key_value_heads;  // of this rank
  bool hidden_dropout = false, attention_dropout = false, causal = true, rotary = false;
};

}  // namespace tencache::generator
