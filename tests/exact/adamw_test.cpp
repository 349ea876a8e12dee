// AdamW against a straightforward reference in long double, and the same bits for every split.
#include "executor/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace tencache {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct State {
  std::vector<float> parameter, first_moment, second_moment;
  explicit State(std::size_t count) : parameter(random_values(count, 7)), first_moment(count), second_moment(count) {}
};

// One scalar element in higher precision, straight from the paper (Loshchilov and Hutter, algorithm 2).
struct Reference {
  long double parameter, first_moment = 0, second_moment = 0;
  void step(long double gradient, std::uint64_t step, const AdamWOptions& options) {
    first_moment = options.beta1 * first_moment + (1 - options.beta1) * gradient;
    second_moment = options.beta2 * second_moment + (1 - options.beta2) * gradient * gradient;
    const long double count = static_cast<long double>(step);
    const long double first = first_moment / (1 - std::pow(static_cast<long double>(options.beta1), count));
    const long double second = second_moment / (1 - std::pow(static_cast<long double>(options.beta2), count));
    parameter -=
        options.learning_rate * (first / (std::sqrt(second) + options.epsilon) + options.weight_decay * parameter);
  }
};

TEST(AdamW, FollowsTheReference) {
  const AdamWOptions options{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
  constexpr std::size_t count = 1003;
  State state(count);
  std::vector<Reference> reference;
  for (const float value : state.parameter) reference.push_back({.parameter = value});
  for (std::uint64_t step = 1; step <= 50; ++step) {
    const std::vector<float> gradient = random_values(count, 100 + step);
    adamw_step(state.parameter, gradient, state.first_moment, state.second_moment, step, options);
    for (std::size_t i = 0; i < count; ++i) reference[i].step(gradient[i], step, options);
  }
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_NEAR(state.parameter[i], static_cast<double>(reference[i].parameter), 3e-6) << "element " << i;
  }
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {
  // Step 1, no decay: m / c1 = g, sqrt(v / c2) = |g|, so the parameter moves by learning_rate × sign(g).
  State state(2);
  state.parameter = {1.0f, 1.0f};
  adamw_step(state.parameter, std::vector<float>{4.0f, -0.25f}, state.first_moment, state.second_moment, 1,
             {.learning_rate = 0.125, .epsilon = 0, .weight_decay = 0});
  EXPECT_NEAR(state.parameter[0], 0.875, 1e-6);
  EXPECT_NEAR(state.parameter[1], 1.125, 1e-6);
}

// Vectorised loops have heads and tails; an element's result must not depend on where it falls.
TEST(AdamW, AnySplitGivesTheSameBits) {
  constexpr std::size_t count = 500;
  State whole(count);
  const std::vector<float> gradient = random_values(count, 3);
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    State split(count);
    whole = split;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      adamw_step(whole.parameter, gradient, whole.first_moment, whole.second_moment, step, {});
      for (std::size_t begin = 0; begin < count; begin += size) {
        const std::size_t part = std::min(size, count - begin);
        adamw_step(std::span(split.parameter).subspan(begin, part), std::span(gradient).subspan(begin, part),
                   std::span(split.first_moment).subspan(begin, part),
                   std::span(split.second_moment).subspan(begin, part), step, {});
      }
    }
    EXPECT_TRUE(same_bits(whole.parameter, split.parameter)) << size;
    EXPECT_TRUE(same_bits(whole.first_moment, split.first_moment)) << size;
    EXPECT_TRUE(same_bits(whole.second_moment, split.second_moment)) << size;
  }
}

}  // namespace
}  // namespace tencache
