#include "traces/generate/weight_format.h"

#include <algorithm>
#include <array>

namespace tencache {
namespace {

using Count = std::uint64_t;

constexpr Count ceiling(Count a, Count b) { return (a + b - 1) / b; }

// ---- Packings. ------------------------------------------------------------------------------------------------------

// Rows of blocks of `Numbers` that take `Size` bytes, as llama.cpp and the OCP's MX formats have them.
template <Count Numbers, Bytes Size>
Bytes blocks(Count rows, Count columns, Bytes) {
  return rows * ceiling(columns, Numbers) * Size;
}

// bitsandbytes' LLM.int8: an fp32 scale a row.
Bytes int8_rows(Count rows, Count columns, Bytes) { return rows * columns + 4 * rows; }

// QLoRA: 4 bits in blocks of 64, whose 8-bit scales have an fp32 scale for 256 of them.
Bytes nf4_blocks(Count rows, Count columns, Bytes) {
  const Count blocks = ceiling(rows * columns, 64);
  return ceiling(rows * columns, 2) + blocks + 4 * ceiling(blocks, 256);
}

// AutoAWQ, GPTQ: 4 bits; for 128 inputs of an output an fp16 scale and a 4-bit zero. GPTQ: and each input's group.
Bytes awq_groups(Count rows, Count columns, Bytes) {
  const Count groups = rows * ceiling(columns, 128);
  return ceiling(rows * columns, 2) + 2 * groups + ceiling(groups, 2);
}
Bytes gptq_groups(Count rows, Count columns, Bytes element) { return awq_groups(rows, columns, element) + 4 * columns; }

// Groups of 64 along a row, each with an fp16 minimum and scale.
Bytes groups_of_64(Count rows, Count columns, Bytes) { return rows * (ceiling(columns, 2) + 4 * ceiling(columns, 64)); }

// Endor: half of the numbers, and a bit for each place.
Bytes half_and_bitmap(Count rows, Count columns, Bytes element) {
  return ceiling(rows * columns, 2) * element + ceiling(rows * columns, 8);
}

constexpr Packing int8{"int8", false, int8_rows};
constexpr Packing int8_expanded{"int8-expanded", true, int8_rows};
constexpr Packing nf4{"nf4", true, nf4_blocks};
constexpr Packing awq{"awq", false, awq_groups};
constexpr Packing gptq{"gptq", false, gptq_groups};
constexpr Packing mxfp4{"mxfp4", false, blocks<32, 17>};
constexpr Packing sparse50{"sparse50", true, half_and_bitmap};
// llama.cpp's: ggml-common.h.
constexpr Packing q4_k{"q4_k", false, blocks<256, 144>};
constexpr Packing q5_k{"q5_k", false, blocks<256, 176>};
constexpr Packing q6_k{"q6_k", false, blocks<256, 210>};
constexpr Packing q5_0{"q5_0", false, blocks<32, 22>};
constexpr Packing q5_1{"q5_1", false, blocks<32, 24>};
constexpr Packing q8_0{"q8_0", false, blocks<32, 34>};

// ---- Which weights. -------------------------------------------------------------------------------------------------

bool in_block(const WeightFacts& weight) {
  return weight.use != WeightUse::other && weight.use != WeightUse::embedding && weight.use != WeightUse::head;
}

template <const Packing& packing>
const Packing* of_linears(const WeightFacts& weight, Count, const ModelDescription&) {
  return in_block(weight) ? &packing : nullptr;
}

template <const Packing& packing>
const Packing* of_matrices(const WeightFacts& weight, Count, const ModelDescription&) {
  return weight.use != WeightUse::other ? &packing : nullptr;
}

const Packing* of_experts(const WeightFacts& weight, Count, const ModelDescription&) {
  return in_block(weight) && weight.of_expert ? &mxfp4 : nullptr;
}

// llama.cpp's Q4_K_M (src/llama-quant.cpp): the first and the last eighth of the layers, and every third between.
bool more_bits(Count layer, Count layers) {
  const Count eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

const Packing* q4_k_m_of(const WeightFacts& weight, Count columns, const ModelDescription& model) {
  const bool falcon = model.family == ModelFamily::falcon, eight_experts = model.experts == 8;
  const bool more = more_bits(weight.layer, model.layers);
  const bool llama_70b =
      model.family == ModelFamily::llama && model.layers == 80 && model.key_value_heads < model.heads;
  const Packing* packing = &q4_k;
  switch (weight.use) {
    case WeightUse::other:
      return nullptr;
    case WeightUse::head:
      packing = falcon || columns % 256 != 0 ? &q8_0 : &q6_k;
      break;
    case WeightUse::value:
      packing = eight_experts ? &q8_0 : more ? &q6_k : llama_70b ? &q5_k : &q4_k;
      break;
    case WeightUse::key:
      packing = eight_experts ? &q8_0 : &q4_k;
      break;
    case WeightUse::attention_output:
      packing = eight_experts && !falcon ? &q5_k : &q4_k;
      break;
    case WeightUse::down:
      if (falcon) {
        packing = weight.layer < model.layers / 16 ? &q6_k : more ? &q5_k : &q4_k;
      } else if (more) {
        packing = &q6_k;
      }
      break;
    case WeightUse::linear:
    case WeightUse::embedding:
      break;
  }
  // Rows that are no multiple of 256 numbers.
  if (columns % 256 == 0) return packing;
  return packing == &q4_k ? &q5_0 : packing == &q5_k ? &q5_1 : &q8_0;
}

constexpr const char* linears = "linear layers of the blocks, without routers";

}  // namespace

const Packing int4_g64{"int4-g64", true, groups_of_64};

namespace {

const std::array formats{
    WeightFormat{"int8", linears, of_linears<int8>},
    WeightFormat{"int8-expanded", linears, of_linears<int8_expanded>},
    WeightFormat{"nf4", linears, of_linears<nf4>},
    WeightFormat{"awq", linears, of_linears<awq>},
    WeightFormat{"gptq", linears, of_linears<gptq>},
    WeightFormat{"q4_k_m", "all matrices but routers and positions", q4_k_m_of},
    WeightFormat{"mxfp4", "experts", of_experts},
    WeightFormat{"int4-g64", "all matrices but routers and positions", of_matrices<int4_g64>},
    WeightFormat{"sparse50", linears, of_linears<sparse50>},
};

}  // namespace

const WeightFormat* find_weight_format(std::string_view name) {
  const auto found = std::ranges::find(formats, name, [](const WeightFormat& f) { return std::string_view(f.name); });
  return found == formats.end() ? nullptr : &*found;
}

std::string weight_format_names() {
  std::string names;
  for (const WeightFormat& format : formats) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

}  // namespace tencache
