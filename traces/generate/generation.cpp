#include "traces/generate/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "traces/generate/draws.h"

namespace tencache::generator {
TokenRouter::TokenRouter(const ModelDescription& model, const ExpertRouting& routing)
    : experts_(model.experts),
      per_token_(model.experts_per_token),
      seed_(routing.seed),
      repeat_(routing.repeat),
      tokens_(model.experts),
      taken_(model.experts) {
  // Whole numbers, so that the last bit of a power, which differs between C libraries, decides nothing.
  constexpr double most_popular = 1 << 16;
  std::uint64_t sum = 0;
  for (std::uint64_t place = 1; place <= experts_; ++place) {
    const double weight = most_popular * std::pow(static_cast<double>(place), -routing.popularity);
    sum += std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(weight)));
    cumulative_.push_back(sum);
  }
  for (std::uint64_t place = 1; routing.topic > 0 && place <= experts_; ++place) {
    const double share = 0x1p32 * std::pow(static_cast<double>(place), -routing.topic);
    tastes_.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(share))));
  }
  constexpr std::uint64_t most_parts = 4096;
  while (sum >> shift_ >= most_parts) ++shift_;
  for (std::uint64_t part = 0, place = 0; part <= sum >> shift_; ++part) {
    while (place < experts_ && cumulative_[place] <= part << shift_) ++place;
    first_places_.push_back(place);
  }
}

const std::vector<TokenRouter::Expert>& TokenRouter::order_of(std::uint64_t layer) {
  std::vector<Expert>& order = orders_[layer];
  if (!order.empty()) return order;
  order.resize(experts_);
  std::iota(order.begin(), order.end(), Expert{0});
  std::uint64_t state = seed_of(seed_, layer, ~std::uint64_t{0});
  for (std::uint64_t i = experts_ - 1; i > 0; --i) std::swap(order[i], order[below(state, i + 1)]);
  return order;
}

TokenRouter::Expert TokenRouter::draw(std::uint64_t& state, const std::vector<Expert>& order) const {
  const std::uint64_t at = below(state, cumulative_.back());
  std::size_t place = first_places_[at >> shift_];
  while (cumulative_[place] <= at) ++place;
  return order[place];
}

void TokenRouter::begin(Stream& stream, std::uint64_t layer, std::uint64_t number, std::uint64_t sequences) const {
  stream.state = seed_of(seed_, layer, number);
  stream.last.resize(sequences * per_token_);
  if (tastes_.empty()) return;
  stream.places.resize(sequences * experts_);
  for (std::uint64_t sequence = 0; sequence < sequences; ++sequence) {
    Expert* const places = &stream.places[sequence * experts_];
    std::iota(places, places + experts_, Expert{0});
    for (std::uint64_t i = experts_ - 1; i > 0; --i) std::swap(places[i], places[below(stream.state, i + 1)]);
  }
}

void TokenRouter::choose(Stream& stream, std::uint64_t sequence, const std::vector<Expert>& order, bool has_last) {
  constexpr double range = 0x1p64;
  Expert* const experts = &stream.last[sequence * per_token_];
  std::uint64_t kept = 0;
  for (std::uint64_t i = 0; has_last && repeat_ > 0 && i < per_token_; ++i) {
    if (static_cast<double>(next(stream.state)) < repeat_ * range) std::swap(experts[kept++], experts[i]);
  }
  const auto liked = [&](Expert expert) {
    return tastes_.empty() || next(stream.state) >> 32 < tastes_[stream.places[sequence * experts_ + expert]];
  };
  for (std::uint64_t i = 0; i < kept; ++i) taken_[experts[i]] = 1;
  for (std::uint64_t i = kept; i < per_token_; ++i) {
    do experts[i] = draw(stream.state, order);
    while (taken_[experts[i]] != 0 || !liked(experts[i]));
    taken_[experts[i]] = 1;
  }
  for (std::uint64_t i = 0; i < per_token_; ++i) {
    taken_[experts[i]] = 0;
    ++tokens_[experts[i]];
  }
}

const std::vector<std::uint64_t>& TokenRouter::route(std::uint64_t layer, std::uint64_t micro_batch,
                                                     std::uint64_t sequences, std::uint64_t length) {
  const std::vector<Expert>& order = order_of(layer);
  Stream& stream = streams_[{layer, micro_batch}];
  bool has_last = !stream.last.empty();
  if (!has_last) begin(stream, layer, micro_batch, sequences);
  std::fill(tokens_.begin(), tokens_.end(), 0);
  for (std::uint64_t token = 0; token < length; ++token) {
    for (std::uint64_t i = 0; i < sequences; ++i) choose(stream, i, order, has_last);
    has_last = true;
  }
  return tokens_;
}

const std::vector<std::uint64_t>& TokenRouter::profile(std::uint64_t layer, std::uint64_t length) {
  constexpr std::uint64_t of_a_request = 128;  // tokens
  const std::vector<Expert>& order = order_of(layer);
  std::fill(tokens_.begin(), tokens_.end(), 0);
  Stream stream;
  for (std::uint64_t token = 0; token < length; ++token) {
    const bool has_last = token % of_a_request != 0;
    if (!has_last) begin(stream, layer, ~std::uint64_t{1} - token, 1);
    choose(stream, 0, order, has_last);
  }
  return tokens_;
}

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
  if (router_ && generation_.routing.profile != 0) profile_experts();
  if (const Count prefix = generation_.shared_prefix; prefix != 0) share(prefix);
}

void GenerationPasses::profile_experts() {
  for (Layer& layer : model_.layers) {
    if (!layer.router) continue;
    const auto number = static_cast<Count>(layer.parameters.front()->layer);
    const std::vector<std::uint64_t>& tokens = router_->profile(number, generation_.routing.profile);
    for (const Parameter* parameter : layer.parameters) {
      if (parameter->of_expert) step_.set_profiled_uses(parameter->stored, tokens[parameter->expert]);
    }
  }
}

void GenerationPasses::share(Count prefix) {
  const Count width = 2 * ops_.context.key_value_heads * options_.model.head_dimension;
  for (Count number = 0; number < model_.layers.size(); ++number) {
    const std::string name = model_.layers[number].attention_module.name + ".kv.prefix";
    const TensorId tensor = step_.persistent(name, prefix * KvCacheOps::token_bytes(step_, width), Role::kv_cache);
    for (Request& request : requests_) request.caches[number] = {{{tensor, prefix}}, prefix, prefix};
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
  for (Count k = work.first; generation_.new_tokens == 1 && k < end; ++k) keep_caches(k);
}

void GenerationPasses::keep_caches(Count index) {
  for (Count number = 0; number < model_.layers.size(); ++number) {
    std::vector<TensorId> pieces;
    for (const KvCache::Piece& piece : requests_[index].caches[number].pieces) pieces.push_back(piece.tensor);
    const Module& module = model_.layers[number].attention_module;
    Op op = step_.kernel("kv_keep", module, {.kernel = {.kind = KernelKind::copy}, .bytes = 1});
    op.device = generation_.attention;
    op.placeable = generation_.placeable != Placeable::none;
    op.duration_ns = 0;
    step_.op(op, pieces, {});
  }
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
  const Count prompt = (lengths.size() == 1 ? lengths.front() : lengths[index]) - generation_.shared_prefix;
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
