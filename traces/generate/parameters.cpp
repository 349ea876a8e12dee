#include "traces/generate/parameters.h"

#include "traces/generate/rank_model.h"

namespace tencache::generator {

ParameterOps::ParameterOps(Step& step, Collectives& collectives, RankModel& model)
    : options_(step.options), step_(step), collectives_(collectives), model_(model) {
  assign_groups(model.parameters, options_.sub_group, options_.zero >= 1 ? options_.data_parallel : 1);
  optimizer_.emplace(step, model.parameters);
  if (options_.head == Head::language_model && options_.model.tied_embeddings &&
      (model.has_embedding || model.has_head)) {
    tied_ = model.has_embedding ? model.embedding.tokens : model.head.output.weight;
  }
}

void ParameterOps::gather(const std::vector<Parameter*>& parameters, const Module& module) {
  if (options_.zero < 3 || options_.data_parallel == 1) return;
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
  if (options_.communication == Communication::deepspeed && options_.zero >= 2) {
    // DeepSpeed copies gradients into a bucket and divides it by the number of ranks (stage3.py, v0.13 and v0.14).
    const auto launches = static_cast<std::uint32_t>(wholes_.size() + 1);
    const Op op = step_.kernel("bucket", module,
                               {.kernel = {.kind = KernelKind::copy, .launches = launches}, .bytes = 4 * bytes});
    step_.op(op, wholes_, wholes_);
  }
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

}  // namespace tencache::generator
