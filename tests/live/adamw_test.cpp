// AdamW and the global norm: against a straightforward reference in long double, against PyTorch's own, and the same
// bits for every split.
#include "executor/adamw.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace tencache {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
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

// One clipped step of everything, as the optimizer's tasks do it.
void step_whole(State& state, const std::vector<float>& gradient, std::uint64_t step, double clip,
                const AdamWOptions& options) {
  std::vector<double> partials(norm_blocks(gradient.size()));
  grad_norm(gradient, partials);
  adamw_step(state.parameter, gradient, state.first_moment, state.second_moment,
             clip_coefficient(add_partials(0, partials), clip), step, options);
}

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
    adamw_step(state.parameter, gradient, state.first_moment, state.second_moment, 0.5f, step, options);
    for (std::size_t i = 0; i < count; ++i) reference[i].step(0.5L * gradient[i], step, options);
  }
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_NEAR(state.parameter[i], static_cast<double>(reference[i].parameter), 3e-6) << "element " << i;
  }
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {
  // Step 1, no decay: m / c1 = g, sqrt(v / c2) = |g|, so the parameter moves by learning_rate × sign(g).
  State state(2);
  state.parameter = {1.0f, 1.0f};
  adamw_step(state.parameter, std::vector<float>{4.0f, -0.25f}, state.first_moment, state.second_moment, 1.0f, 1,
             {.learning_rate = 0.125, .epsilon = 0, .weight_decay = 0});
  EXPECT_NEAR(state.parameter[0], 0.875, 1e-6);
  EXPECT_NEAR(state.parameter[1], 1.125, 1e-6);
}

TEST(AdamW, AgreesWithTorch) {
  const AdamWOptions options{.learning_rate = 0.003, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  constexpr std::size_t count = 20'000;
  State state(count);
  torch::Tensor parameter =
      torch::from_blob(state.parameter.data(), {static_cast<std::int64_t>(count)}, torch::kFloat32)
          .clone()
          .requires_grad_();
  torch::optim::AdamW torch_optimizer({parameter}, torch::optim::AdamWOptions(options.learning_rate)
                                                       .betas({options.beta1, options.beta2})
                                                       .eps(options.epsilon)
                                                       .weight_decay(options.weight_decay));
  for (std::uint64_t step = 1; step <= 20; ++step) {
    std::vector<float> gradient = random_values(count, 200 + step);
    parameter.mutable_grad() =
        torch::from_blob(gradient.data(), {static_cast<std::int64_t>(count)}, torch::kFloat32).clone();
    torch::nn::utils::clip_grad_norm_({parameter}, 1.0);
    torch_optimizer.step();
    step_whole(state, gradient, step, 1.0, options);
  }
  const float* expected = parameter.data_ptr<float>();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_LE(std::abs(state.parameter[i] - expected[i]), 1e-6f * std::max(1.0f, std::abs(expected[i])))
        << "element " << i;
  }
}

TEST(AdamW, AnySplitAndOrderGivesTheSameBits) {
  constexpr std::size_t count = 10 * norm_block_elements + 1234;
  const AdamWOptions options;
  State whole(count);
  for (std::uint64_t step = 1; step <= 3; ++step) step_whole(whole, random_values(count, step), step, 0.7, options);

  std::mt19937_64 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    State split(count);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const std::vector<float> gradient = random_values(count, step);
      // Pieces that end at block boundaries, in any order.
      std::vector<std::pair<std::size_t, std::size_t>> pieces;
      for (std::size_t begin = 0; begin < count;) {
        const std::size_t end = std::min(count, begin + norm_block_elements * (1 + random() % 4));
        pieces.emplace_back(begin, end);
        begin = end;
      }
      std::shuffle(pieces.begin(), pieces.end(), random);
      std::vector<double> partials(norm_blocks(count));
      for (const auto& [begin, end] : pieces) {
        grad_norm(std::span(gradient).subspan(begin, end - begin),
                  std::span(partials).subspan(begin / norm_block_elements, norm_blocks(end - begin)));
      }
      const float coefficient = clip_coefficient(add_partials(0, partials), 0.7);
      std::shuffle(pieces.begin(), pieces.end(), random);
      for (const auto& [begin, end] : pieces) {
        const std::size_t size = end - begin;
        adamw_step(std::span(split.parameter).subspan(begin, size), std::span(gradient).subspan(begin, size),
                   std::span(split.first_moment).subspan(begin, size),
                   std::span(split.second_moment).subspan(begin, size), coefficient, step, options);
      }
    }
    ASSERT_TRUE(same_bits(whole.parameter, split.parameter));
    ASSERT_TRUE(same_bits(whole.first_moment, split.first_moment));
    ASSERT_TRUE(same_bits(whole.second_moment, split.second_moment));
  }
}

TEST(AdamW, AlignmentDoesNotChangeBits) {
  // Vectorised loops have heads and tails; an element's result must not depend on where it falls.
  constexpr std::size_t count = 500;
  State aligned(count);
  const std::vector<float> gradient = random_values(count, 3);
  State shifted = aligned;
  step_whole(aligned, gradient, 1, 1.0, {});
  std::vector<double> partials(norm_blocks(count));
  grad_norm(gradient, partials);
  const float coefficient = clip_coefficient(add_partials(0, partials), 1.0);
  for (std::size_t i = 0; i < count; ++i) {
    adamw_step(std::span(shifted.parameter).subspan(i, 1), std::span(gradient).subspan(i, 1),
               std::span(shifted.first_moment).subspan(i, 1), std::span(shifted.second_moment).subspan(i, 1),
               coefficient, 1, {});
  }
  EXPECT_TRUE(same_bits(aligned.parameter, shifted.parameter));
}

TEST(Bfloat16, RoundsAsLibTorchDoes) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 100'000; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    if (i % 4 == 0) bits = (bits & 0xffff0000) | 0x8000;  // ties
    if (i % 64 == 1) bits |= 0x7f800000;                  // infinities and NaNs
    const auto value = std::bit_cast<float>(bits);
    ASSERT_EQ(to_bfloat16(value).bits, c10::BFloat16(value).x) << std::hex << bits;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(to_float(to_bfloat16(value))),
              std::bit_cast<std::uint32_t>(static_cast<float>(c10::BFloat16(value))));
  }
}

TEST(AdamW, OfBfloat16IsThatOfItsMasterAndGradientWidened) {
  constexpr std::size_t count = norm_block_elements + 123;
  State master(count), reference(count);
  std::vector<Bfloat16> parameter(count), gradient(count);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    std::vector<float> widened(count);
    for (std::size_t i = 0; const float value : random_values(count, 40 + step)) {
      gradient[i] = to_bfloat16(value);
      widened[i] = to_float(gradient[i]);
      ++i;
    }
    std::vector<double> partials(norm_blocks(count)), expected(norm_blocks(count));
    grad_norm(std::span<const Bfloat16>(gradient), partials);
    grad_norm(widened, expected);
    EXPECT_EQ(partials, expected);
    adamw_step(master.parameter, parameter, gradient, master.first_moment, master.second_moment, 0.3f, step, {});
    adamw_step(reference.parameter, widened, reference.first_moment, reference.second_moment, 0.3f, step, {});
  }
  EXPECT_TRUE(same_bits(master.parameter, reference.parameter));
  EXPECT_TRUE(same_bits(master.first_moment, reference.first_moment));
  EXPECT_TRUE(same_bits(master.second_moment, reference.second_moment));
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(parameter[i].bits, to_bfloat16(master.parameter[i]).bits);
}

TEST(GradNorm, IsTheSumOfSquares) {
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{4097}, std::size_t{100'003}}) {
    const std::vector<float> gradient = random_values(count, count);
    std::vector<double> partials(norm_blocks(count));
    grad_norm(gradient, partials);
    long double expected = 0;
    for (const float value : gradient) expected += static_cast<long double>(value) * value;
    EXPECT_NEAR(add_partials(0, partials), static_cast<double>(expected), 1e-12 * static_cast<double>(expected));
  }
}

TEST(ClipCoefficient, OnlyShrinks) {
  EXPECT_EQ(clip_coefficient(25.0, 0.0), 1.0f);         // no clipping
  EXPECT_EQ(clip_coefficient(0.25, 1.0), 1.0f);         // norm 0.5 is allowed
  EXPECT_NEAR(clip_coefficient(25.0, 1.0), 0.2, 1e-6);  // norm 5
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0f);
}

}  // namespace
}  // namespace tencache
