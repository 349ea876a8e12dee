// Inside the generator: the ops of a model's blocks on one rank, as training and generation pass through them.
#pragma once

#include "traces/generate/embedding.h"
#include "traces/generate/head.h"
#include "traces/generate/layers.h"

namespace tencache::generator {

// What it is made from must outlive it. It stays where it is: its parts refer to each other.
struct ModelOps {
  ModelOps(Step& step, Collectives& collectives)
      : context(step, collectives, step.options.model),
        linears(context),
        embedding(context, linears),
        layers(context, linears),
        head(context, linears) {}
  ModelOps(const ModelOps&) = delete;
  ModelOps& operator=(const ModelOps&) = delete;

  RankContext context;
  LinearOps linears;
  EmbeddingOps embedding;
  LayerOps layers;
  HeadOps head;
};

}  // namespace tencache::generator
