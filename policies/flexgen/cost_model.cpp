#include "policies/flexgen/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "policies/planning/linear_program.h"

namespace tencache {
namespace {

enum Share : std::size_t { weights_gpu, weights_cpu, cache_gpu, cache_cpu, hidden_gpu, share_count };

// constant + sum of factors × shares.
struct Linear {
  double constant = 0;
  std::array<double, share_count> factors{};

  double at(const std::array<double, share_count>& shares) const {
    double sum = constant;
    for (std::size_t i = 0; i < share_count; ++i) sum += factors[i] * shares[i];
    return sum;
  }
};
constexpr Linear operator+(Linear a, const Linear& b) {
  a.constant += b.constant;
  for (std::size_t i = 0; i < share_count; ++i) a.factors[i] += b.factors[i];
  return a;
}
constexpr Linear operator*(double factor, Linear a) {
  a.constant *= factor;
  for (double& each : a.factors) each *= factor;
  return a;
}
constexpr Linear share(std::size_t which) {
  Linear result;
  result.factors[which] = 1;
  return result;
}
constexpr Linear number(double constant) { return {.constant = constant}; }

// Shares by the names of FlexGen's cost model: w, c, h on g(pu), c(pu), d(isk).
constexpr Linear wg = share(weights_gpu), wc = share(weights_cpu), wd = number(1) + -1.0 * wg + -1.0 * wc;
constexpr Linear cg = share(cache_gpu), cc = share(cache_cpu), cd = number(1) + -1.0 * cg + -1.0 * cc;
constexpr Linear hg = share(hidden_gpu), hc = number(1) + -1.0 * hg;

// A block's time: layers × (max of prefill + steps × (gpu_loads + max of decode)).
struct Times {
  std::vector<Linear> prefill, decode;
  Linear gpu_loads;  // of weights and hidden states to the GPU, which the code adds to the rest
};

Times times_of(const FlexgenModel& m, const FlexgenRates& r, const FlexgenBlock& block) {
  const double h1 = m.hidden, h2 = m.feed_forward, s = m.prompt, n = m.new_tokens, bls = block.requests();
  const double layer = m.layer_bytes(), context = s + n / 2;
  const double small_batch = std::max(0.0, std::log2(64 / block.micro_batch));
  const double small_model = std::max(0.0, std::log2(4096 / h1));
  const double cpu = r.cpu * std::max(0.1, 1 + r.cpu_both * small_batch * small_model - r.cpu_batch * small_batch -
                                               r.cpu_hidden * small_model);
  const double products = 8 * h1 * h1 + 4 * h1 * h2;  // of a token
  Times t;
  // Prefill: loads, stores, compute.
  t.prefill.push_back(layer / r.cpu_to_gpu * (wc + wd) + 2 * s * h1 * bls / r.cpu_to_gpu * hc +
                      layer / r.storage_to_cpu * wd);
  t.prefill.push_back(4 * (s + 1) * h1 * bls / r.cache_to_cpu * (cc + cd) + 2 * s * h1 * bls / r.hidden_to_cpu * hc +
                      4 * bls * (s + 1) * h1 / r.cache_to_storage_prefill * cd);
  t.prefill.push_back(number(bls * s * products / r.product_prefill + 4 * bls * s * s * h1 / r.attention_prefill));
  // Decode.
  t.gpu_loads = layer / r.cpu_to_gpu * (wc + wd) + 2 * h1 * bls / r.cpu_to_gpu * hc;
  t.decode.push_back(2 * h1 * bls / r.hidden_to_cpu * hc);
  t.decode.push_back(4 * bls * context * h1 / r.storage_to_cpu * cd + layer / (0.95 * r.storage_to_cpu) * wd);
  t.decode.push_back(4 * bls * h1 / r.cache_to_storage_decode * cd);
  t.decode.push_back(number(bls * products / r.product_decode) + 4 * bls * context * h1 / r.attention_decode * cg +
                     4 * bls * context * h1 / cpu * (cc + cd));
  return t;
}

struct FlexgenNeeds {
  std::vector<Linear> gpu, cpu;  // at different times
  Linear storage;
};

FlexgenNeeds needs_of(const FlexgenModel& m, const FlexgenBlock& block) {
  const double h1 = m.hidden, h2 = m.feed_forward, s = m.prompt, n = m.new_tokens, l = m.layers, heads = m.heads;
  const double bls = block.requests(), gbs = block.micro_batch, layer = m.layer_bytes();
  // What a layer makes on its way, of so many tokens a request that attend to `keys`.
  const auto between = [&](double tokens, const Linear& attention) {
    return number(8 * gbs * tokens * h1) + attention + number(2 * gbs * tokens * h1) + number(4 * gbs * tokens * h1) +
           number(2 * gbs * tokens * h2) + number(2 * gbs * tokens * h1);
  };
  const auto gpu = [&](double tokens, const Linear& attention) {
    return layer * l * wg + 2 * tokens * h1 * bls * hg + 4 * (s + n) * h1 * bls * l * cg + 2 * layer * (wc + wd) +
           2 * tokens * h1 * gbs * hc + between(tokens, attention);
  };
  FlexgenNeeds needs;
  needs.gpu.push_back(gpu(s, number(gbs * (2 * s * h1 + 2 * heads * s * s))));
  needs.gpu.push_back(gpu(1, (4 * gbs * (s + n) * h1 + gbs * (2 * h1 + 2 * heads * (s + n))) * cg));
  needs.cpu.push_back(layer * l * wc + 2 * s * h1 * bls * hc + 4 * s * h1 * bls * l * cc + layer * (wc + wd) +
                      2 * s * h1 * gbs * hc);
  needs.cpu.push_back(layer * l * wc + 2 * h1 * bls * hc + 4 * (s + n) * h1 * bls * l * cc + layer * wd +
                      8 * (s + n) * h1 * gbs * cd + number(2 * heads * (s + n) * gbs + 2 * h1 * gbs));
  needs.storage = layer * l * wd + 4 * (s + n) * h1 * bls * l * cd;
  return needs;
}

std::array<double, share_count> values(const FlexgenShares& shares) {
  return {shares.weights_gpu, shares.weights_cpu, shares.cache_gpu, shares.cache_cpu, shares.hidden_gpu};
}

double most(const std::vector<Linear>& list, const std::array<double, share_count>& shares) {
  double result = 0;
  for (const Linear& each : list) result = std::max(result, each.at(shares));
  return result;
}

}  // namespace

double flexgen_seconds(const FlexgenModel& model, const FlexgenRates& rates, const FlexgenBlock& block,
                       const FlexgenShares& shares) {
  const Times times = times_of(model, rates, block);
  const auto at = values(shares);
  return model.layers *
         (most(times.prefill, at) + (model.new_tokens - 1) * (times.gpu_loads.at(at) + most(times.decode, at)));
}

FlexgenMemory flexgen_memory(const FlexgenModel& model, const FlexgenBlock& block, const FlexgenShares& shares) {
  const FlexgenNeeds needs = needs_of(model, block);
  const auto at = values(shares);
  return {most(needs.gpu, at), most(needs.cpu, at), needs.storage.at(at)};
}

std::optional<FlexgenShares> solve_flexgen(const FlexgenModel& model, const FlexgenRates& rates,
                                           const FlexgenBlock& block, const FlexgenMemory& memory) {
  // After the shares: the maximum of prefill, that of decode.
  constexpr std::size_t prefill = share_count, decode = share_count + 1, variables = share_count + 2;
  LinearProgram program;
  const auto at_most = [&](const Linear& left, double right, std::size_t less = share_count + 2) {
    std::vector<double> row(variables, 0.0);
    std::copy(left.factors.begin(), left.factors.end(), row.begin());
    if (less < variables) row[less] = -1;
    program.rows.push_back(std::move(row));
    program.limits.push_back(right - left.constant);
  };
  const Times times = times_of(model, rates, block);
  for (const Linear& each : times.prefill) at_most(each, 0, prefill);
  for (const Linear& each : times.decode) at_most(each, 0, decode);
  at_most(wg + wc, 1);
  at_most(cg + cc, 1);
  at_most(hg, 1);
  const FlexgenNeeds needs = needs_of(model, block);
  constexpr double unit = 1e9;  // so that all rows are of one size
  for (const Linear& each : needs.gpu) at_most(1 / unit * each, memory.gpu / unit);
  for (const Linear& each : needs.cpu) at_most(1 / unit * each, memory.cpu / unit);
  at_most(1 / unit * needs.storage, memory.storage / unit);
  program.cost.assign(variables, 0.0);
  const double steps = model.new_tokens - 1;
  for (std::size_t i = 0; i < share_count; ++i) program.cost[i] = steps * times.gpu_loads.factors[i];
  program.cost[prefill] = 1;
  program.cost[decode] = steps;
  const auto x = solve(program);
  if (!x) return std::nullopt;
  return FlexgenShares{.weights_gpu = (*x)[weights_gpu],
                       .weights_cpu = (*x)[weights_cpu],
                       .cache_gpu = (*x)[cache_gpu],
                       .cache_cpu = (*x)[cache_cpu],
                       .hidden_gpu = (*x)[hidden_gpu]};
}

}  // namespace tencache
