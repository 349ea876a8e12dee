#include "traces/generate/rank.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "traces/generate/blocks.h"
#include "traces/generate/context_cache.h"
#include "traces/generate/generation.h"
#include "traces/generate/model_ops.h"
#include "traces/generate/optimizer.h"
#include "traces/generate/parallel.h"
#include "traces/generate/pipeline_schedule.h"
#include "traces/generate/rank_model.h"

namespace tencache::generator {
namespace {

// What happens to the parameters of a rank and their gradients between the blocks' ops: gathered,
// reduced over the ranks, updated.
class ParameterOps {
 public:
  // Adds the optimizer's tensors. All three outlive it.
  ParameterOps(Step& step, Collectives& collectives, RankModel& model);

  // ZeRO-3: the block's parameters from the shards of all data-parallel ranks, for as long as the block needs them.
  // DeepSpeed keeps those that the backward pass needs again within the reuse distance.
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
  // DeepSpeed's copy of gradients into its bucket, and from there, in the order of the ranks' parts, into what is
  // reduced: of the whole bucket where it is full.
  TensorId fill_bucket(const Module& module, Bytes bytes);
  void find_kept();
  void add_bucket();
  // The two copies of a tied embedding, on the first and the last stage.
  void finish_gradients();

  const GenerateOptions& options_;
  Step& step_;
  Collectives& collectives_;
  RankModel& model_;
  std::optional<OptimizerTensors> optimizer_;
  Parameter* tied_ = nullptr;                      // the embedding that is the head as well, or this stage's copy of it
  std::set<const std::vector<Parameter*>*> kept_;  // blocks whose parameters stay from the forward to the backward pass
  TensorId bucket_ = none;
  Bytes in_bucket_ = 0;
  std::vector<TensorId> shards_, wholes_, accumulated_;  // reused
  std::vector<Parameter*> finished_;                     // reused
};

ParameterOps::ParameterOps(Step& step, Collectives& collectives, RankModel& model)
    : options_(step.options), step_(step), collectives_(collectives), model_(model) {
  assign_groups(model.parameters, options_.sub_group, options_.zero >= 1 ? options_.data_parallel : 1);
  optimizer_.emplace(step, model.parameters);
  if (options_.head == Head::language_model && options_.model.tied_embeddings &&
      (model.has_embedding || model.has_head)) {
    tied_ = model.has_embedding ? model.embedding.tokens : model.head.output.weight;
  }
  if (options_.communication != Communication::deepspeed || options_.data_parallel == 1) return;
  if (options_.zero == 3) find_kept();
  if (options_.zero >= 1) add_bucket();
}

// stage3.py releases a module's parameters unless they are used again among the next max_reuse_distance elements
// (partitioned_param_coordinator.py). Where micro-batches take turns within a pipeline nothing is kept.
void ParameterOps::find_kept() {
  if (options_.pipeline_parallel > 1 || options_.forward_only) return;
  Count after = 0;  // elements of the blocks between the end of a block's forward pass and the head's
  const auto add = [&](const std::vector<Parameter*>& parameters) {
    if (2 * after < options_.max_reuse_distance) kept_.insert(&parameters);
    for (const Parameter* parameter : parameters) after += parameter->elements();
  };
  add(model_.head.parameters);
  for (std::size_t i = model_.layers.size(); i-- > 0;) add(model_.layers[i].parameters);
  add(model_.embedding.parameters);
}

// torch.empty(reduce_bucket_size) of stage3.py and stage_1_and_2.py.
void ParameterOps::add_bucket() {
  Count trained = 0;
  for (const Parameter& parameter : model_.parameters) trained += parameter.trainable ? parameter.elements() : 0;
  constexpr Count standard = 500'000'000;
  const Count elements = options_.reduce_bucket.value_or(std::min(standard, trained));
  if (elements > 0 && trained > 0)
    bucket_ = step_.persistent("reduce_bucket", elements * step_.gradient_element_bytes(), Role::workspace);
}

TensorId ParameterOps::fill_bucket(const Module& module, Bytes bytes) {
  const bool full = in_bucket_ + bytes > step_.bytes(bucket_);
  const Bytes reduced = full ? std::max(in_bucket_, bytes) : bytes;
  in_bucket_ = full ? bytes : in_bucket_ + bytes;
  const TensorId flat = step_.tensor(module, "reduced", reduced, Role::workspace);
  const auto launches = static_cast<std::uint32_t>(wholes_.size() + 1);
  const Op op =
      step_.kernel("bucket", module, {.kernel = {.kind = KernelKind::copy, .launches = launches}, .bytes = 4 * bytes});
  step_.op(op, wholes_, std::array{bucket_, flat});
  return flat;
}

void ParameterOps::gather(const std::vector<Parameter*>& parameters, const Module& module) {
  if (options_.zero < 3 || options_.data_parallel == 1) return;
  if (step_.phase == Phase::backward && kept_.contains(&parameters)) return;
  shards_.clear();
  wholes_.clear();
  Bytes bytes = 0;
  for (Parameter* parameter : parameters) {
    const Bytes whole = stored_bytes(*parameter, step_.element_bytes());
    parameter->value = step_.tensor(step_.module(parameter->name), "gathered", whole, Role::workspace);
    wholes_.push_back(parameter->value);
    if (parameter->stored != none) shards_.push_back(parameter->stored);
    bytes += whole;
  }
  collectives_.all_gather(Group::data, module, shards_, wholes_, bytes, Overlap::kernels);
}

void ParameterOps::reduce(const std::vector<Parameter*>& parameters, const Module& module, Count index) {
  if (options_.data_parallel == 1) return;
  const bool last_micro_batch = index + 1 == options_.micro_batches;
  if (!last_micro_batch && options_.zero < 2) return;
  shards_.clear();
  wholes_.clear();
  Bytes bytes = 0;
  accumulated_.clear();
  for (Parameter* parameter : parameters) {
    if (parameter->gradient == none) continue;
    // A tied weight is reduced with the embedding, after the head has added its part.
    if (options_.zero < 2 && parameter == tied_ && model_.has_embedding && &parameters == &model_.head.parameters)
      continue;
    wholes_.push_back(parameter->gradient);
    bytes += step_.bytes(parameter->gradient);
    if (options_.zero == 0) continue;
    if (parameter->shard_elements > 0) {
      if (parameter->gradient_shard == none) {
        parameter->gradient_shard =
            step_.tensor(step_.module(parameter->name), "grad_shard",
                         parameter->shard_elements * step_.gradient_element_bytes(), Role::gradient);
      } else {
        accumulated_.push_back(parameter->gradient_shard);
      }
      shards_.push_back(parameter->gradient_shard);
    }
    parameter->gradient = none;
  }
  if (wholes_.empty()) return;
  if (bucket_ != none) wholes_.assign(1, fill_bucket(module, bytes));
  if (options_.zero == 0) {
    collectives_.all_reduce(Group::data, module, wholes_, bytes, Overlap::kernels);
  } else {
    collectives_.reduce_scatter(Group::data, module, wholes_, shards_, accumulated_, bytes, Overlap::kernels);
  }
}

void ParameterOps::finish_block(const std::vector<Parameter*>& parameters, const Module& module, Count index) {
  reduce(parameters, module, index);
  if (index + 1 < options_.micro_batches) return;
  finished_.clear();
  for (Parameter* parameter : parameters) {
    if (parameter != tied_ || (options_.pipeline_parallel == 1 && &parameters == &model_.embedding.parameters)) {
      finished_.push_back(parameter);
    }
  }
  optimizer_->emit_norms(finished_);
  optimizer_->emit_fused(finished_);
}

void ParameterOps::finish_gradients() {
  if (options_.pipeline_parallel == 1 || tied_ == nullptr || !tied_->trainable) return;
  step_.phase = Phase::backward;
  const TensorId gradient = tied_->gradient_shard != none ? tied_->gradient_shard : tied_->gradient;
  if (gradient != none) collectives_.all_reduce(Group::embedding, step_.module(tied_->module), gradient);
}

void ParameterOps::update() {
  finish_gradients();
  optimizer_->emit(collectives_, options_.data_parallel > 1 && (options_.zero == 1 || options_.zero == 2));
}

// What a micro-batch leaves in a chunk of the rank's layers.
struct ChunkState {
  TensorId input = none, output = none;  // of the chunk
  TensorId d_output = none, d_input = none;
  EmbeddingState embedding;
  std::vector<LayerState> layers;
  HeadState head;
};

// The passes of micro-batches through the chunks of a rank's model.
class ChunkPasses {
 public:
  ChunkPasses(Step& step, Collectives& collectives, RankModel& model)
      : options_(step.options),
        step_(step),
        model_(model),
        ops_(step, collectives),
        parameters_(step, collectives, model),
        embedding_trained_(std::any_of(model.embedding.parameters.begin(), model.embedding.parameters.end(),
                                       [](const Parameter* parameter) { return parameter->trainable; })),
        first_trained_(first_trained_of(model)) {}

  void forward(Count chunk, const MicroBatch& batch, ChunkState& state);
  void backward(Count chunk, const MicroBatch& batch, ChunkState& state);
  // After all of them.
  void update() { parameters_.update(); }

 private:
  static Count first_trained_of(const RankModel& model);
  // Whether this chunk of the rank's layers follows the embedding or precedes the head.
  bool begins_model(Count chunk) const { return model_.has_embedding && chunk == 0; }
  bool ends_model(Count chunk) const { return model_.has_head && chunk + 1 == options_.pipeline_chunks; }

  const GenerateOptions& options_;
  Step& step_;
  RankModel& model_;
  ModelOps ops_;
  ParameterOps parameters_;
  bool embedding_trained_;
  Count first_trained_;  // layer; below it there is no backward pass unless the embedding is trained
};

Count ChunkPasses::first_trained_of(const RankModel& model) {
  const auto trained = [](const Layer& layer) {
    return std::ranges::any_of(layer.parameters, [](const Parameter* parameter) { return parameter->trainable; });
  };
  return static_cast<Count>(std::ranges::find_if(model.layers, trained) - model.layers.begin());
}

void ChunkPasses::forward(Count chunk, const MicroBatch& batch, ChunkState& state) {
  step_.phase = Phase::forward;
  const ModelDescription& model = options_.model;
  const LayerRange range = model_.chunks[chunk];
  // What the next block reads is gathered beside the kernels of the present one.
  const bool ahead = parameters_.gathers_ahead();
  const auto gather = [this](const auto& block) { parameters_.gather(block.parameters, block.module); };
  if (begins_model(chunk)) {
    const Bytes pixels = model.channels * model.image_size * model.image_size * step_.element_bytes();
    const bool images = facts_of(model.family).images;
    const TensorId ids = step_.persistent(images ? "pixel_values" : "input_ids",
                                          images ? batch.sequences * pixels : batch.tokens() * 8, Role::input);
    gather(model_.embedding);
    if (ahead) gather(model_.layers[range.begin]);
    state.input = ops_.embedding.forward(model_.embedding, batch, ids, state.embedding);
  }
  state.layers.assign(range.end - range.begin, {});
  TensorId x = state.input;
  for (Count i = range.begin; i < range.end; ++i) {
    if (!ahead || (i == range.begin && !begins_model(chunk))) gather(model_.layers[i]);
    if (ahead && i + 1 < range.end) gather(model_.layers[i + 1]);
    if (ahead && i + 1 == range.end && ends_model(chunk)) gather(model_.head);
    x = ops_.layers.forward(model_.layers[i], batch, x, state.layers[i - range.begin]);
  }
  state.output = x;
  if (ends_model(chunk)) {
    const Count labels = options_.head == Head::language_model ? batch.tokens() : batch.sequences;
    const TensorId label_ids = options_.loss ? step_.persistent("labels", labels * 8, Role::input) : TensorId{none};
    if (!ahead) gather(model_.head);
    ops_.head.forward(model_.head, batch, x, label_ids, state.head);
  }
  if (options_.forward_only) state.layers = {};
}

void ChunkPasses::backward(Count chunk, const MicroBatch& batch, ChunkState& state) {
  step_.phase = Phase::backward;
  TensorId dy = state.d_output;
  if (ends_model(chunk)) {
    // What the loss has just read is still there.
    dy = ops_.head.backward(model_.head, batch, state.head);
    parameters_.finish_block(model_.head.parameters, model_.head.module, batch.index);
  }
  const LayerRange range = model_.chunks[chunk];
  const bool gradient_reaches_input = !begins_model(chunk) || embedding_trained_;
  ops_.layers.begin_backward();
  const Count last = gradient_reaches_input ? range.begin : std::max(range.begin, first_trained_);
  const bool gathers_embedding = begins_model(chunk) && gradient_reaches_input;
  const bool ahead = parameters_.gathers_ahead() && last < range.end;
  const auto gather = [this](const auto& block) { parameters_.gather(block.parameters, block.module); };
  for (Count i = range.end; i-- > last;) {
    Layer& layer = model_.layers[i];
    if (!ahead || i + 1 == range.end) gather(layer);
    if (ahead && i > last) gather(model_.layers[i - 1]);
    if (ahead && i == last && gathers_embedding) gather(model_.embedding);
    dy = ops_.layers.backward(layer, batch, state.layers[i - range.begin], dy, i > last || gradient_reaches_input);
    parameters_.finish_block(layer.parameters, layer.module, batch.index);
  }
  if (gathers_embedding) {
    if (!ahead) gather(model_.embedding);
    ops_.embedding.backward(model_.embedding, batch, state.embedding, dy);
    parameters_.finish_block(model_.embedding.parameters, model_.embedding.module, batch.index);
  }
  state.d_input = dy;
  state.layers.clear();
}

// The two passes of a context through the model, chunk by chunk (context_cache.h).
class ContextPasses {
 public:
  ContextPasses(Step& step, Collectives& collectives, RankModel& model)
      : options_(step.options),
        plan_(step.options),
        step_(step),
        model_(model),
        ops_(step, collectives),
        parameters_(step, collectives, model),
        caches_(model.layers.size()) {}

  void run(const std::function<void(double)>& progress);

 private:
  struct State {
    EmbeddingState embedding;
    std::vector<LayerState> layers;
    HeadState head;
  };

  MicroBatch batch(Count chunk) const;
  // The layer's cache is that of the chunk from now on.
  void enter(Count layer, Count chunk, MicroBatch& micro);
  // Returns the last layer's output.
  TensorId forward(Count chunk, State& state);
  void backward(Count chunk, TensorId x, State& state);

  const GenerateOptions& options_;
  ContextPlan plan_;
  Step& step_;
  RankModel& model_;
  ModelOps ops_;
  ParameterOps parameters_;
  std::vector<ContextCache> caches_;  // by layer
  TensorId ids_ = none, labels_ = none;
};

void ContextPasses::run(const std::function<void(double)>& progress) {
  const Count tokens = options_.batch * options_.sequence_lengths.front(), chunks = plan_.chunks();
  ids_ = step_.persistent("input_ids", tokens * 8, Role::input);
  labels_ = step_.persistent("labels", tokens * 8, Role::input);
  const auto show = [&](Count done) { progress(static_cast<double>(done) / static_cast<double>(2 * chunks)); };
  for (Count chunk = 0; chunk < chunks; ++chunk) {
    State state;
    forward(chunk, state);
    show(chunk + 1);
  }
  for (Count chunk = chunks; chunk-- > 0;) {
    State state;
    const TensorId x = forward(chunk, state);
    backward(chunk, x, state);
    show(2 * chunks - chunk);
  }
  parameters_.update();
}

MicroBatch ContextPasses::batch(Count chunk) const {
  return {.sequences = options_.batch,
          .length = plan_.length_of(chunk),
          .piece_tokens = plan_.piece_tokens(),
          .before = plan_.before(chunk)};
}

TensorId ContextPasses::forward(Count chunk, State& state) {
  step_.phase = Phase::forward;
  MicroBatch micro = batch(chunk);
  TensorId x = ops_.embedding.forward(model_.embedding, micro, ids_, state.embedding);
  state.layers.resize(model_.layers.size());
  for (Count layer = 0; layer < model_.layers.size(); ++layer) {
    enter(layer, chunk, micro);
    x = ops_.layers.forward(model_.layers[layer], micro, x, state.layers[layer]);
  }
  return x;
}

void ContextPasses::enter(Count layer, Count chunk, MicroBatch& micro) {
  micro.context = &caches_[layer];
  plan_.enter(layer, chunk, caches_[layer]);
}

void ContextPasses::backward(Count chunk, TensorId x, State& state) {
  MicroBatch micro = batch(chunk);
  const auto finish = [&](const auto& block) {  // its gradients, to which every chunk adds
    if (chunk == 0) parameters_.finish_block(block.parameters, block.module, micro.index);
  };
  ops_.head.forward(model_.head, micro, x, labels_, state.head);
  step_.phase = Phase::backward;
  TensorId dy = ops_.head.backward(model_.head, micro, state.head);
  finish(model_.head);
  ops_.layers.begin_backward();
  for (Count layer = model_.layers.size(); layer-- > 0;) {
    enter(layer, chunk, micro);
    dy = ops_.layers.backward(model_.layers[layer], micro, state.layers[layer], dy, true);
    finish(model_.layers[layer]);
  }
  ops_.embedding.backward(model_.embedding, micro, state.embedding, dy);
  finish(model_.embedding);
}

class RankProgram {
 public:
  RankProgram(Trace& trace, const GenerateOptions& options, const std::vector<ParameterShape>& shapes,
              const KernelModel& kernels, Count rank, const std::function<void(double)>& progress)
      : trace_(trace),
        options_(options),
        progress_(progress),
        position_(RankPosition::of(rank, options)),
        step_(trace, options, kernels, static_cast<std::uint16_t>(rank)),
        collectives_(step_, position_),
        model_(build_rank_model(step_, options.model, shapes, position_)),
        module_(step_.module("pipeline")),
        passes_(step_, collectives_, model_),
        plan_{options.pipeline_parallel, options.pipeline_chunks, options.micro_batches, options.forward_only},
        states_(options.pipeline_chunks * options.micro_batches) {}

  void run() {
    if (options_.generation) {
      GenerationPasses(step_, collectives_, model_).run(progress_);
      return;
    }
    if (options_.context.tokens != 0) {
      ContextPasses(step_, collectives_, model_).run(progress_);
      return;
    }
    for (const PipelineAction& action : pipeline_schedule(plan_, position_.stage)) {
      switch (action.kind) {
        case PipelineAction::Kind::forward:
          passes_.forward(action.chunk, micro(action.micro_batch), state_of(action.chunk, action.micro_batch));
          if (options_.forward_only) show_progress();
          break;
        case PipelineAction::Kind::backward:
          passes_.backward(action.chunk, micro(action.micro_batch), state_of(action.chunk, action.micro_batch));
          show_progress();
          break;
        case PipelineAction::Kind::exchange:
          exchange(action);
          break;
      }
    }
    if (!options_.forward_only) passes_.update();
    if (is_choice(options_.recompute)) {
      add_choices(trace_, step_.passes, options_.recompute == Recompute::choose_early_stop);
    }
  }

 private:
  MicroBatch micro(Count index) const {
    const std::vector<Count>& lengths = options_.sequence_lengths;
    return {.index = index,
            .sequences = options_.batch / options_.micro_batches / options_.data_parallel,
            .length = lengths.size() == 1 ? lengths.front() : lengths[index]};
  }
  ChunkState& state_of(Count chunk, Count index) { return states_[chunk * options_.micro_batches + index]; }
  // After the last pass of a chunk's micro-batch.
  void show_progress() { progress_(static_cast<double>(++done_) / static_cast<double>(states_.size())); }

  void exchange(const PipelineAction& action);
  TensorId sent(const PipelineMessage& message);
  TensorId received(const PipelineMessage& message);

  Trace& trace_;
  const GenerateOptions& options_;
  const std::function<void(double)>& progress_;
  RankPosition position_;
  Step step_;
  Collectives collectives_;
  RankModel model_;
  Module module_;
  ChunkPasses passes_;
  PipelinePlan plan_;
  std::vector<ChunkState> states_;  // of the micro-batches of each chunk
  Count done_ = 0;                  // of these
};

void RankProgram::exchange(const PipelineAction& action) {
  const auto direction = [](const PipelineMessage& message) {
    return std::string(message.phase == Phase::forward ? "forward" : "backward");
  };
  step_.phase = action.sent ? action.sent->phase : action.received->phase;
  std::string name;
  if (action.sent) name = "send_" + direction(*action.sent);
  if (action.received) name += (action.sent ? "_receive_" : "receive_") + direction(*action.received);
  const PipelineMessage& key = action.occurrence();
  std::string occurrence = direction(key) + " " + std::to_string(key.micro_batch);
  if (plan_.chunks > 1) occurrence += " to " + std::to_string(key.to);
  const TensorId out = action.sent ? sent(*action.sent) : TensorId{none};
  const TensorId in = action.received ? received(*action.received) : TensorId{none};
  collectives_.exchange(action.peer, occurrence, name, module_, out, in);
}

TensorId RankProgram::sent(const PipelineMessage& message) {
  const ChunkState& state = state_of(message.from / plan_.stages, message.micro_batch);
  return message.phase == Phase::forward ? state.output : state.d_input;
}

TensorId RankProgram::received(const PipelineMessage& message) {
  ChunkState& state = state_of(message.to / plan_.stages, message.micro_batch);
  const Count elements = micro(message.micro_batch).tokens() * options_.model.hidden;
  if (message.phase == Phase::forward) {
    return state.input = step_.activation(module_, "received_activation", elements);
  }
  return state.d_output = step_.gradient(module_, "received_grad", elements);
}

}  // namespace

void emit_rank(Trace& trace, const GenerateOptions& options, const std::vector<ParameterShape>& shapes,
               const KernelModel& kernels, Count rank, const std::function<void(double)>& progress) {
  RankProgram(trace, options, shapes, kernels, rank, progress).run();
}

std::vector<std::string> linear_labels(const GenerateOptions& options, const std::vector<ParameterShape>& shapes) {
  Trace scratch;
  const KernelModel kernels(options.gpu, options.precision);
  Step step(scratch, options, kernels, 0);
  RankModel model = build_rank_model(step, options.model, shapes, {});
  std::vector<std::string> labels;
  for (const Linear* linear : model.layers.front().linears()) {
    if (std::find(labels.begin(), labels.end(), linear->label) == labels.end()) labels.push_back(linear->label);
  }
  return labels;
}

}  // namespace tencache::generator
