#include "traces/generate/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tencache::generator {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): the same on every computer,
// and eight bytes of state for each stream.
std::uint64_t next(std::uint64_t& state) {
  std::uint64_t mixed = state += 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
  return mixed ^ mixed >> 31;
}

std::uint64_t seed_of(std::uint64_t seed, std::uint64_t layer, std::uint64_t stream) {
  std::uint64_t state = seed;
  state = next(state) ^ layer;
  state = next(state) ^ stream;
  return next(state);
}

std::uint64_t below(std::uint64_t& state, std::uint64_t bound) { return (next(state) >> 32) * bound >> 32; }

}  // namespace

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
  const auto place = std::upper_bound(cumulative_.begin(), cumulative_.end(), at) - cumulative_.begin();
  return order[static_cast<std::size_t>(place)];
}

void TokenRouter::choose(Stream& stream, const std::vector<Expert>& order, Expert* experts, bool has_last) {
  constexpr double range = 0x1p64;
  std::uint64_t kept = 0;
  for (std::uint64_t i = 0; has_last && repeat_ > 0 && i < per_token_; ++i) {
    if (static_cast<double>(next(stream.state)) < repeat_ * range) std::swap(experts[kept++], experts[i]);
  }
  for (std::uint64_t i = 0; i < kept; ++i) taken_[experts[i]] = true;
  for (std::uint64_t i = kept; i < per_token_; ++i) {
    do experts[i] = draw(stream.state, order);
    while (taken_[experts[i]]);
    taken_[experts[i]] = true;
  }
  for (std::uint64_t i = 0; i < per_token_; ++i) {
    taken_[experts[i]] = false;
    ++tokens_[experts[i]];
  }
}

const std::vector<std::uint64_t>& TokenRouter::route(std::uint64_t layer, std::uint64_t micro_batch,
                                                     std::uint64_t sequences, std::uint64_t length) {
  const std::vector<Expert>& order = order_of(layer);
  Stream& stream = streams_[{layer, micro_batch}];
  bool has_last = !stream.last.empty();
  if (!has_last) {
    stream.state = seed_of(seed_, layer, micro_batch);
    stream.last.resize(sequences * per_token_);
  }
  std::fill(tokens_.begin(), tokens_.end(), 0);
  for (std::uint64_t token = 0; token < length; ++token) {
    for (std::uint64_t i = 0; i < sequences; ++i) choose(stream, order, &stream.last[i * per_token_], has_last);
    has_last = true;
  }
  return tokens_;
}

}  // namespace tencache::generator
