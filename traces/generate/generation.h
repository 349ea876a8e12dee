// Inside the generator: a block of requests, from their prompts to their last tokens, on one rank.
//
// Pipeline stages take work in turns. In a row each micro-batch's step is a piece of work of its own, so while a stage
// has one, the next stage has the one before; zig-zag's piece is a step of all of them. What a piece leaves goes to the
// next stage, and the new tokens from the last stage to the first, between two turns. In these pauses a stage with an
// even number sends before it receives, one with an odd number the other way round, so none waits for ever.
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
    std::vector<KvCache> caches;  // by layer of this rank
  };
  // A step of micro-batches, one after the other.
  struct Work {
    Count step = 0, first = 0, count = 0;  // micro-batches
  };

  MicroBatch micro(Count index, Count step) const;
  void embed(Count index, Count step);
  void layer(Count number, Count index, Count step);
  void head(Count index, Count step);
  void compute(const Work& work);
  // The stages in turns.
  void run_stages(const std::function<void(double share)>& progress);
  // In the pause after a turn, what the stage `from` has made of `work` goes to `to`.
  void transfer(const Work& work, Count from, Count to);

  const GenerateOptions& options_;
  const TextGeneration& generation_;
  Step& step_;
  RankModel& model_;
  Collectives& collectives_;
  Module pipeline_;
  ModelOps ops_;
  std::optional<TokenRouter> router_;  // of a model with experts
  std::vector<Request> requests_;      // by micro-batch
};

}  // namespace tencache::generator
