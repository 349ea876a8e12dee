#include "traces/generate/generation.h"

#include <algorithm>
#include <string>

namespace tencache::generator {

GenerationPasses::GenerationPasses(Step& step, Collectives& collectives, RankModel& model)
    : options_(step.options),
      generation_(*step.options.generation),
      step_(step),
      model_(model),
      collectives_(collectives),
      pipeline_(step.module("pipeline")),
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
  if (options_.pipeline_parallel > 1) return run_stages(progress);
  const Count steps = generation_.new_tokens, count = requests_.size();
  const bool zigzag = generation_.order == BlockOrder::zigzag;
  const Count rows = zigzag ? 1 : count, columns = zigzag ? count : 1;
  for (Count row = 0; row < rows; ++row) {
    for (Count step = 0; step < steps; ++step) {
      compute({.step = step, .first = row * columns, .count = columns});
      progress(static_cast<double>(row * steps + step + 1) / static_cast<double>(rows * steps));
    }
  }
}

void GenerationPasses::compute(const Work& work) {
  step_.begin_step(static_cast<std::uint32_t>(work.step));
  const Count end = work.first + work.count;
  for (Count k = work.first; model_.has_embedding && k < end; ++k) embed(k, work.step);
  for (Count number = 0; number < model_.layers.size(); ++number) {
    for (Count k = work.first; k < end; ++k) layer(number, k, work.step);
  }
  for (Count k = work.first; model_.has_head && k < end; ++k) head(k, work.step);
}

void GenerationPasses::run_stages(const std::function<void(double share)>& progress) {
  const Count stages = options_.pipeline_parallel, stage = collectives_.position().stage;
  const bool zigzag = generation_.order == BlockOrder::zigzag;
  const Count columns = zigzag ? requests_.size() : 1, rows = requests_.size() / columns;
  // A row's next step begins when its token is back: after as many turns as there are stages, or as there are rows.
  const Count period = std::max(stages, rows);
  const auto work_of = [&](Count at, Count turn) -> std::optional<Work> {
    if (turn < at) return std::nullopt;
    const Count step = (turn - at) / period, row = (turn - at) % period;
    if (step >= generation_.new_tokens || row >= rows) return std::nullopt;
    return Work{.step = step, .first = row * columns, .count = columns};
  };
  const Count turns = (generation_.new_tokens - 1) * period + rows + stages - 1;
  for (Count turn = 0; turn < turns; ++turn) {
    if (const auto work = work_of(stage, turn)) compute(*work);
    const auto send = [&] {
      const auto work = work_of(stage, turn);
      if (work && stage + 1 < stages) transfer(*work, stage, stage + 1);
    };
    const auto receive = [&] {
      if (stage == 0) return;
      if (const auto work = work_of(stage - 1, turn)) transfer(*work, stage - 1, stage);
    };
    stage % 2 == 0 ? send() : receive();
    stage % 2 == 0 ? receive() : send();
    // The new tokens, but the last ones, last.
    const auto done = work_of(stages - 1, turn);
    if (done && done->step + 1 < generation_.new_tokens && (stage == 0 || stage + 1 == stages)) {
      transfer(*done, stages - 1, 0);
    }
    progress(static_cast<double>(turn + 1) / static_cast<double>(turns));
  }
}

void GenerationPasses::transfer(const Work& work, Count from, Count to) {
  const bool sends = collectives_.position().stage == from, tokens = to == 0;
  const std::string what = tokens ? "tokens" : "activations";
  step_.begin_step(static_cast<std::uint32_t>(work.step));
  for (Count k = work.first; k < work.first + work.count; ++k) {
    Request& request = requests_[k];
    TensorId& carried = tokens ? request.ids : request.x;
    const TensorId out = sends ? carried : TensorId{none};
    if (!sends) {
      const MicroBatch batch = micro(k, work.step);
      carried = tokens ? step_.tensor(pipeline_, "next_ids", batch.sequences * 8, Role::activation)
                       : step_.activation(pipeline_, "received_activation", batch.tokens() * options_.model.hidden);
    }
    const std::string occurrence = what + " " + std::to_string(work.step) + "," + std::to_string(k);
    collectives_.exchange(sends ? to : from, occurrence, sends ? "send_" + what : "receive_" + what, pipeline_, out,
                          sends ? TensorId{none} : carried);
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
