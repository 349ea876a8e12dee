#include "traces/generate_rank.h"

#include <algorithm>
#include <optional>

#include "traces/generate_model.h"
#include "traces/generate_optimizer.h"
#include "traces/pipeline_schedule.h"

namespace tencache::generator {
namespace {

class RankProgram {
 public:
  RankProgram(Trace& trace, const GenerateOptions& options, const std::vector<ParameterShape>& shapes,
              const KernelModel& kernels, Count rank, const std::function<void(double)>& progress)
      : options_(options),
        progress_(progress),
        position_(RankPosition::of(rank, options)),
        step_(trace, options, kernels, static_cast<std::uint16_t>(rank)),
        collectives_(step_, position_),
        ops_(step_, collectives_, options.model),
        model_(build_rank_model(step_, options.model, shapes, position_)),
        module_(step_.module("pipeline")),
        plan_{options.pipeline_parallel, options.pipeline_chunks, options.micro_batches, options.forward_only} {
    assign_groups(model_.parameters, options.sub_group, options.zero >= 1 ? options.data_parallel : 1);
    optimizer_.emplace(step_, model_.parameters);
    states_.resize(options.pipeline_chunks * options.micro_batches);
    if (options.head == Head::language_model && options.model.tied_embeddings && (first() || last())) {
      tied_ = first() ? model_.embedding.tokens : model_.head.output.weight;
    }
    embedding_trained_ = std::any_of(model_.embedding.parameters.begin(), model_.embedding.parameters.end(),
                                     [](const Parameter* parameter) { return parameter->trainable; });
  }

  void run() {
    for (const PipelineAction& action : pipeline_schedule(plan_, position_.stage)) {
      switch (action.kind) {
        case PipelineAction::Kind::forward:
          forward(action.chunk, action.micro_batch);
          if (options_.forward_only) show_progress();
          break;
        case PipelineAction::Kind::backward:
          backward(action.chunk, action.micro_batch);
          show_progress();
          break;
        case PipelineAction::Kind::exchange:
          exchange(action);
          break;
      }
    }
    if (options_.forward_only) return;
    finish_gradients();
    optimizer_->emit(collectives_, options_.data_parallel > 1 && (options_.zero == 1 || options_.zero == 2));
  }

 private:
  struct State {
    TensorId input = none, output = none;  // of the chunk
    TensorId d_output = none, d_input = none;
    EmbeddingState embedding;
    std::vector<LayerState> layers;
    HeadState head;
  };

  MicroBatch micro(Count index) const {
    const std::vector<Count>& lengths = options_.sequence_lengths;
    return {index, options_.batch / options_.micro_batches / options_.data_parallel,
            lengths.size() == 1 ? lengths.front() : lengths[index]};
  }
  // Whether the rank has the embedding or the head.
  bool first() const { return position_.stage == 0; }
  bool last() const { return position_.stage + 1 == options_.pipeline_parallel; }
  // Whether this chunk of its layers follows the embedding or precedes the head.
  bool begins_model(Count chunk) const { return first() && chunk == 0; }
  bool ends_model(Count chunk) const { return last() && chunk + 1 == options_.pipeline_chunks; }
  State& state_of(Count chunk, Count index) { return states_[chunk * options_.micro_batches + index]; }
  // After the last pass of a chunk's micro-batch.
  void show_progress() { progress_(static_cast<double>(++done_) / static_cast<double>(states_.size())); }

  void forward(Count chunk, Count index);
  void backward(Count chunk, Count index);
  void exchange(const PipelineAction& action);
  TensorId sent(const PipelineMessage& message);
  TensorId received(const PipelineMessage& message);
  void gather(const std::vector<Parameter*>& parameters, const Module& module);
  void reduce(const std::vector<Parameter*>& parameters, const Module& module, Count index);
  void finish_block(const std::vector<Parameter*>& parameters, const Module& module, Count index);
  void finish_gradients();

  const GenerateOptions& options_;
  const std::function<void(double)>& progress_;
  RankPosition position_;
  Step step_;
  Collectives collectives_;
  LayerOps ops_;
  RankModel model_;
  Module module_;
  PipelinePlan plan_;
  std::optional<OptimizerTensors> optimizer_;
  std::vector<State> states_;  // of the micro-batches of each chunk
  Count done_ = 0;             // of these
  bool embedding_trained_ = true;
  Parameter* tied_ = nullptr;  // the embedding that is the head as well, or this stage's copy of it
  std::vector<TensorId> shards_, wholes_, accumulated_;  // reused
  std::vector<Parameter*> finished_;                     // reused
};

void RankProgram::forward(Count chunk, Count index) {
  step_.phase = Phase::forward;
  State& state = state_of(chunk, index);
  const MicroBatch batch = micro(index);
  const ModelDescription& model = options_.model;
  if (begins_model(chunk)) {
    const Bytes pixels = model.channels * model.image_size * model.image_size * step_.element_bytes();
    const Bytes bytes = model.family == ModelFamily::vit ? batch.sequences * pixels : batch.tokens() * 8;
    const TensorId ids =
        step_.persistent(model.family == ModelFamily::vit ? "pixel_values" : "input_ids", bytes, Role::input);
    gather(model_.embedding.parameters, model_.embedding.module);
    state.input = ops_.embed(model_.embedding, batch, ids, state.embedding);
  }
  const LayerRange range = model_.chunks[chunk];
  state.layers.assign(range.end - range.begin, {});
  TensorId x = state.input;
  for (Count i = range.begin; i < range.end; ++i) {
    gather(model_.layers[i].parameters, model_.layers[i].module);
    x = ops_.layer(model_.layers[i], batch, x, state.layers[i - range.begin]);
  }
  state.output = x;
  if (ends_model(chunk)) {
    const Count labels = options_.head == Head::language_model ? batch.tokens() : batch.sequences;
    const TensorId label_ids = options_.loss ? step_.persistent("labels", labels * 8, Role::input) : TensorId{none};
    gather(model_.head.parameters, model_.head.module);
    ops_.head(model_.head, batch, x, label_ids, state.head);
  }
  if (options_.forward_only) state.layers = {};
}

void RankProgram::backward(Count chunk, Count index) {
  step_.phase = Phase::backward;
  State& state = state_of(chunk, index);
  const MicroBatch batch = micro(index);
  TensorId dy = state.d_output;
  if (ends_model(chunk)) {
    // What the loss has just read is still there.
    dy = ops_.head_backward(model_.head, batch, state.head);
    finish_block(model_.head.parameters, model_.head.module, index);
  }
  const LayerRange range = model_.chunks[chunk];
  const bool gradient_reaches_input = !begins_model(chunk) || embedding_trained_;
  for (Count i = range.end; i-- > range.begin;) {
    Layer& layer = model_.layers[i];
    gather(layer.parameters, layer.module);
    dy =
        ops_.layer_backward(layer, batch, state.layers[i - range.begin], dy, i > range.begin || gradient_reaches_input);
    finish_block(layer.parameters, layer.module, index);
  }
  if (begins_model(chunk) && gradient_reaches_input) {
    gather(model_.embedding.parameters, model_.embedding.module);
    ops_.embed_backward(model_.embedding, batch, state.embedding, dy);
    finish_block(model_.embedding.parameters, model_.embedding.module, index);
  }
  state.d_input = dy;
  state.layers.clear();
}

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
  const State& state = state_of(message.from / plan_.stages, message.micro_batch);
  return message.phase == Phase::forward ? state.output : state.d_input;
}

TensorId RankProgram::received(const PipelineMessage& message) {
  State& state = state_of(message.to / plan_.stages, message.micro_batch);
  const Count elements = micro(message.micro_batch).tokens() * options_.model.hidden;
  if (message.phase == Phase::forward) {
    return state.input = step_.activation(module_, "received_activation", elements);
  }
  return state.d_output = step_.gradient(module_, "received_grad", elements);
}

// ZeRO-3: the block's parameters from the shards of all data-parallel ranks, for as long as the block needs them.
void RankProgram::gather(const std::vector<Parameter*>& parameters, const Module& module) {
  if (options_.zero < 3 || options_.data_parallel == 1) return;
  shards_.clear();
  wholes_.clear();
  Bytes bytes = 0;
  for (Parameter* parameter : parameters) {
    const Bytes whole = parameter->quantised ? quantised_bytes(*parameter, options_.quantise_bits)
                                             : parameter->elements() * step_.element_bytes();
    parameter->value = step_.tensor(step_.module(parameter->name), "gathered", whole, Role::workspace);
    wholes_.push_back(parameter->value);
    if (parameter->stored != none) shards_.push_back(parameter->stored);
    bytes += whole;
  }
  collectives_.all_gather(Group::data, module, shards_, wholes_, bytes);
}

// The block's gradients over the data-parallel ranks: once an iteration, or under ZeRO-2 and -3 after every
// micro-batch, as each rank keeps its part only.
void RankProgram::reduce(const std::vector<Parameter*>& parameters, const Module& module, Count index) {
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
    if (options_.zero < 2 && parameter == tied_ && first() && &parameters == &model_.head.parameters) continue;
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
  if (options_.communication == Communication::deepspeed && options_.zero >= 2) {
    // DeepSpeed copies gradients into a bucket and divides it by the number of ranks (stage3.py, v0.13 and v0.14).
    const auto launches = static_cast<std::uint32_t>(wholes_.size() + 1);
    const Op op = step_.kernel("bucket", module,
                               {.kernel = {.kind = KernelKind::copy, .launches = launches}, .bytes = 4 * bytes});
    step_.op(op, wholes_, wholes_);
  }
  if (options_.zero == 0) {
    collectives_.all_reduce(Group::data, module, wholes_, bytes);
  } else {
    collectives_.reduce_scatter(Group::data, module, wholes_, shards_, accumulated_, bytes);
  }
}

// After a block's backward pass. A tied weight is complete only when its other use is through as well.
void RankProgram::finish_block(const std::vector<Parameter*>& parameters, const Module& module, Count index) {
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

// The two copies of a tied embedding, on the first and the last stage.
void RankProgram::finish_gradients() {
  if (options_.pipeline_parallel == 1 || tied_ == nullptr || !tied_->trainable) return;
  step_.phase = Phase::backward;
  const TensorId gradient = tied_->gradient_shard != none ? tied_->gradient_shard : tied_->gradient;
  if (gradient != none) collectives_.all_reduce(Group::embedding, step_.module(tied_->module), gradient);
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
  const RankModel model = build_rank_model(step, options.model, shapes, {});
  std::vector<std::string> labels;
  const auto add = [&](const Linear& linear) {
    if (linear && std::find(labels.begin(), labels.end(), linear.label) == labels.end()) labels.push_back(linear.label);
  };
  const Layer& layer = model.layers.front();
  for (const Linear* linear : {&layer.query, &layer.key, &layer.value, &layer.query_key_value, &layer.attention_output,
                               &layer.feed_forward.gate, &layer.feed_forward.up, &layer.feed_forward.down}) {
    add(*linear);
  }
  if (!layer.experts.empty()) {
    for (const Linear* linear : {&layer.experts[0].gate, &layer.experts[0].up, &layer.experts[0].down}) add(*linear);
  }
  return labels;
}

}  // namespace tencache::generator
