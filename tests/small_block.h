// A block of requests for text, small enough to be worked out on paper.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/small_cases.h"

namespace tencache {

// Layers of weights a (100), b (100), c (100), d (100) before and in the attention's output and f (200), g (200) after
// it, passed by micro-batches one after the other; prompts, then one step. Kernels of 10 ns.
struct SmallBlock {
  explicit SmallBlock(std::size_t layer_count, std::size_t batches, Device attention = Device::gpu,
                      bool placeable = false) {
    for (std::size_t layer = 0; layer < layer_count; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      for (const auto& [part, bytes] : {std::pair<const char*, Bytes>{".a", 100},
                                        {".b", 100},
                                        {".c", 100},
                                        {".d", 100},
                                        {".f", 200},
                                        {".g", 200}}) {
        weights.push_back(trace.add_tensor(name + part, bytes, Role::parameter, true));
      }
    }
    std::vector<TensorId> hidden(batches), prompt_cache(layer_count * batches);
    for (std::size_t batch = 0; batch < batches; ++batch) {
      hidden[batch] = trace.add_tensor("ids", 1, Role::input, true);
    }
    for (std::uint32_t step = 0; step < 2; ++step) {
      const std::uint32_t detail = trace.add_detail({.step = step});
      for (std::size_t layer = 0; layer < layer_count; ++layer) {
        for (std::size_t batch = 0; batch < batches; ++batch) {
          const auto add = [&](const char* name, std::vector<TensorId> reads, TensorId write,
                               Device device = Device::gpu, KernelKind kind = KernelKind::elementwise) {
            Op op =
                make_op(trace, name, "layers." + std::to_string(layer), step == 0 ? Phase::prefill : Phase::decode, 10);
            op.detail = detail;
            op.device = device;
            op.kernel = trace.kernels.intern({.kind = kind});
            op.placeable = placeable;
            op.bytes = 100;
            trace.add_op(op, reads, std::vector<TensorId>{write});
          };
          const auto make = [&](Role role, Bytes bytes) { return trace.add_tensor("t", bytes, role, false); };
          const TensorId* const w = &weights[6 * layer];
          const TensorId q = make(Role::activation, 4);
          add("q", {hidden[batch], w[0], w[1], w[2]}, q);
          const TensorId cache = make(Role::kv_cache, step == 0 ? 50 : 5);
          TensorId& prompt = prompt_cache[layer * batches + batch];
          const Device there = step == 0 ? Device::gpu : attention;
          add("kv", {q}, cache, there);
          const TensorId context = make(Role::activation, 4);
          std::vector<TensorId> reads{q, cache};
          if (step == 0) prompt = cache;
          if (step > 0) reads.push_back(prompt);
          add("attention", reads, context, there, KernelKind::attention);
          const TensorId x = make(Role::activation, 4);
          add("out", {context, w[3]}, x);
          const TensorId y = make(Role::activation, 8);
          add("ff", {x, w[4], w[5]}, y);
          hidden[batch] = y;
        }
      }
    }
  }

  Trace trace;
  std::vector<TensorId> weights;
};

}  // namespace tencache
