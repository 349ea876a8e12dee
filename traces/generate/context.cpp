#include "traces/generate/context.h"

#include <algorithm>

namespace tencache::generator {

RankContext::RankContext(Step& step, Collectives& collectives, const ModelDescription& model)
    : step(step),
      collectives(collectives),
      model(model),
      kernels(step.options.stack, step.options.precision),
      heads(model.heads / step.options.tensor_parallel),
      key_value_heads(std::max<Count>(1, model.key_value_heads / step.options.tensor_parallel)) {
  const FamilyFacts& facts = facts_of(model.family);
  const Dropout dropout = step.options.forward_only ? Dropout::none : step.options.dropout;
  hidden_dropout = dropout == Dropout::family ? facts.hidden_dropout : dropout != Dropout::none;
  attention_dropout = dropout == Dropout::family ? facts.attention_dropout : dropout == Dropout::all;
  causal = facts.causal;
  rotary = facts.rotary;
}

}  // namespace tencache::generator
