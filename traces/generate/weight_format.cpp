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

// AutoAWQ, GPTQ: 4 bits; for a group of inputs of an output an fp16 scale and a zero of as many bits. GPTQ: and each
// input's group.
template <Count Group, Count Bits = 4>
Bytes awq_groups(Count rows, Count columns, Bytes) {
  const Count groups = rows * ceiling(columns, Group);
  return ceiling(rows * columns * Bits, 8) + 2 * groups + ceiling(groups * Bits, 8);
}
template <Count Group, Count Bits = 4>
Bytes gptq_groups(Count rows, Count columns, Bytes element) {
  return awq_groups<Group, Bits>(rows, columns, element) + 4 * columns;
}

// As DeepSeek-V3 and Qwen publish theirs: an fp32 scale for a square of 128.
Bytes fp8_squares(Count rows, Count columns, Bytes) {
  return rows * columns + 4 * ceiling(rows, 128) * ceiling(columns, 128);
}

// NVIDIA's: 4 bits, an 8-bit scale for 16 of them and an fp32 one of the matrix.
Bytes nvfp4_blocks(Count rows, Count columns, Bytes) { return rows * (ceiling(columns, 2) + ceiling(columns, 16)) + 4; }

// Groups of 64 along a row, each with an fp16 minimum and scale.
Bytes groups_of_64(Count rows, Count columns, Bytes) { return rows * (ceiling(columns, 2) + 4 * ceiling(columns, 64)); }

// Endor: half of the numbers, and a bit for each place.
Bytes half_and_bitmap(Count rows, Count columns, Bytes element) {
  return ceiling(rows * columns, 2) * element + ceiling(rows * columns, 8);
}

constexpr Packing int8{"int8", false, int8_rows};
constexpr Packing int8_expanded{"int8-expanded", true, int8_rows};
constexpr Packing nf4{"nf4", true, nf4_blocks};
constexpr Packing fp8{"fp8", false, fp8_squares};
constexpr Packing nvfp4{"nvfp4", false, nvfp4_blocks};
constexpr Packing awq{"awq", false, awq_groups<128>};
constexpr Packing awq_g64{"awq-g64", false, awq_groups<64>};
constexpr Packing awq_g32{"awq-g32", false, awq_groups<32>};
constexpr Packing gptq{"gptq", false, gptq_groups<128>};
constexpr Packing gptq_g64{"gptq-g64", false, gptq_groups<64>};
constexpr Packing gptq_g32{"gptq-g32", false, gptq_groups<32>};
constexpr Packing gptq_8bit{"gptq-8bit", false, gptq_groups<128, 8>};
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

const Packing* of_experts(const WeightFacts& weight, Count, const ModelDescription& model) {
  return in_block(weight) && (weight.of_expert || model.experts == 0) ? &mxfp4 : nullptr;
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
    WeightFormat{"fp8", linears, of_linears<fp8>},
    WeightFormat{"nvfp4", linears, of_linears<nvfp4>},
    WeightFormat{"awq", linears, of_linears<awq>},
    WeightFormat{"awq-g64", linears, of_linears<awq_g64>},
    WeightFormat{"awq-g32", linears, of_linears<awq_g32>},
    WeightFormat{"gptq", linears, of_linears<gptq>},
    WeightFormat{"gptq-g64", linears, of_linears<gptq_g64>},
    WeightFormat{"gptq-g32", linears, of_linears<gptq_g32>},
    WeightFormat{"gptq-8bit", linears, of_linears<gptq_8bit>},
    WeightFormat{"q4_k_m", "all matrices but routers and positions", q4_k_m_of},
    WeightFormat{"mxfp4", "experts; without them linear layers of the blocks", of_experts},
    WeightFormat{"int4-g64", "all matrices but routers and positions", of_matrices<int4_g64>},
    WeightFormat{"sparse50", linears, of_linears<sparse50>},
};

}  // namespace

namespace {

// Whether the pattern, in which * is any text, is all of the name, or what comes before a dot in it.
bool matches_begin(std::string_view pattern, std::string_view name) {
  std::size_t star = pattern.npos, retry = 0, p = 0, n = 0;
  const auto ended = [&] { return p == pattern.size() && (n == name.size() || name[n] == '.'); };
  while (!ended()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      retry = n;
    } else if (p < pattern.size() && n < name.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != pattern.npos && retry < name.size()) {
      p = star;
      n = ++retry;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

const WeightFormat* find_weight_format(std::string_view name) {
  const auto found = std::ranges::find(formats, name, [](const WeightFormat& f) { return std::string_view(f.name); });
  return found == formats.end() ? nullptr : &*found;
}

bool leaves_out(const std::vector<std::string>& patterns, std::string_view name) {
  if (const std::size_t dot = name.rfind('.'); dot != name.npos) name = name.substr(0, dot);  // the weight's module
  // At the module's name or above it: each place where a part of it begins, up to where one ends.
  const auto here = [&](std::string_view pattern) {
    for (std::size_t begin = 0;; ++begin) {
      if ((begin == 0 || name[begin - 1] == '.') && matches_begin(pattern, name.substr(begin))) return true;
      begin = name.find('.', begin);
      if (begin == name.npos) return false;
    }
  };
  return std::ranges::any_of(patterns, here);
}

std::string weight_format_names() {
  std::string names;
  for (const WeightFormat& format : formats) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

}  // namespace tencache
