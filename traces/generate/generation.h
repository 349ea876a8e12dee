// Inside the generator: a block of requests, from their prompts to their last tokens, on one rank.
//
// Pipeline stages take work in turns. In a row each micro-batch's step is a piece of work of its own, so while a stage
// has one, the next stage has the one before; zig-zag's piece is a step of all of them. What a piece leaves goes to the
// next stage, and the new tokens from the last stage to the first, between two turns. In these pauses a stage with an
// even number sends before it receives, one with an odd number the other way round, so none waits for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "traces/generate/generate.h"
#include "traces/generate/model_ops.h"

namespace tencache::generator {

// Which experts the tokens of a generation go to.
//
// The experts of a layer have a popularity after Zipf's law, in an order of their own in each layer. A token chooses
// experts_per_token different ones. A request may have a taste of its own (`topic`): another order, drawn for it, whose
// popularity multiplies the model's. Every (layer, micro-batch) has a stream of random numbers, so its choices depend
// neither on the order of the block nor on how ranks share the model.
class TokenRouter {
 public:
  // The model has experts.
  TokenRouter(const ModelDescription& model, const ExpertRouting& routing);

  // How many of the next `length` tokens of each sequence go to each expert of the layer. Calls for a layer and a
  // micro-batch are in the order of the tokens. Valid until the next call.
  const std::vector<std::uint64_t>& route(std::uint64_t layer, std::uint64_t micro_batch, std::uint64_t sequences,
                                          std::uint64_t length);
  // The same of `length` tokens of other requests to the same model: of streams that no micro-batch has.
  const std::vector<std::uint64_t>& profile(std::uint64_t layer, std::uint64_t length);

 private:
  using Expert = std::uint16_t;
  struct Stream {
    std::uint64_t state = 0;
    std::vector<Expert> last;    // experts of each sequence's last token; empty before the first
    std::vector<Expert> places;  // with a topic, by sequence and expert: the place in the request's own order
  };

  const std::vector<Expert>& order_of(std::uint64_t layer);
  Expert draw(std::uint64_t& state, const std::vector<Expert>& order) const;
  // A stream that begins.
  void begin(Stream& stream, std::uint64_t layer, std::uint64_t number, std::uint64_t sequences) const;
  // Of the sequence's next token.
  void choose(Stream& stream, std::uint64_t sequence, const std::vector<Expert>& order, bool has_last);

  std::uint64_t experts_, per_token_, seed_;
  double repeat_;
  std::vector<std::uint64_t> tastes_;        // of a topic, by place: of 2^32 draws, how many are taken; empty: no topic
  std::vector<std::uint64_t> cumulative_;    // of the popularity, by place in the order
  std::uint64_t shift_ = 0;                  // equal parts of the popularity, each of so many bits
  std::vector<std::uint64_t> first_places_;  // by part: where to look first, as millions are drawn
  std::map<std::uint64_t, std::vector<Expert>> orders_;                // by layer: experts, the most popular one first
  std::map<std::pair<std::uint64_t, std::uint64_t>, Stream> streams_;  // by layer and micro-batch
  std::vector<std::uint64_t> tokens_;
  std::vector<std::uint8_t> taken_;
};

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
  // Counts how often other requests choose each expert.
  void profile_experts();
  // All requests begin with the keys and values of so many tokens.
  void share(Count prefix);
  // A request's caches are there until all of its prompt is through, also where no token comes after to read them.
  void keep_caches(Count index);
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
