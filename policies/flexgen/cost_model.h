// FlexGen's estimate of a block's time and memory, and the percentages that its linear program chooses by it. Sheng et
// al. 2023, section 4.3; FMInference/FlexLLMGen at 004ffef, experimental/cost_model.py. It is an estimate for choosing
// a policy, never a result: simulate the percentages.
//
// Bytes and bytes a second, floating-point operations and those a second. Without hidden states on storage, which the
// runtime does not support.
#pragma once

#include <cstdint>
#include <optional>

namespace tencache {

struct FlexgenModel {
  double layers = 0;
  double hidden = 0;        // h1
  double feed_forward = 0;  // h2
  double heads = 0;
  double prompt = 0;        // s, tokens
  double new_tokens = 0;    // n
  bool compressed = false;  // weights in a quarter of the bytes

  double layer_bytes() const { return (8 * hidden * hidden + 4 * hidden * feed_forward) * (compressed ? 0.25 : 1.0); }
};

// What FlexGen's authors fitted on their T4 host.
struct FlexgenRates {
  static constexpr double gib = 1073741824, tera = 1e12;
  double cpu_to_gpu = 12.89 * gib;
  double cache_to_cpu = 0.97 * gib;  // from the GPU
  double hidden_to_cpu = 4.82 * gib;
  double storage_to_cpu = 0.473 * gib;
  double cache_to_storage_prefill = 0.746 * gib, cache_to_storage_decode = 2.015 * gib;
  double product_prefill = 21.24 * tera, product_decode = 4.3 * tera;  // of weights
  double attention_prefill = 9.97 * tera, attention_decode = 0.079 * tera;
  double cpu = 0.0123 * tera;  // attention there; small micro-batches and models reach less:
  double cpu_both = 0.0168, cpu_batch = 0.0328, cpu_hidden = 0.0621;
};

struct FlexgenMemory {
  double gpu = 0, cpu = 0, storage = 0;  // bytes
};

struct FlexgenBlock {
  double micro_batch = 1;  // requests: FlexGen's gpu_batch_size
  double micro_batches = 1;
  double requests() const { return micro_batch * micro_batches; }
};

// Shares from 0 to 1; storage has the rest of weights and cache, the CPU of hidden states.
struct FlexgenShares {
  double weights_gpu = 0, weights_cpu = 1;
  double cache_gpu = 0, cache_cpu = 1;
  double hidden_gpu = 0;
};

// Seconds of a block, from prompts to last tokens.
double flexgen_seconds(const FlexgenModel& model, const FlexgenRates& rates, const FlexgenBlock& block,
                       const FlexgenShares& shares);
// The most that it takes of each memory at any time.
FlexgenMemory flexgen_memory(const FlexgenModel& model, const FlexgenBlock& block, const FlexgenShares& shares);

// The shares of the least flexgen_seconds of which each memory holds what they take, by the linear program; nullopt:
// none do. `memory`: as much as may be filled; FlexGen takes 0.8 of each.
std::optional<FlexgenShares> solve_flexgen(const FlexgenModel& model, const FlexgenRates& rates,
                                           const FlexgenBlock& block, const FlexgenMemory& memory);

}  // namespace tencache
