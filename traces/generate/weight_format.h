// In which formats weights are stored, beside the precision that a model computes in: one table of them all, with the
// sizes and the weights that each covers. Two kinds:
//
//   fused     kernels read the stored numbers and expand them in registers: a product moves fewer bytes.
//   expanded  a kernel of its own writes the dense weight into a workspace before each use.
//
// Either way the stored size is the size in every tier, the GPU's included. Sources are in docs/workloads.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "traces/generate/model.h"

namespace tencache {

// What a weight is for, as far as formats tell weights apart. `other`: norms, biases, routers, sinks, positions.
enum class WeightUse : std::uint8_t { other, linear, value, down, attention_output, key, embedding, head };

struct WeightFacts {
  WeightUse use = WeightUse::other;
  bool of_expert = false;
  std::uint64_t layer = 0;
};

// How the numbers of a matrix are packed.
struct Packing {
  const char* name = "";
  bool expanded = false;
  // Of a matrix whose rows are the outputs; `element`: bytes of a number in the model's precision.
  Bytes (*bytes)(std::uint64_t rows, std::uint64_t columns, Bytes element) = nullptr;
};

struct WeightFormat {
  const char* name = "";    // of --weights
  const char* covers = "";  // for people
  // Null: the weight stays in the model's precision.
  const Packing* (*packing_of)(const WeightFacts& weight, std::uint64_t columns,
                               const ModelDescription& model) = nullptr;
};

// Null: there is none of that name.
const WeightFormat* find_weight_format(std::string_view name);
std::string weight_format_names();

// Whether one of the patterns names the weight's module, or one that holds it: whole parts of
// "model.layers.0.mlp.gate", with * for any text, as "lm_head", "mlp.gate" or "model.layers.*.self_attn".
bool leaves_out(const std::vector<std::string>& patterns, std::string_view name);

// FlexGen's and ZeRO-Inference's, also of a KV cache.
extern const Packing int4_g64;

}  // namespace tencache
