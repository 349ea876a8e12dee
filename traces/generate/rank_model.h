// Inside the generator: the model's parameters sorted into the blocks of one rank.
#pragma once

#include "traces/generate/blocks.h"
#include "traces/generate/parallel.h"

namespace tencache::generator {

// The model's layers in a chunk of a pipeline stage. Each chunk has as many, or one more where that does not divide.
LayerRange layers_of_chunk(Count layers, Count stages, Count chunks, Count stage, Count chunk);

// Of the rank's whole slice, as it is stored.
Bytes stored_bytes(const Parameter& parameter, Bytes element);

// Adds the persistent tensors of the rank's parameters. A tied head on another stage than the embedding is a copy.
RankModel build_rank_model(Step& step, const ModelDescription& model, const std::vector<ParameterShape>& shapes,
                           RankPosition position);

}  // namespace tencache::generator
