// Inside the generator: a block of requests, from their prompts to their last tokens.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "traces/generate/model_ops.h"
#include "traces/generate/routing.h"

namespace tencache::generator {

class GenerationPasses {
 public:
  // The options have a generation. All must outlive this object.
  GenerationPasses(Step& step, Collectives& collectives, RankModel& model);

  void run(const std::function<void(double share)>& progress);

 private:
  // What a micro-batch carries from one op to the next.
  struct Request {
    TensorId ids = none;  // of the prompt, then of the token that came last
    TensorId x = none;
    std::vector<KvCache> caches;  // by layer
  };

  MicroBatch micro(Count index, Count step) const;
  void embed(Count index, Count step);
  void layer(Count number, Count index, Count step);
  void head(Count index, Count step);

  const GenerateOptions& options_;
  const TextGeneration& generation_;
  Step& step_;
  RankModel& model_;
  ModelOps ops_;
  std::optional<TokenRouter> router_;  // of a model with experts
  std::vector<Request> requests_;      // by micro-batch
};

}  // namespace tencache::generator
