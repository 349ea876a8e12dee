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
  const ModelFamily family = model.family;
  Dropout dropout = step.options.dropout;
  if (dropout == Dropout::family) {
    const bool all = family == ModelFamily::gpt2 || family == ModelFamily::bert;
    dropout = all ? Dropout::all : family == ModelFamily::opt ? Dropout::hidden : Dropout::none;
  }
  if (step.options.forward_only) dropout = Dropout::none;
  hidden_dropout = dropout != Dropout::none;
  attention_dropout = dropout == Dropout::all;
  causal = family != ModelFamily::bert && family != ModelFamily::vit;
  rotary = family == ModelFamily::llama || family == ModelFamily::mixtral || family == ModelFamily::falcon;
}

}  // namespace tencache::generator
