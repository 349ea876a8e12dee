// Inside the generator: which experts the tokens of a generation go to.
//
// The experts of a layer have a popularity after Zipf's law, in an order of their own in each layer. A token chooses
// experts_per_token different ones. Every (layer, micro-batch) has a stream of random numbers, so its choices depend
// neither on the order of the block nor on how ranks share the model.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "traces/generate/generate.h"

namespace tencache::generator {

class TokenRouter {
 public:
  // The model has experts.
  TokenRouter(const ModelDescription& model, const ExpertRouting& routing);

  // How many of the next `length` tokens of each sequence go to each expert of the layer. Calls for a layer and a
  // micro-batch are in the order of the tokens. Valid until the next call.
  const std::vector<std::uint64_t>& route(std::uint64_t layer, std::uint64_t micro_batch, std::uint64_t sequences,
                                          std::uint64_t length);

 private:
  using Expert = std::uint16_t;
  struct Stream {
    std::uint64_t state = 0;
    std::vector<Expert> last;  // experts of each sequence's last token; empty before the first
  };

  const std::vector<Expert>& order_of(std::uint64_t layer);
  Expert draw(std::uint64_t& state, const std::vector<Expert>& order) const;
  // `last`: of the token before in its sequence, or null; becomes those of this one.
  void choose(Stream& stream, const std::vector<Expert>& order, Expert* experts, bool has_last);

  std::uint64_t experts_, per_token_, seed_;
  double repeat_;
  std::vector<std::uint64_t> cumulative_;                              // of the popularity, by place in the order
  std::map<std::uint64_t, std::vector<Expert>> orders_;                // by layer: experts, the most popular one first
  std::map<std::pair<std::uint64_t, std::uint64_t>, Stream> streams_;  // by layer and micro-batch
  std::vector<std::uint64_t> tokens_;
  std::vector<bool> taken_;
};

}  // namespace tencache::generator
