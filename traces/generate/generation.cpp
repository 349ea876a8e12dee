#include "traces/generate/generation.h"

#include <algorithm>
#include <string>

namespace tencache::generator {

GenerationPasses::GenerationPasses(Step& step, Collectives& collectives, RankModel& model)
    : options_(step.options),
      generation_(*step.options.generation),
      step_(step),
      model_(model),
      ops_(step, collectives),
      requests_(options_.micro_batches) {
  if (options_.model.experts != 0) router_.emplace(options_.model, generation_.routing);
  for (Count index = 0; index < requests_.size(); ++index) {
    const MicroBatch prompt = micro(index, 0);
    requests_[index].ids = step.persistent("prompt_ids." + std::to_string(index), prompt.tokens() * 8, Role::input);
    requests_[index].caches.resize(model.layers.size());
  }
}

void GenerationPasses::run(const std::function<void(double share)>& progress) {
  const Count steps = generation_.new_tokens, count = requests_.size();
  const bool zigzag = generation_.order == BlockOrder::zigzag;
  const Count rows = zigzag ? 1 : count, columns = zigzag ? count : 1;
  for (Count row = 0; row < rows; ++row) {
    const Count first = row * columns;
    for (Count step = 0; step < steps; ++step) {
      step_.begin_step(static_cast<std::uint32_t>(step));
      for (Count k = first; k < first + columns; ++k) embed(k, step);
      for (Count number = 0; number < model_.layers.size(); ++number) {
        for (Count k = first; k < first + columns; ++k) layer(number, k, step);
      }
      for (Count k = first; k < first + columns; ++k) head(k, step);
      progress(static_cast<double>(row * steps + step + 1) / static_cast<double>(rows * steps));
    }
  }
}

MicroBatch GenerationPasses::micro(Count index, Count step) const {
  const std::vector<Count>& lengths = options_.sequence_lengths;
  const Count prompt = lengths.size() == 1 ? lengths.front() : lengths[index];
  MicroBatch micro{
      .index = index, .sequences = options_.batch / options_.micro_batches, .length = step == 0 ? prompt : 1};
  const ModelDescription& model = options_.model;
  const Count key = facts_of(model.family).latent_attention ? model.key_value_rank + model.rope_dimension
                                                            : ops_.context.key_value_heads * model.head_dimension;
  const Bytes keys = KvCacheOps::token_bytes(step_, key);
  micro.piece_tokens = generation_.page_bytes != 0    ? std::max<Count>(1, generation_.page_bytes / keys)
                       : generation_.page_tokens != 0 ? generation_.page_tokens
                                                      : prompt + generation_.new_tokens;
  return micro;
}

void GenerationPasses::embed(Count index, Count step) {
  EmbeddingState state;
  requests_[index].x = ops_.embedding.forward(model_.embedding, micro(index, step), requests_[index].ids, state);
}

void GenerationPasses::layer(Count number, Count index, Count step) {
  Request& request = requests_[index];
  MicroBatch batch = micro(index, step);
  batch.cache = &request.caches[number];
  Layer& layer = model_.layers[number];
  if (layer.router) {
    const auto index_of_layer = static_cast<Count>(layer.parameters.front()->layer);
    batch.expert_tokens = router_->route(index_of_layer, index, batch.sequences, batch.length);
  }
  LayerState state;
  request.x = ops_.layers.forward(layer, batch, request.x, state);
}

void GenerationPasses::head(Count index, Count step) {
  Request& request = requests_[index];
  const MicroBatch batch = micro(index, step);
  HeadState state;
  const TensorId logits = ops_.head.forward(model_.head, batch, request.x, none, state);
  request.ids = step_.tensor(model_.head.module, "next_ids", batch.sequences * 8, Role::activation);
  step_.op("sample", model_.head.module, {.kernel = {.kind = KernelKind::reduction}}, {logits}, {request.ids});
}

}  // namespace tencache::generator
